//! Empty tasks and long arrays through Python's Executor, from one client, next to `ProcessPoolExecutor`, Dask and Ray
//! with as many processes that run tasks. `tasks.py` measures one system; here each gets its turn in every round.

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use super::python::{self, Environment};
use super::{row, Run};
use crate::row::{cores, number, progress, Baseline, Output};

/// Empty tasks of each kind in a round, and of a quick run.
const TASKS: usize = 5000;
const QUICK_TASKS: usize = 200;
/// Length of an array.
const ARRAY_LEN_BYTES: usize = 8_000_000;
/// Arrays of each kind in a round, and of a quick run.
const ARRAYS: usize = 20;
const QUICK_ARRAYS: usize = 2;
/// After so long no more arrays of a kind are sent in a round.
const ARRAYS_LIMIT_S: u32 = 10;

const DIFFERENCE: &str =
    "all systems have as many processes that run tasks as the machine has cores, and one client; \
     Inband's packets have tags, with keys that its Executor makes; the others have none";
const COPY: &str = "a copy in memory";

/// A line printed by `tasks.py`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Measured {
    metric: String,
    variant: String,
    value: f64,
}

/// A metric of `tasks.py`, its unit, and what its rows are compared with.
struct Metric {
    name: &'static str,
    unit: &'static str,
    beside: Beside,
}

#[derive(Clone, Copy)]
enum Beside {
    Nothing,
    /// Inband with `ProcessPoolExecutor`, and the others with Inband.
    Others,
    /// The same number of bytes, copied in memory.
    Copy,
}

const METRICS: [Metric; 4] = [
    Metric {
        name: "tasks_per_s",
        unit: "/s",
        beside: Beside::Others,
    },
    Metric {
        name: "array_mb_per_s",
        unit: "MB/s",
        beside: Beside::Copy,
    },
    Metric {
        name: "cpu_us",
        unit: "us",
        beside: Beside::Nothing,
    },
    Metric {
        name: "switches",
        unit: "/task",
        beside: Beside::Nothing,
    },
];
/// Printed by each of them, about the machine.
const COPY_METRIC: &str = "copy_mb_per_s";

/// A system, and what it has said in each round.
struct System {
    name: &'static str,
    /// The argument for `tasks.py`.
    argument: &'static str,
    rounds: Vec<Vec<Measured>>,
    /// Why it is left out.
    failed: Option<String>,
}

const INBAND: &str = "Inband";
const PROCESSES: &str = "ProcessPoolExecutor";

impl System {
    fn all() -> [System; 4] {
        [
            (INBAND, "inband"),
            (PROCESSES, "processes"),
            ("Dask", "dask"),
            ("Ray", "ray"),
        ]
        .map(|(name, argument)| System {
            name,
            argument,
            rounds: Vec::new(),
            failed: None,
        })
    }

    /// The variants of a metric, in the order in which they were measured.
    fn variants(&self, metric: &str) -> Vec<&str> {
        let mut variants = Vec::new();
        let of_metric = self.rounds.iter().flatten().filter(|m| m.metric == metric);
        for measured in of_metric {
            if !variants.contains(&measured.variant.as_str()) {
                variants.push(measured.variant.as_str());
            }
        }
        variants
    }

    /// The values of the rounds, in ascending order.
    fn values(&self, metric: &str, variant: &str) -> Vec<f64> {
        let all = self.rounds.iter().flatten();
        let those = all.filter(|m| m.metric == metric && m.variant == variant);
        let mut values: Vec<f64> = those.map(|m| m.value).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    fn median(&self, metric: &str, variant: &str) -> Option<f64> {
        median(&self.values(metric, variant))
    }
}

fn median(ordered: &[f64]) -> Option<f64> {
    let middle = ordered.len() / 2;
    match ordered {
        [] => None,
        _ if ordered.len() % 2 == 1 => Some(ordered[middle]),
        _ => Some((ordered[middle - 1] + ordered[middle]) / 2.0),
    }
}

/// Measures and prints the rows.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    output.note(DIFFERENCE);
    let environment = match Environment::of(run.args.python.as_deref()) {
        Ok(environment) => environment,
        Err(error) => {
            output.skipped(&format!("all of them: {error:#}"));
            return Ok(());
        }
    };
    let mut systems = System::all();
    if let Err(error) = environment.install_inband() {
        systems[0].failed = Some(format!("{error:#}"));
    }
    for round in 1..=run.rounds {
        for system in systems.iter_mut().filter(|system| system.failed.is_none()) {
            progress(&format!("{}, round {round} of {}", system.name, run.rounds));
            match measure_one(run, &environment, system.argument) {
                Ok(measured) => system.rounds.push(measured),
                Err(error) => system.failed = Some(format!("{error:#}")),
            }
        }
    }
    for system in &systems {
        if let Some(why) = &system.failed {
            output.skipped(&format!("{}: {why}", system.name));
        }
    }
    print(run, &systems, output)
}

fn measure_one(run: &Run<'_>, environment: &Environment, system: &str) -> Result<Vec<Measured>> {
    let (tasks, arrays) = match run.args.quick {
        true => (QUICK_TASKS, QUICK_ARRAYS),
        false => (TASKS, ARRAYS),
    };
    let arguments = [
        system.to_owned(),
        format!("--executors={}", cores()),
        format!("--tasks={tasks}"),
        format!("--array-bytes={ARRAY_LEN_BYTES}"),
        format!("--arrays={arrays}"),
        format!("--seconds-max={ARRAYS_LIMIT_S}"),
    ];
    let lines = environment.run(python::TASKS, &arguments)?;
    let measured = lines.iter().map(|line| serde_json::from_str(line));
    let measured: Vec<Measured> = measured.collect::<Result<_, _>>().context("what it says")?;
    ensure!(!measured.is_empty(), "it said nothing");
    Ok(measured)
}

fn print(run: &Run<'_>, systems: &[System], output: &mut Output) -> Result<()> {
    let all = systems
        .iter()
        .flat_map(|system| system.values(COPY_METRIC, ""));
    let mut copies: Vec<f64> = all.collect();
    copies.sort_by(f64::total_cmp);
    let copy = median(&copies);
    for metric in &METRICS {
        for system in systems {
            let mut variants = system.variants(metric.name);
            if matches!(metric.beside, Beside::Nothing) {
                let of = |variant: &&str| system.median(metric.name, variant).unwrap_or(0.0);
                variants.sort_by(|a, b| of(b).total_cmp(&of(a)));
            }
            for variant in variants {
                let values = system.values(metric.name, variant);
                let Some(value) = median(&values) else {
                    continue;
                };
                let other = match system.name {
                    INBAND => PROCESSES,
                    _ => INBAND,
                };
                let beside = match metric.beside {
                    Beside::Nothing => None,
                    Beside::Copy => copy.map(|copy| (COPY, copy)),
                    Beside::Others => systems
                        .iter()
                        .find(|system| system.name == other)
                        .and_then(|system| system.median(metric.name, variant))
                        .map(|value| (other, value)),
                };
                let baseline = beside.map(|(name, value)| Baseline {
                    name: name.into(),
                    value,
                });
                let row = row(
                    metric.name,
                    system.name,
                    variant.to_owned(),
                    (value, metric.unit),
                    conditions(run, metric, &values),
                );
                output.row(&row.beside(baseline))?;
            }
        }
    }
    if let Some(copy) = copy {
        let conditions = format!(
            "between arrays of {ARRAY_LEN_BYTES} B that no cache holds; {}",
            rounds(run, &copies)
        );
        let figure = (copy, "MB/s");
        output.row(&row(
            COPY_METRIC,
            "memory",
            String::new(),
            figure,
            conditions,
        ))?;
    }
    Ok(())
}

fn conditions(run: &Run<'_>, metric: &Metric, values: &[f64]) -> String {
    let tasks = if run.args.quick { QUICK_TASKS } else { TASKS };
    let load = match metric.beside {
        Beside::Others => format!("{tasks} empty tasks, all submitted, then all awaited"),
        Beside::Copy => format!(
            "a task takes {ARRAY_LEN_BYTES} B and returns them, one at a time; bytes there and back"
        ),
        Beside::Nothing => format!("per empty task of {tasks} with `submit`"),
    };
    let processes = cores();
    format!(
        "{processes} processes run tasks; {load}; {}",
        rounds(run, values)
    )
}

fn rounds(run: &Run<'_>, ordered: &[f64]) -> String {
    let [least, most] = [ordered.first(), ordered.last()].map(|v| v.copied().unwrap_or(f64::NAN));
    format!(
        "{} rounds from {} to {}; {}",
        run.rounds,
        number(least),
        number(most),
        run.machine
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_medians_of_the_rounds() {
        let [mut system, ..] = System::all();
        let of = |variant: &str, value| Measured {
            metric: "tasks_per_s".into(),
            variant: variant.into(),
            value,
        };
        system.rounds = vec![
            vec![of("submit", 3.0), of("map", 7.0)],
            vec![of("submit", 1.0)],
            vec![of("submit", 2.0)],
            vec![of("submit", 9.0)],
        ];
        assert_eq!(system.variants("tasks_per_s"), ["submit", "map"]);
        assert_eq!(system.median("tasks_per_s", "submit"), Some(2.5));
        assert_eq!(system.median("tasks_per_s", "map"), Some(7.0));
        assert_eq!(system.median("cpu_us", "map"), None);
    }
}
