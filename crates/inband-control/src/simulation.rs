//! A simulated cluster for this crate's tests: real acceptors (soft switches), members and coordinators; a network that
//! loses, duplicates and delays; hosts that crash with and without losing their memory; coordinators that lag behind
//! and overlap. The replicated log is modelled as a list that accepts any proposal late or never, which is harsher than
//! Raft.

mod checker;
mod cluster;
mod dice;
mod directed;
mod paxos;
mod runs;
