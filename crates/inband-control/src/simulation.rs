//! A simulated cluster for the tests of this crate: real acceptors (soft switches), members and
//! coordinators; a network that loses, repeats and delays; hosts that crash with and without their
//! memory; coordinators that lag behind and overlap. The replicated log is modelled by a list that
//! takes in any proposal late or never, which is worse than Raft.

mod checker;
mod cluster;
mod dice;
mod directed;
mod paxos;
mod runs;
