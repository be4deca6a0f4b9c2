//! `/metrics` for Prometheus: gauges, their text form, and the HTTP server.

use std::net::TcpListener;

use anyhow::{anyhow, Context, Result};
use prometheus::{Encoder, IntGaugeVec, Opts, TextEncoder};
use tiny_http::{Header, Response, Server};

pub use prometheus::Registry;

/// Registers a gauge with a value for each list of label values.
pub fn add<'a>(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    values: impl IntoIterator<Item = (&'a [&'a str], i64)>,
) -> Result<()> {
    let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
    for (of, value) in values {
        gauge.with_label_values(of).set(value);
    }
    registry.register(Box::new(gauge))?;
    Ok(())
}

/// Gauges take signed numbers.
pub fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Returns the text form of everything registered.
pub fn text(registry: &Registry) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(text)
}

/// Serves the output of `encode` at `/metrics`, on a separate thread, until it is stopped or the process ends.
pub fn serve(
    listener: TcpListener,
    is_over: impl Fn() -> bool + Send + 'static,
    encode: impl Fn() -> Result<Vec<u8>> + Send + 'static,
) -> Result<()> {
    let server = Server::from_listener(listener, None).map_err(|e| anyhow!("metrics: {e}"))?;
    let serve = move || {
        for request in server.incoming_requests() {
            if is_over() {
                return;
            }
            let response = match (request.url(), encode()) {
                ("/metrics", Ok(text)) => Response::from_data(text),
                ("/metrics", Err(error)) => {
                    Response::from_string(error.to_string()).with_status_code(500)
                }
                _ => Response::from_string("see /metrics\n").with_status_code(404),
            };
            let kind = Header::from_bytes("Content-Type", "text/plain; version=0.0.4");
            let response = kind.into_iter().fold(response, Response::with_header);
            if let Err(error) = request.respond(response) {
                tracing::debug!("metrics: {error}");
            }
        }
    };
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(serve)
        .context("metrics thread")?;
    Ok(())
}
