"""Clicks through the console at the address given, as its user would, in Debian's Chromium."""

import sys

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

TIMEOUT_S = 120
HOST = "node/3"
# Whether the chart has a pixel of the faults' color where the fault was.
IS_DRAWN = """
const chart = charts.throughput;
const mark = marks.find((mark) => mark.text === "kill node/3");
if (!mark) return false;
showCharts();
const x = Math.round(chart.valToPos(mark.at_ms / 1000, "x", true));
const { top, height } = chart.bbox;
const pixels = chart.ctx.getImageData(x - 1, top + height / 2, 3, 1).data;
const [r, g, b] = color("--bad").match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
for (let at = 0; at < pixels.length; at += 4) {
  const near = (value, wanted) => Math.abs(value - wanted) < 60;
  if (near(pixels[at], r) && near(pixels[at + 1], g) && near(pixels[at + 2], b)) return true;
}
return false;
"""


# Texts that have too little contrast with what is behind them; WCAG asks for 4.5.
PALE_TEXTS = """
const channels = (color) => color.match(/[0-9.]+/g).map(Number);
const luminance = (color) => {
  const linear = channels(color).slice(0, 3).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const isClear = (color) => channels(color).length === 4 && channels(color)[3] === 0;
const behind = (node) => {
  const back = getComputedStyle(node).backgroundColor;
  return isClear(back) && node.parentElement ? behind(node.parentElement) : back;
};
const pale = [];
for (const node of document.body.querySelectorAll("*")) {
  const hasText = [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim());
  if (!hasText && node.tagName !== "INPUT" || node.disabled || !node.checkVisibility() || node.closest("svg")) continue;
  const [a, b] = [getComputedStyle(node).color, behind(node)].map(luminance);
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) pale.push(`${node.tagName} ${node.className} ${contrast.toFixed(2)}: ${node.textContent.slice(0, 40)}`);
}
return [luminance(getComputedStyle(document.body).backgroundColor), pale];
"""
# The colors in which the charts and the topology are drawn, and those of the page.
DRAWN_COLORS = """
const chart = charts.throughput;
const shown = (color) => Object.assign(document.createElement("p"), { style: `color: ${color}` }).style.color;
const drawn = [chart.series[1].stroke, chart.axes[0].stroke].map((stroke) => stroke(chart, 1));
const circle = getComputedStyle(document.querySelector("#topology circle")).fill;
return [[...drawn.map(shown), circle], [color("--accent"), color("--quiet"), color("--card")].map(shown)];
"""


def main(part, url):
    options = webdriver.ChromeOptions()
    for option in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1300,1400"]:
        options.add_argument(option)
    browser = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    try:
        PARTS[part](browser, url)
        problems = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
        assert not problems, problems
    finally:
        browser.quit()


def click_through(browser, url):
    wait = WebDriverWait(browser, TIMEOUT_S)
    find = browser.find_element
    browser.get(url)
    card = wait.until(lambda _: find(By.CSS_SELECTOR, f"[data-host='{HOST}']"))
    state = lambda: card.find_element(By.CLASS_NAME, "state").text
    wait.until(lambda _: state() == "running")
    assert len(browser.find_elements(By.CLASS_NAME, "host")) == 3
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".leads:not([hidden])"))

    start_load(browser, wait)

    # With the keyboard, as somebody without a mouse.
    kill = find(By.CSS_SELECTOR, f"[aria-label='Kill {HOST}']")
    browser.execute_script("arguments[0].focus()", kill)
    kill.send_keys(Keys.ENTER)
    wait.until(lambda _: state() == "killed")
    events = lambda: [item.text for item in browser.find_elements(By.CSS_SELECTOR, "#events .fault")]
    wait.until(lambda _: any(f"kill {HOST}" in text for text in events()))
    wait.until(lambda _: browser.execute_script(IS_DRAWN))
    find(By.CSS_SELECTOR, f"[aria-label='Restart {HOST}']").click()
    wait.until(lambda _: state() == "running")

    find(By.NAME, "key").send_keys("greeting")
    find(By.NAME, "value").send_keys("<b>hello</b>")
    said = lambda: find(By.ID, "key-said").text
    find(By.CSS_SELECTOR, "#keys [value=set]").click()
    wait.until(lambda _: said() == "greeting = <b>hello</b>")
    find(By.CSS_SELECTOR, "#keys [value=each]").click()
    replicas = lambda: [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#replicas td")]
    wait.until(lambda _: replicas() == ["<b>hello</b>"] * 3)
    # It is asked again by itself; a replica that is lost says why.
    find(By.CSS_SELECTOR, f"[aria-label='Kill {HOST}']").click()
    wait.until(lambda _: len(browser.find_elements(By.CSS_SELECTOR, "#replicas tr.down")) == 1)
    assert replicas().count("<b>hello</b>") == 2, replicas()
    find(By.CSS_SELECTOR, f"[aria-label='Restart {HOST}']").click()
    wait.until(lambda _: replicas() == ["<b>hello</b>"] * 3)
    find(By.CSS_SELECTOR, "#keys [value=delete]").click()
    wait.until(lambda _: said() == "deleted")


def start_load(browser, wait):
    browser.find_element(By.CSS_SELECTOR, "#load [type=submit]").click()
    wait.until(lambda _: browser.execute_script("return buckets.some((bucket) => bucket.ended > 0)"))


def card_of(browser, wait, host):
    card = wait.until(lambda _: browser.find_element(By.CSS_SELECTOR, f"[data-host='{host}']"))
    wait.until(lambda _: card.find_element(By.CLASS_NAME, "state").text == "running")
    return card


def look_at_themes(browser, url):
    """Everything can be read in both themes, also when the setting changes while the page is open."""
    wait = WebDriverWait(browser, TIMEOUT_S)
    for theme in ["dark", "light", "dark"]:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        if browser.current_url != url:
            browser.get(url)
        card_of(browser, wait, HOST)
        luminance, pale = browser.execute_script(PALE_TEXTS)
        assert (luminance < 0.1) == (theme == "dark"), (theme, luminance)
        assert not pale, (theme, pale)
        drawn, expected = browser.execute_script(DRAWN_COLORS)
        assert drawn == expected, (theme, drawn, expected)
    # A chart without data has no place for the line.
    start_load(browser, wait)
    kill = browser.find_element(By.CSS_SELECTOR, f"[aria-label='Kill {HOST}']")
    kill.click()
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, "#events .fault"))
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".host.down"))
    assert not browser.execute_script(PALE_TEXTS)[1]
    wait.until(lambda _: browser.execute_script(IS_DRAWN))


def break_links(browser, url):
    """A host's link is cut, and its packets are delayed, by the form on its card."""
    wait = WebDriverWait(browser, TIMEOUT_S)
    find = browser.find_element
    browser.get(url)
    host = "replica/1"
    card = card_of(browser, wait, host)
    start_load(browser, wait)
    find(By.NAME, "key").send_keys("greeting")
    find(By.NAME, "value").send_keys("hello")
    find(By.CSS_SELECTOR, "#keys [value=set]").click()
    find(By.CSS_SELECTOR, "#keys [value=each]").click()
    rows = lambda: {row.find_element(By.TAG_NAME, "th").text: row.find_element(By.TAG_NAME, "td").text
                    for row in browser.find_elements(By.CSS_SELECTOR, "#replicas tbody tr")}
    wait.until(lambda _: list(rows().values()) == ["hello"] * 3)
    events = lambda: [item.text for item in browser.find_elements(By.CSS_SELECTOR, "#events .fault")]

    card.find_element(By.CSS_SELECTOR, "details.link summary").click()
    form = card.find_element(By.CSS_SELECTOR, "details.link form")
    cut, apply = form.find_element(By.NAME, "cut"), form.find_element(By.CSS_SELECTOR, "[type=submit]")
    delay = form.find_element(By.NAME, "delay")
    # First, because the load's clients of a replica that does not answer go to another one, and stay there.
    delay.clear()
    delay.send_keys("300")
    apply.click()
    wait.until(lambda _: any(host in text and "300" in text for text in events()))
    marked_ms = browser.execute_script("return marks.at(-1).at_ms")
    slow = f"return buckets.some((bucket) => bucket.at_ms > {marked_ms} && bucket.max_us >= 300000)"
    wait.until(lambda _: browser.execute_script(slow))
    delay.clear()
    delay.send_keys("0")

    cut.click()
    apply.click()
    wait.until(lambda _: any(host in text and "cut" in text for text in events()))
    # It cannot ask the acceptors, so it does not answer.
    wait.until(lambda _: rows().get(host) not in (None, "hello"))
    assert list(rows().values()).count("hello") == 2, rows()
    cut.click()
    apply.click()
    wait.until(lambda _: list(rows().values()) == ["hello"] * 3)

    # Between it and one other host.
    Select(form.find_element(By.NAME, "to")).select_by_visible_text("acceptor/1")
    cut.click()
    apply.click()
    wait.until(lambda _: any("acceptor/1" in text for text in events()))
    assert find(By.ID, "problem").get_attribute("hidden"), find(By.ID, "problem").text


PARTS = {"clicks": click_through, "themes": look_at_themes, "links": break_links}
main(*sys.argv[1:])
