//! `/metrics` for Prometheus: gauges, their text form, and the HTTP server, which also serves `/live` and `/ready`.

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

/// What a process says about itself over HTTP.
pub trait Source: Send + 'static {
    /// The metrics in their text form.
    fn metrics(&self) -> Result<Vec<u8>>;

    /// Fails if the process should be restarted.
    fn live(&self) -> Result<()>;

    /// Fails while the process should get no work.
    fn ready(&self) -> Result<()>;
}

/// Of a process whose metrics come from its main loop: it is live and ready while that answers.
impl<F: Fn() -> Result<Vec<u8>> + Send + 'static> Source for F {
    fn metrics(&self) -> Result<Vec<u8>> {
        self()
    }

    fn live(&self) -> Result<()> {
        self().map(drop)
    }

    fn ready(&self) -> Result<()> {
        self().map(drop)
    }
}

/// The answer to one request: status and text.
fn answer(source: &impl Source, path: &str) -> (u16, Vec<u8>) {
    let health = |said: Result<()>, good: &str| match said {
        Ok(()) => (200, format!("{good}\n").into_bytes()),
        Err(error) => (503, format!("not {good}: {error:#}\n").into_bytes()),
    };
    match path {
        "/metrics" => match source.metrics() {
            Ok(text) => (200, text),
            Err(error) => (500, error.to_string().into_bytes()),
        },
        "/live" => health(source.live(), "live"),
        "/ready" => health(source.ready(), "ready"),
        _ => (404, b"see /metrics, /live, /ready\n".to_vec()),
    }
}

/// Serves `/metrics`, `/live` and `/ready`, on a separate thread, until `is_over` or the process ends.
pub fn serve(
    listener: TcpListener,
    is_over: impl Fn() -> bool + Send + 'static,
    source: impl Source,
) -> Result<()> {
    let server = Server::from_listener(listener, None).map_err(|e| anyhow!("metrics: {e}"))?;
    let serve = move || {
        for request in server.incoming_requests() {
            if is_over() {
                return;
            }
            // Kubernetes and load balancers may append a query.
            let path = request.url().split('?').next().unwrap_or_default();
            let (status, text) = answer(&source, path);
            let response = Response::from_data(text).with_status_code(status);
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

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    struct Loading;

    impl Source for Loading {
        fn metrics(&self) -> Result<Vec<u8>> {
            Ok(b"a 1\n".to_vec())
        }
        fn live(&self) -> Result<()> {
            Ok(())
        }
        fn ready(&self) -> Result<()> {
            bail!("the store is loading")
        }
    }

    #[test]
    fn health_is_a_status_and_one_line() {
        assert_eq!(answer(&Loading, "/metrics"), (200, b"a 1\n".to_vec()));
        assert_eq!(answer(&Loading, "/live"), (200, b"live\n".to_vec()));
        let said = b"not ready: the store is loading\n".to_vec();
        assert_eq!(answer(&Loading, "/ready"), (503, said));
        assert_eq!(answer(&Loading, "/").0, 404);
        let silent = || bail!("busy");
        let said = b"not live: busy\n".to_vec();
        assert_eq!(answer(&silent, "/live"), (503, said));
    }
}
