//! Deterministic simulator: the real roles and state machines under seeded faults.
