//! Tests of all systems in the data plane: packet vectors, equivalence of the kernel and the native build, races, and
//! verifier figures.
