//! The HTTP server. Files of the page are public; everything else needs the token, which is in the printed address.
//!
//! The token follows `#` in the address, so a browser never sends it in a URL. Requests must name this server in `Host`,
//! and in `Origin` if they have one: so no page of another site, nor a name that resolves to loopback, reaches it.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use inband_host::program::in_words;
use inband_http::{Answer, Limits, Request, Response};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::{json, Value};
use subtle::ConstantTimeEq;

use crate::cluster::{Action, Cluster};
use crate::feed::{Feed, PAGES_MAX};
use crate::keys::{check_key, check_value, Store};
use crate::load::{Load, Rate};

const LIMITS: Limits = Limits {
    // Requests besides the streams of open pages.
    connections: PAGES_MAX + 16,
    body_len: 16 << 10,
};
/// How often a stream without events says that it lives, and so notices that the page is closed.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// What browsers may do with the page: nothing but what is served here.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(&str, &str); 4] = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Content-Security-Policy", POLICY),
];
const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n";

/// Files of the page: path, content type, text.
const FILES: [(&str, &str, &str); 5] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("../page/index.html"),
    ),
    (
        "/console.js",
        "text/javascript; charset=utf-8",
        include_str!("../page/console.js"),
    ),
    (
        "/console.css",
        "text/css; charset=utf-8",
        include_str!("../page/console.css"),
    ),
    (
        "/uPlot.js",
        "text/javascript; charset=utf-8",
        include_str!("../page/uPlot.iife.min.js"),
    ),
    (
        "/uPlot.css",
        "text/css; charset=utf-8",
        include_str!("../page/uPlot.min.css"),
    ),
];

/// A random token that a page must present.
pub fn new_token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// A request about a key of the store.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
enum KeyRequest {
    Get {
        key: String,
    },
    Set {
        key: String,
        value: String,
    },
    Delete {
        key: String,
    },
    /// What every replica has.
    Each {
        key: String,
    },
}

struct Console {
    token: String,
    /// Acceptable values of `Host`.
    names: Vec<String>,
    cluster: Arc<Cluster>,
    feed: Arc<Feed>,
    load: Arc<Load>,
}

/// Why a request is refused: HTTP's status, and the message.
struct Refusal(u16, String);

/// Serves on threads of its own until the process ends.
pub fn serve(
    listener: TcpListener,
    token: &str,
    cluster: Arc<Cluster>,
    feed: Arc<Feed>,
    load: Arc<Load>,
) -> Result<()> {
    let address = listener.local_addr()?;
    let console = Console {
        token: token.to_owned(),
        names: names_of(address),
        cluster,
        feed,
        load,
    };
    let handle = move |request: &Request| console.handle(request);
    inband_http::serve(listener, "http", LIMITS, || false, handle).context("http thread")
}

fn names_of(address: SocketAddr) -> Vec<String> {
    vec![address.to_string(), format!("localhost:{}", address.port())]
}

fn answer(status: u16, kind: &'static str, body: impl Into<Vec<u8>>) -> Answer {
    Answer::Whole(Response {
        headers: &HEADERS,
        ..Response::new(status, kind, body)
    })
}

fn json_answer(status: u16, body: &Value) -> Answer {
    answer(status, "application/json", body.to_string())
}

fn body_of<T: DeserializeOwned>(request: &Request) -> Result<T, Refusal> {
    serde_json::from_slice(&request.body).map_err(|error| Refusal(400, error.to_string()))
}

impl Console {
    fn handle(&self, request: &Request) -> Answer {
        match self.result_of(request) {
            Ok(Served::File(kind, text)) => answer(200, kind, text),
            Ok(Served::Json(body)) => json_answer(200, &body),
            Ok(Served::Events) => self.stream(),
            Err(Refusal(status, why)) => json_answer(status, &json!({"error": why})),
        }
    }

    fn result_of(&self, request: &Request) -> Result<Served, Refusal> {
        let host = request.header("Host").unwrap_or_default();
        if !self.names.iter().any(|name| name == host) {
            let own = &self.names[0];
            return Err(Refusal(
                403,
                format!("the request is for {host:?}, this is {own}"),
            ));
        }
        if let Some(origin) = request.header("Origin") {
            if !self
                .names
                .iter()
                .any(|name| origin == format!("http://{name}"))
            {
                return Err(Refusal(
                    403,
                    format!("requests from {origin:?} are refused"),
                ));
            }
        }
        let path = &*request.path;
        let method = &*request.method;
        if let Some((_, kind, text)) = FILES.iter().find(|(file, ..)| *file == path) {
            return match method {
                "GET" => Ok(Served::File(kind, text)),
                _ => Err(Refusal(405, "GET only".into())),
            };
        }
        let given = request.header("Authorization").unwrap_or_default();
        let expected = format!("Bearer {}", self.token);
        if !bool::from(given.as_bytes().ct_eq(expected.as_bytes())) {
            let why = "open the address that `inband console` has printed, with what follows #";
            return Err(Refusal(401, why.into()));
        }
        let failed = |error: anyhow::Error| Refusal(409, in_words(&error));
        match (method, path) {
            ("GET", "/api/events") => Ok(Served::Events),
            ("GET", "/api/status") => self.cluster.status().map(Served::Json).map_err(failed),
            ("POST", "/api/action") => {
                let action: Action = body_of(request)?;
                self.act(&action).map(Served::Json).map_err(failed)
            }
            ("POST", "/api/key") => {
                let asked: KeyRequest = body_of(request)?;
                self.key(&asked).map(Served::Json).map_err(failed)
            }
            ("POST", "/api/load") => {
                let rate: Rate = body_of(request)?;
                self.load.set(rate).map_err(failed)?;
                Ok(Served::Json(json!({"ops_per_s": rate.ops_per_s})))
            }
            _ => Err(Refusal(404, format!("there is no {path}"))),
        }
    }

    fn act(&self, action: &Action) -> Result<Value> {
        // Before it is done: its effect is to be seen after the mark.
        self.feed.mark(action.in_words(), action.is_fault());
        let host = self.cluster.act(action).inspect_err(|error| {
            self.feed.mark(
                format!("{} failed: {}", action.in_words(), in_words(error)),
                false,
            );
        })?;
        Ok(json!({"host": host}))
    }

    fn key(&self, asked: &KeyRequest) -> Result<Value> {
        let (KeyRequest::Get { key }
        | KeyRequest::Set { key, .. }
        | KeyRequest::Delete { key }
        | KeyRequest::Each { key }) = asked;
        check_key(key)?;
        let status = self.cluster.status()?;
        let store = Store::of(&status).context("this system has no keys")?;
        let access = &self.cluster.access;
        if let KeyRequest::Each { key } = asked {
            let answers = store.at_each(access, key).into_iter();
            let answers = answers.map(|(address, said)| match said {
                Ok(value) => json!({"at": name_of(&status, address), "value": value}),
                Err(error) => json!({"at": name_of(&status, address), "error": in_words(&error)}),
            });
            return Ok(json!({"replicas": answers.collect::<Vec<_>>()}));
        }
        if let KeyRequest::Set { value, .. } = asked {
            check_value(value)?;
        }
        store.with_any(access, |session| {
            Ok(match asked {
                KeyRequest::Get { key } => json!({"value": session.get(key)?}),
                KeyRequest::Set { key, value } => {
                    session.set(key, value)?;
                    json!({"value": value})
                }
                KeyRequest::Delete { key } => json!({"was_there": session.delete(key)?}),
                KeyRequest::Each { .. } => unreachable!("it is answered above"),
            })
        })
    }

    /// The events, for as long as the page is open and reads them.
    fn stream(&self) -> Answer {
        let Some((before, events)) = self.feed.open() else {
            let why = format!("{PAGES_MAX} pages are open; close one of them");
            return json_answer(503, &json!({"error": why}));
        };
        Answer::Stream(Box::new(move |page| {
            let sent = send(page, STREAM_HEAD);
            let event =
                |page: &mut TcpStream, event: &str| send(page, &format!("data: {event}\n\n"));
            let mut sent = before
                .iter()
                .fold(sent, |sent, one| sent.and_then(|()| event(page, one)));
            while sent.is_ok() {
                sent = match events.recv_timeout(KEEP_ALIVE_INTERVAL) {
                    Ok(one) => event(page, &one),
                    Err(RecvTimeoutError::Timeout) => send(page, ": alive\n\n"),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
            }
        }))
    }
}

/// Returns the name of the host with this address for clients, otherwise the address.
fn name_of(status: &Value, address: SocketAddr) -> String {
    let address = address.to_string();
    let mut hosts = status["hosts"].as_array().into_iter().flatten();
    let host = hosts.find(|host| host["resp"] == address.as_str());
    let name = host.and_then(|host| host["name"].as_str());
    name.map_or(address, str::to_owned)
}

fn send(page: &mut TcpStream, text: &str) -> io::Result<()> {
    page.write_all(text.as_bytes())
}

/// What a request gets.
enum Served {
    File(&'static str, &'static str),
    Json(Value),
    Events,
}
