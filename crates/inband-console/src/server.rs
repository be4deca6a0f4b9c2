//! The HTTP server. Files of the page are public; everything else needs the token, which is in the printed address.
//!
//! The token follows `#` in the address, so a browser never sends it in a URL. Requests must name this server in `Host`,
//! and in `Origin` if they have one: so no page of another site, nor a name that resolves to loopback, reaches it.

use std::io::{Cursor, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, Context, Result};
use inband_host::program::in_words;
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::{json, Value};
use subtle::ConstantTimeEq;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::cluster::{Action, Cluster};
use crate::feed::{Feed, PAGES_MAX};
use crate::keys::{check_key, check_value, Store};
use crate::load::{Load, Rate};

/// Longest body of a request.
const BODY_LEN_MAX: u64 = 16 << 10;
/// Requests served at the same time, besides the streams of open pages.
const REQUESTS_MAX: usize = 16;
/// How often a stream without events says that it lives, and so notices that the page is closed.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// What browsers may do with the page: nothing but what is served here.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

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
    Get { key: String },
    Set { key: String, value: String },
    Delete { key: String },
}

struct Console {
    token: String,
    /// Acceptable values of `Host`.
    names: Vec<String>,
    cluster: Arc<Cluster>,
    feed: Arc<Feed>,
    load: Arc<Load>,
    requests: AtomicUsize,
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
    let server =
        Server::from_listener(listener, None).map_err(|error| anyhow!("console: {error}"))?;
    let console = Arc::new(Console {
        token: token.to_owned(),
        names: names_of(address),
        cluster,
        feed,
        load,
        requests: AtomicUsize::new(0),
    });
    let accept = move || {
        for request in server.incoming_requests() {
            if console.requests.fetch_add(1, SeqCst) >= REQUESTS_MAX + PAGES_MAX {
                console.requests.fetch_sub(1, SeqCst);
                answer(
                    request,
                    503,
                    &json!({"error": "too many requests at the same time"}),
                );
                continue;
            }
            let console = Arc::clone(&console);
            let handled = thread::Builder::new()
                .name("request".into())
                .spawn(move || {
                    console.handle(request);
                    console.requests.fetch_sub(1, SeqCst);
                });
            if let Err(error) = handled {
                tracing::warn!("console: {error}");
            }
        }
    };
    thread::Builder::new()
        .name("http".into())
        .spawn(accept)
        .context("http thread")?;
    Ok(())
}

fn names_of(address: SocketAddr) -> Vec<String> {
    vec![address.to_string(), format!("localhost:{}", address.port())]
}

fn header(request: &Request, name: &'static str) -> Option<String> {
    let found = request
        .headers()
        .iter()
        .find(|header| header.field.equiv(name));
    found.map(|header| header.value.as_str().to_owned())
}

fn respond(request: Request, status: u16, kind: &str, text: &str) {
    let mut response = Response::new(
        status.into(),
        Vec::new(),
        Cursor::new(text.as_bytes()),
        Some(text.len()),
        None,
    );
    let headers = [
        ("Content-Type", kind),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Content-Security-Policy", POLICY),
    ];
    for (name, value) in headers {
        if let Ok(header) = Header::from_bytes(name, value) {
            response.add_header(header);
        }
    }
    // The browser may have gone.
    let _ = request.respond(response);
}

fn answer(request: Request, status: u16, body: &Value) {
    respond(request, status, "application/json", &body.to_string());
}

fn body_of<T: DeserializeOwned>(request: &mut Request) -> Result<T, Refusal> {
    let mut body = Vec::new();
    let read = request
        .as_reader()
        .take(BODY_LEN_MAX + 1)
        .read_to_end(&mut body);
    read.map_err(|error| Refusal(400, error.to_string()))?;
    if body.len() as u64 > BODY_LEN_MAX {
        return Err(Refusal(
            413,
            format!("the request is longer than {BODY_LEN_MAX} bytes"),
        ));
    }
    serde_json::from_slice(&body).map_err(|error| Refusal(400, error.to_string()))
}

impl Console {
    fn handle(&self, mut request: Request) {
        match self.result_of(&mut request) {
            Ok(Served::File(kind, text)) => respond(request, 200, kind, text),
            Ok(Served::Json(body)) => answer(request, 200, &body),
            Ok(Served::Events) => self.stream(request),
            Err(Refusal(status, why)) => answer(request, status, &json!({"error": why})),
        }
    }

    fn result_of(&self, request: &mut Request) -> Result<Served, Refusal> {
        let host = header(request, "Host").unwrap_or_default();
        if !self.names.contains(&host) {
            return Err(Refusal(
                403,
                format!("the request is for {host:?}, this is {}", self.names[0]),
            ));
        }
        if let Some(origin) = header(request, "Origin") {
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
        let path = request.url().to_owned();
        if let Some((_, kind, text)) = FILES.iter().find(|(file, ..)| *file == path) {
            return match request.method() {
                Method::Get => Ok(Served::File(kind, text)),
                _ => Err(Refusal(405, "GET only".into())),
            };
        }
        let given = header(request, "Authorization").unwrap_or_default();
        let expected = format!("Bearer {}", self.token);
        if !bool::from(given.as_bytes().ct_eq(expected.as_bytes())) {
            return Err(Refusal(
                401,
                "open the address that `inband console` has printed, with what follows #".into(),
            ));
        }
        let failed = |error: anyhow::Error| Refusal(409, in_words(&error));
        match (request.method(), &*path) {
            (Method::Get, "/api/events") => Ok(Served::Events),
            (Method::Get, "/api/status") => self.cluster.status().map(Served::Json).map_err(failed),
            (Method::Post, "/api/action") => {
                let action: Action = body_of(request)?;
                self.act(&action).map(Served::Json).map_err(failed)
            }
            (Method::Post, "/api/key") => {
                let asked: KeyRequest = body_of(request)?;
                self.key(&asked).map(Served::Json).map_err(failed)
            }
            (Method::Post, "/api/load") => {
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
        let (KeyRequest::Get { key } | KeyRequest::Set { key, .. } | KeyRequest::Delete { key }) =
            asked;
        check_key(key)?;
        let store = Store::of(&self.cluster.status()?).context("this system has no keys")?;
        let mut session = store.connect_to_any()?;
        Ok(match asked {
            KeyRequest::Get { key } => json!({"value": session.get(key)?}),
            KeyRequest::Set { key, value } => {
                check_value(value)?;
                session.set(key, value)?;
                json!({"value": value})
            }
            KeyRequest::Delete { key } => json!({"was_there": session.delete(key)?}),
        })
    }

    /// The events, for as long as the page is open.
    fn stream(&self, request: Request) {
        let Some((before, events)) = self.feed.open() else {
            let why = format!("{PAGES_MAX} pages are open; close one of them");
            return answer(request, 503, &json!({"error": why}));
        };
        let mut page = request.into_writer();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n";
        let mut send = |text: &str| page.write_all(text.as_bytes()).and_then(|()| page.flush());
        let mut sent = send(head);
        for event in before {
            sent = sent.and_then(|()| send(&format!("data: {event}\n\n")));
        }
        while sent.is_ok() {
            sent = match events.recv_timeout(KEEP_ALIVE_INTERVAL) {
                Ok(event) => send(&format!("data: {event}\n\n")),
                Err(RecvTimeoutError::Timeout) => send(": alive\n\n"),
                Err(RecvTimeoutError::Disconnected) => return,
            };
        }
    }
}

/// What a request gets.
enum Served {
    File(&'static str, &'static str),
    Json(Value),
    Events,
}
