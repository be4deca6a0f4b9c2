//! `/metrics` of a scheduler, for Prometheus.

use anyhow::Result;
use inband_falcon::scheduler_node::WorkerStatus;
use inband_metrics::{signed, text, Registry};

use inband_cluster::falcon::status::SchedulerStatus;

/// Returns a scheduler's metrics; their names begin with `inband_falcon_`.
pub fn encode(status: &SchedulerStatus) -> Result<Vec<u8>> {
    let registry = Registry::new();
    let add = |name: &str, help: &str, label: &str, values: &[(String, u64)]| -> Result<()> {
        let of: Vec<[&str; 1]> = values.iter().map(|(of, _)| [of.as_str()]).collect();
        let values = of
            .iter()
            .map(|of| &of[..])
            .zip(values.iter().map(|(_, v)| signed(*v)));
        inband_metrics::add(
            &registry,
            &format!("inband_falcon_{name}"),
            help,
            &[label],
            values,
        )
    };
    let queues = status.queues.iter();
    let queued: Vec<_> = queues
        .map(|(queue, tasks)| (queue.to_string(), u64::from(*tasks)))
        .collect();
    add("queued", "Tasks in a queue that has any", "queue", &queued)?;
    let scheduler = |value| [(status.address.to_string(), value)];
    let one = |name, help, value| add(name, help, "scheduler", &scheduler(value));
    one("slots", "Tasks that the queues hold", status.slots as u64)?;
    one(
        "given_total",
        "Tasks given to executors since the start",
        status.given,
    )?;
    if let Some(us) = status.oldest_waits_us {
        let help = "How long the first task of all has waited";
        one("oldest_waits_microseconds", help, us)?;
    }
    let per_worker = |of: fn(&WorkerStatus) -> u8| -> Vec<_> {
        let workers = status.workers.iter();
        workers
            .map(|worker| (worker.number.to_string(), u64::from(of(worker))))
            .collect()
    };
    let executors = per_worker(|w| w.executors);
    add("executors", "Of a worker", "worker", &executors)?;
    let busy = per_worker(|w| w.busy);
    add("busy", "Executors that have a task", "worker", &busy)?;
    let waiting = per_worker(|w| w.waiting);
    add("waiting", "Executors that are parked", "worker", &waiting)?;
    let counters = status.counters.iter();
    let events: Vec<_> = counters
        .map(|(event, count)| (event.clone(), *count))
        .collect();
    let help = "Packets and events by outcome, since the start";
    add("events_total", help, "event", &events)?;
    text(&registry)
}
