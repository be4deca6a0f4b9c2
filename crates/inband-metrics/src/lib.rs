//! `/metrics` for Prometheus: gauges, their text form, and the HTTP server, which also serves `/live` and `/ready`.
//!
//! A registry is filled anew for each scrape, from a status, so that no metric outlives what it describes:
//!
//! ```
//! let registry = inband_metrics::Registry::new();
//! let answering = [(&["store"][..], 3)];
//! inband_metrics::add(&registry, "inband_hosts", "Hosts that answer.", &["system"], answering)?;
//! let text = String::from_utf8(inband_metrics::text(&registry)?)?;
//! assert!(text.contains("inband_hosts{system=\"store\"} 3"));
//! # Ok::<(), anyhow::Error>(())
//! ```

use std::collections::{BTreeMap, HashMap};
use std::net::TcpListener;

use anyhow::{Context, Result};
use inband_http::{self as http, Answer, Limits, Request, Response};
use prometheus::core::{Atomic, AtomicF64, AtomicI64, Collector, Desc, GenericGaugeVec};
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{CounterVec, Encoder, Opts, TextEncoder};

pub use prometheus::Registry;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4";
/// Several at the same time: a check that waits for a majority must not delay the others.
const LIMITS: Limits = Limits {
    connections: 16,
    body_len: 0,
};

/// Registers a gauge with a value for each list of label values.
pub fn add<'a>(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    values: impl IntoIterator<Item = (&'a [&'a str], i64)>,
) -> Result<()> {
    add_gauges::<AtomicI64>(registry, (name, help), labels, values)
}

/// Registers a gauge of numbers that need not be whole, such as seconds.
pub fn add_fractions<'a>(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    values: impl IntoIterator<Item = (&'a [&'a str], f64)>,
) -> Result<()> {
    add_gauges::<AtomicF64>(registry, (name, help), labels, values)
}

fn add_gauges<'a, N: Atomic + 'static>(
    registry: &Registry,
    (name, help): (&str, &str),
    labels: &[&str],
    values: impl IntoIterator<Item = (&'a [&'a str], N::T)>,
) -> Result<()> {
    let gauge = GenericGaugeVec::<N>::new(Opts::new(name, help), labels)?;
    for (of, value) in values {
        gauge.with_label_values(of).set(value);
    }
    registry.register(Box::new(gauge))?;
    Ok(())
}

/// Registers a counter with a value for each list of label values.
pub fn add_counters<'a>(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    values: impl IntoIterator<Item = (&'a [&'a str], f64)>,
) -> Result<()> {
    let counter = CounterVec::new(Opts::new(name, help), labels)?;
    for (of, value) in values {
        counter.with_label_values(of).inc_by(value);
    }
    registry.register(Box::new(counter))?;
    Ok(())
}

/// A histogram that was filled elsewhere.
#[derive(Debug)]
pub struct Filled {
    /// Values of its labels.
    pub of: Vec<String>,
    /// Upper bounds, and how many observations are in each bucket: not cumulative.
    pub buckets: Vec<(f64, u64)>,
    /// Observations above all bounds.
    pub beyond: u64,
    /// Sum of all observations.
    pub sum: f64,
}

impl Filled {
    fn metric(self, labels: &[&str]) -> Metric {
        let mut below = 0;
        let bucket = |(bound, count): (f64, u64)| {
            below += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(below);
            bucket
        };
        let buckets: Vec<Bucket> = self.buckets.into_iter().map(bucket).collect();
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_count(below + self.beyond);
        histogram.set_sample_sum(self.sum);
        let label = |(name, value): (&&str, String)| {
            let mut label = LabelPair::default();
            label.set_name((*name).to_owned());
            label.set_value(value);
            label
        };
        let mut metric = Metric::from_label(labels.iter().zip(self.of).map(label).collect());
        metric.set_histogram(histogram);
        metric
    }
}

struct Histograms {
    description: Desc,
    family: MetricFamily,
}

impl Collector for Histograms {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.description]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        vec![self.family.clone()]
    }
}

/// Registers histograms that were filled elsewhere.
pub fn add_histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    filled: impl IntoIterator<Item = Filled>,
) -> Result<()> {
    let names = labels.iter().map(|label| (*label).to_owned()).collect();
    let description = Desc::new(name.into(), help.into(), names, HashMap::new())?;
    let mut family = MetricFamily::default();
    family.set_name(name.into());
    family.set_help(help.into());
    family.set_field_type(MetricType::HISTOGRAM);
    let metrics = filled.into_iter().map(|filled| filled.metric(labels));
    family.set_metric(metrics.collect());
    if !family.get_metric().is_empty() {
        registry.register(Box::new(Histograms {
            description,
            family,
        }))?;
    }
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

/// Gauges of one node, whose names begin with a prefix.
pub struct NodeGauges<'a> {
    registry: Registry,
    prefix: &'static str,
    node: &'a str,
}

impl<'a> NodeGauges<'a> {
    pub fn new(prefix: &'static str, node: &'a str) -> NodeGauges<'a> {
        NodeGauges {
            registry: Registry::new(),
            prefix,
            node,
        }
    }

    fn add_of(&self, name: &str, help: &str, labels: &[&str], of: &[&str], n: i64) -> Result<()> {
        let name = format!("{}_{name}", self.prefix);
        add(&self.registry, &name, help, labels, [(of, n)])
    }

    pub fn add(&self, name: &str, help: &str, value: u64) -> Result<()> {
        self.add_of(name, help, &["node"], &[self.node], signed(value))
    }

    /// Adds a number that only grows; by convention its name ends in `_total`.
    pub fn add_counter(&self, name: &str, help: &str, value: u64) -> Result<()> {
        let name = format!("{}_{name}", self.prefix);
        let values = [(&[self.node][..], value as f64)];
        add_counters(&self.registry, &name, help, &["node"], values)
    }

    /// Adds where the node's roles run, and why.
    pub fn add_dataplane(&self, dataplane: &str, why: &str) -> Result<()> {
        let help = "1 for the data plane in force; why not a better one";
        let labels = ["node", "dataplane", "why"];
        self.add_of("dataplane", help, &labels, &[self.node, dataplane, why], 1)
    }

    pub fn add_state(&self, help: &str, state: &str) -> Result<()> {
        self.add_of("state", help, &["node", "state"], &[self.node, state], 1)
    }

    /// Adds what was counted since the start, by event.
    pub fn add_events(&self, help: &str, counters: &BTreeMap<String, u64>) -> Result<()> {
        let events = counters.iter();
        let events: Vec<([&str; 2], f64)> = events
            .map(|(event, count)| ([self.node, event.as_str()], *count as f64))
            .collect();
        let name = format!("{}_events_total", self.prefix);
        let values = events.iter().map(|(of, count)| (&of[..], *count));
        add_counters(&self.registry, &name, help, &["node", "event"], values)
    }

    /// Returns their text form.
    pub fn text(&self) -> Result<Vec<u8>> {
        text(&self.registry)
    }
}

/// What a process says about itself over HTTP.
pub trait Source: Send + Sync + 'static {
    /// The metrics in their text form.
    fn metrics(&self) -> Result<Vec<u8>>;

    /// Fails if the process should be restarted.
    fn live(&self) -> Result<()>;

    /// Fails while the process should get no work.
    fn ready(&self) -> Result<()>;
}

/// Of a process whose metrics come from its main loop: it is live and ready while that answers.
impl<F: Fn() -> Result<Vec<u8>> + Send + Sync + 'static> Source for F {
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

/// Serves `/metrics`, `/live` and `/ready`, on threads of its own, until `is_over` or the process ends.
pub fn serve(
    listener: TcpListener,
    is_over: impl Fn() -> bool + Send + 'static,
    source: impl Source,
) -> Result<()> {
    let handle = move |request: &Request| {
        let (status, text) = match &request.method[..] {
            "GET" | "HEAD" => answer(&source, &request.path),
            _ => (405, b"GET or HEAD only\n".to_vec()),
        };
        Answer::Whole(Response::new(status, CONTENT_TYPE, text))
    };
    http::serve(listener, "metrics", LIMITS, is_over, handle).context("metrics thread")
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_histogram_is_cumulative() {
        let registry = Registry::new();
        let filled = |of: &str, counts: [u64; 3]| Filled {
            of: vec![of.into()],
            buckets: vec![(0.5, counts[0]), (1.0, counts[1])],
            beyond: counts[2],
            sum: 7.5,
        };
        let both = [filled("a", [1, 2, 4]), filled("b", [0, 0, 1])];
        add_histograms(&registry, "h", "a histogram", &["of"], both).expect("added");
        add_histograms(&registry, "i", "empty", &["of"], []).expect("added");
        let values = [(&["a"][..], 2.0)];
        add_counters(&registry, "c_total", "a counter", &["of"], values).expect("added");
        let text = String::from_utf8(text(&registry).expect("text")).expect("UTF-8");
        for line in [
            "# TYPE h histogram",
            "h_bucket{of=\"a\",le=\"0.5\"} 1",
            "h_bucket{of=\"a\",le=\"1\"} 3",
            "h_bucket{of=\"a\",le=\"+Inf\"} 7",
            "h_sum{of=\"a\"} 7.5",
            "h_count{of=\"a\"} 7",
            "h_count{of=\"b\"} 1",
            "# TYPE c_total counter",
            "c_total{of=\"a\"} 2",
        ] {
            assert!(text.lines().any(|said| said == line), "{line:?}: {text}");
        }
    }

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
