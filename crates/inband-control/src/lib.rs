//! The control plane: the cluster's configuration, which is itself replicated.
//!
//! It is not on the packet path: the cluster keeps deciding values while it is down. It stores the cluster's members
//! ([`configuration`]) and changes them ([`state`]) with an existing Raft library, monitors hosts and moves them from
//! one epoch to the next ([`coordinator`], [`member`]).

pub mod acceptor;
pub mod configuration;
pub mod coordinator;
pub mod first;
pub mod member;
pub mod message;
pub mod outbox;
pub mod raft_node;
pub mod registers;
pub mod service;
pub mod state;
pub mod timing;

#[cfg(test)]
mod coordinator_tests;
#[cfg(test)]
mod member_tests;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod state_tests;
