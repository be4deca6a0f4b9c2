"use strict";
// The page of `inband console`. It shows what the server's stream of events says, and sends it what is clicked.

const TOKEN = location.hash.slice(1);
const CHART_MS = 30000;
const BUCKETS_PER_S = 20;
const BUCKETS_MAX = 1200;
const EVENTS_SHOWN = 200;
// The server says that it lives every 5 s.
const SILENCE_MS = 15000;
const REQUEST_TIMEOUT_MS = 130000;
const RECONNECT_MS = 1000;
const FOLLOW_MS = 1000;

const byId = (id) => document.getElementById(id);
const buckets = [];
const marks = [];
let charts = null;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === undefined) continue;
    made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function problem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}

async function request(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { Authorization: `Bearer ${TOKEN}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS),
  });
  const said = await response.json();
  if (!response.ok) throw new Error(said.error);
  return said;
}

// Hosts

const kindOf = (host) => (host.state === "running" ? "" : host.state === "paused" ? "held" : "down");

async function act(action, button) {
  button.disabled = true;
  problem("");
  try {
    await request("/api/action", action);
  } catch (error) {
    problem(`${action.do} ${action.host || ""}: ${error.message}`);
  } finally {
    button.disabled = false;
  }
}

// Kinds of hosts that can be added while the cluster serves, by system.
const KINDS = { kv: ["acceptor", "replica"], box: [null] };

function showMembers(system) {
  const place = byId("members");
  if (!KINDS[system] || !place.hidden) return;
  place.hidden = false;
  for (const kind of KINDS[system]) {
    const button = element("button", { type: "button" }, `Add ${kind || "node"}`);
    button.addEventListener("click", () => act(kind ? { do: "add", kind } : { do: "add" }, button));
    place.append(button, " ");
  }
}

function linkForm(name) {
  const number = (label, field, max) =>
    element("label", {}, label, element("input", { name: field, type: "number", min: 0, max, value: 0, step: "any" }));
  const to = element("select", { name: "to" });
  const cut = element("input", { name: "cut", type: "checkbox" });
  const button = element("button", { type: "submit" }, "Apply");
  const form = element("form", {}, number("Delay, ms", "delay", 10000), number("Loss, %", "loss", 100));
  form.append(element("label", {}, "Cut", cut), element("label", {}, "Between it and", to), button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const change = { cut: cut.checked };
    if (to.value) change.to = to.value;
    else {
      change.delay_us = Math.round(Number(form.delay.value) * 1000);
      change.loss_ppm = Math.round(Number(form.loss.value) * 10000);
    }
    act({ do: "link", host: name, change }, button);
  });
  const details = element("details", { class: "link" }, element("summary", { "aria-label": `Link of ${name}` }, "Link"), form);
  details.addEventListener("toggle", () => {
    const others = [...byId("hosts").children].map((card) => card.dataset.host).filter((other) => other !== name);
    to.replaceChildren(element("option", { value: "" }, "all"), ...others.map((other) => element("option", {}, other)));
  });
  return details;
}

function newCard(name) {
  const card = element("li", { class: "host", "data-host": name });
  const title = element("h3", {}, element("span", {}, name));
  title.append(element("span", { class: "state" }), element("span", { class: "leads", hidden: true }, "leader"));
  const actions = element("p");
  for (const action of ["kill", "restart", "pause", "resume"]) {
    const label = action[0].toUpperCase() + action.slice(1);
    const button = element("button", { type: "button", class: action, "aria-label": `${label} ${name}` }, label);
    button.addEventListener("click", () => act({ do: action, host: name }, button));
    actions.append(button, " ");
  }
  if (KINDS[byId("system").textContent]) {
    const button = element("button", { type: "button", "aria-label": `Remove ${name}` }, "Remove");
    button.addEventListener("click", () => {
      if (confirm(`Remove ${name} permanently?`)) act({ do: "remove", host: name }, button);
    });
    actions.append(button);
  }
  card.append(title, element("p", { class: "place" }), element("dl"), actions, linkForm(name));
  return card;
}

// Only what differs is changed, so that a screen reader and the keyboard's focus stay where they are.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function showHost(card, host) {
  card.className = `host ${kindOf(host)}`;
  setText(card.querySelector(".state"), host.state + (host.restarts ? `, ${host.restarts} restarts` : ""));
  card.querySelector(".leads").hidden = !host.is_leader;
  const place = [host.address, host.dataplane];
  if (host.cpu_percent !== null) place.push(`CPU ${host.cpu_percent.toFixed(0)} %`);
  if (host.packets_per_s !== null) place.push(`${Math.round(host.packets_per_s)} packets/s`);
  setText(card.querySelector(".place"), place.filter(Boolean).join(" · "));
  const list = card.querySelector("dl");
  const details = Object.entries(host.details);
  if (list.children.length !== 2 * details.length) {
    list.replaceChildren(...details.flatMap(() => [element("dt"), element("dd")]));
  }
  details.forEach(([name, value], at) => {
    setText(list.children[2 * at], name.replaceAll("_", " "));
    setText(list.children[2 * at + 1], typeof value === "number" ? value.toLocaleString("en") : String(value));
  });
}

function drawTopology(hosts) {
  const parts = [];
  const nodes = [];
  hosts.forEach((host, at) => {
    const angle = (2 * Math.PI * at) / hosts.length - Math.PI / 2;
    const [x, y] = [200 + 145 * Math.cos(angle), 195 + 145 * Math.sin(angle)];
    const kind = kindOf(host);
    parts.push(drawn("line", { class: `link ${kind}`, x1: 200, y1: 195, x2: x, y2: y }));
    const node = drawn("g", { class: `${kind} ${host.is_leader ? "leader" : ""}` }, drawn("circle", { cx: x, cy: y, r: 16 }));
    const label = drawn("text", { x, y: y + 32 });
    label.textContent = host.name;
    node.append(label);
    nodes.push(node);
  });
  parts.push(drawn("rect", { class: "switch", x: 172, y: 180, width: 56, height: 30, rx: 5 }));
  const label = drawn("text", { x: 200, y: 200 });
  label.textContent = "switch";
  byId("topology").replaceChildren(...parts, label, ...nodes);
}

function showTopology(topology) {
  setText(byId("system"), topology.system);
  showMembers(topology.system);
  const summary = Object.entries(topology.summary).map(([name, value]) => `${name} ${value}`);
  setText(byId("summary"), summary.join(" · "));
  setText(byId("connection"), topology.error ? `no status: ${topology.error}` : "live");
  const list = byId("hosts");
  const names = topology.hosts.map((host) => host.name);
  for (const card of [...list.children]) {
    if (!names.includes(card.dataset.host)) card.remove();
  }
  topology.hosts.forEach((host, at) => {
    let card = [...list.children].find((found) => found.dataset.host === host.name);
    if (!card) {
      card = newCard(host.name);
      list.insertBefore(card, list.children[at] || null);
    }
    showHost(card, host);
  });
  drawTopology(topology.hosts);
}

// Events and charts

function showMark(mark) {
  marks.push(mark);
  const time = new Date(mark.at_ms);
  const shown = time.toLocaleTimeString("en-GB") + "." + String(time.getMilliseconds()).padStart(3, "0");
  const item = element("li", { class: mark.is_fault ? "fault" : "" }, element("time", { datetime: time.toISOString() }, shown), mark.text);
  byId("events").prepend(item);
  while (byId("events").children.length > EVENTS_SHOWN) byId("events").lastChild.remove();
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Lines where something happened.
function drawMarks(chart) {
  const { ctx, bbox } = chart;
  ctx.save();
  for (const mark of marks) {
    const x = chart.valToPos(mark.at_ms / 1000, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = color(mark.is_fault ? "--bad" : "--quiet");
    ctx.setLineDash(mark.is_fault ? [] : [4, 4]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function newChart(id, series, logarithmic) {
  const axis = () => ({ stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } });
  const options = {
    width: byId(id).clientWidth || 480,
    height: 170,
    scales: { y: logarithmic ? { distr: 3 } : { range: (_, __, max) => [0, Math.max(1, max * 1.1)] } },
    axes: [axis(), { ...axis(), size: 64 }],
    series: [{ value: (_, at) => (at === null ? "" : new Date(at * 1000).toLocaleTimeString("en-GB")) }, ...series],
    hooks: { draw: [drawMarks] },
  };
  return new uPlot(options, [[], ...series.map(() => [])], byId(id));
}

function makeCharts() {
  for (const id of ["throughput", "latency"]) byId(id).replaceChildren();
  const line = (label, name) => ({ label, stroke: color(name), width: 1.5, spanGaps: false, points: { show: false } });
  charts = {
    throughput: newChart("throughput", [line("ended", "--accent"), line("failed", "--bad")], false),
    latency: newChart("latency", [line("median", "--accent"), line("longest", "--warn")], true),
  };
  showCharts();
}

function showCharts() {
  if (!charts || document.hidden) return;
  // By the clock of the server.
  const newest = Math.max(buckets.length ? buckets.at(-1).at_ms : 0, marks.length ? marks.at(-1).at_ms : 0);
  const from = newest - CHART_MS;
  while (buckets.length && buckets[0].at_ms < from) buckets.shift();
  while (marks.length && marks[0].at_ms < from) marks.shift();
  const column = (of) => buckets.map(of);
  const at = column((bucket) => bucket.at_ms / 1000);
  charts.throughput.setData([at, column((b) => b.ended * BUCKETS_PER_S), column((b) => (b.failed ? b.failed * BUCKETS_PER_S : null))]);
  charts.latency.setData([at, column((b) => b.p50_us), column((b) => b.max_us)]);
}

// The stream

function take(event) {
  if (event.event === "topology") showTopology(event.body);
  if (event.event === "mark") showMark(event.body);
  if (event.event === "load") {
    for (const bucket of event.body) buckets.push(bucket);
    if (buckets.length > BUCKETS_MAX) buckets.splice(0, buckets.length - BUCKETS_MAX);
  }
}

async function listen() {
  const silence = new AbortController();
  const restart = () => setTimeout(() => silence.abort(new Error("the console is silent")), SILENCE_MS);
  let timer = restart();
  const response = await fetch("/api/events", { headers: { Authorization: `Bearer ${TOKEN}` }, signal: silence.signal });
  if (!response.ok) throw new Error((await response.json()).error);
  problem("");
  // What came before is sent again.
  buckets.length = 0;
  marks.length = 0;
  byId("events").replaceChildren();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    clearTimeout(timer);
    timer = restart();
    if (done) throw new Error("the console has ended");
    const messages = (rest + value).split("\n\n");
    rest = messages.pop();
    for (const message of messages) {
      if (message.startsWith("data: ")) take(JSON.parse(message.slice(6)));
    }
  }
}

async function listenAlways() {
  for (;;) {
    try {
      await listen();
    } catch (error) {
      setText(byId("connection"), "not connected");
      problem(`${error.message}; trying again`);
    }
    await new Promise((resolve) => setTimeout(resolve, RECONNECT_MS));
  }
}

// Forms

async function setLoad(opsPerS, readsPercent) {
  try {
    await request("/api/load", { ops_per_s: opsPerS, reads_percent: readsPercent });
    byId("load-said").textContent = opsPerS ? `${opsPerS} operations per second are asked for` : "no load";
  } catch (error) {
    byId("load-said").textContent = error.message;
  }
}

byId("load").addEventListener("submit", (event) => {
  event.preventDefault();
  const form = event.target;
  setLoad(Number(form.ops_per_s.value), Number(form.reads_percent.value));
});
byId("load-stop").addEventListener("click", () => setLoad(0, 0));

// What every replica has of this key; asked again until another key is.
let followed = null;

async function follow(key) {
  followed = key;
  const table = byId("replicas");
  table.hidden = !key;
  setText(table.caption, `${key} at each replica`);
  while (key && followed === key) {
    let rows = [];
    try {
      rows = (await request("/api/key", { do: "each", key })).replicas;
    } catch (error) {
      setText(byId("key-said"), error.message);
    }
    if (followed !== key) return;
    showReplicas(table.tBodies[0], rows);
    await new Promise((resolve) => setTimeout(resolve, FOLLOW_MS));
    while (document.hidden) await new Promise((resolve) => setTimeout(resolve, FOLLOW_MS));
  }
}

function showReplicas(body, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, at) => {
    const shown = body.rows[at] || body.insertRow();
    if (!shown.cells.length) shown.append(element("th", { scope: "row" }), element("td"));
    setText(shown.cells[0], row.at);
    setText(shown.cells[1], row.error || (row.value === null ? "no such key" : row.value));
    shown.className = row.error ? "down" : "";
  });
}

byId("keys").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const what = event.submitter ? event.submitter.value : "get";
  if (what === "each") {
    if (followed !== form.key.value) follow(form.key.value);
    return;
  }
  const asked = { do: what, key: form.key.value };
  if (what === "set") asked.value = form.value.value;
  try {
    const said = await request("/api/key", asked);
    if (what === "delete") byId("key-said").textContent = said.was_there ? "deleted" : "there was no such key";
    else byId("key-said").textContent = said.value === null ? "there is no such key" : `${asked.key} = ${said.value}`;
  } catch (error) {
    byId("key-said").textContent = error.message;
  }
});

// Another console's address was pasted: only what follows # differs.
addEventListener("hashchange", () => location.reload());
makeCharts();
setInterval(showCharts, 250);
addEventListener("resize", makeCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", makeCharts);
listenAlways();
