//! Exhaustive checks of models in Rust, by stateright. Each model has variants that must be refuted.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

/// The result of a check.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Number of distinct states visited.
    pub states: u64,
    /// Length of the longest shortest path.
    pub depth: u64,
    pub took: Duration,
    /// The violated property, if any.
    pub refuted: Option<Refutation>,
}

/// A property that does not hold, with the steps that violate it.
#[derive(Debug, Clone)]
pub struct Refutation {
    pub property: String,
    /// One step per line.
    pub steps: Vec<String>,
}

/// Visits every state, or all up to the first that violates a property.
pub fn explore<M>(model: M) -> Outcome
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let began = Instant::now();
    let stops = HasDiscoveries::AnyFailures;
    let checker = model.checker().finish_when(stops).spawn_bfs().join();
    let discovery = checker.discoveries().into_iter().next();
    let refuted = discovery.map(|(property, path)| Refutation {
        property: property.to_owned(),
        steps: path
            .into_actions()
            .iter()
            .map(|action| format!("{action:?}"))
            .collect(),
    });
    Outcome {
        states: checker.unique_state_count() as u64,
        depth: checker.max_depth() as u64,
        took: began.elapsed(),
        refuted,
    }
}
