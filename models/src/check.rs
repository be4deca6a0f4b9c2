//! A model in Rust, checked exhaustively by stateright; each comes with variants that must be refuted.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, Model};

/// What a check found.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Different states visited.
    pub states: u64,
    /// Steps of the longest shortest path.
    pub depth: u64,
    /// Time it took.
    pub took: Duration,
    /// The property violated, and how.
    pub refuted: Option<Refutation>,
}

/// A property that does not hold, with the steps that lead there.
#[derive(Debug, Clone)]
pub struct Refutation {
    /// Its name.
    pub property: String,
    /// One step a line.
    pub steps: Vec<String>,
}

/// Visit every state, or all up to the first that violates a property.
pub fn explore<M>(model: M) -> Outcome
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let began = Instant::now();
    let checker = model.checker().spawn_bfs().join();
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
