//! The control plane: the cluster's configuration, itself replicated.
//!
//! It is not on the packet path: the cluster keeps deciding while it is down. It knows who is in the
//! cluster ([`configuration`]), changes that ([`state`]) on an existing Raft library, watches hosts and
//! moves them from one epoch into the next ([`coordinator`], [`member`]).

pub mod acceptor;
pub mod configuration;
pub mod coordinator;
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
