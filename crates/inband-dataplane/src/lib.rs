//! Tests of the systems in the data plane, side by side: packet vectors, the kernel against the native build, races,
//! what verifiers say.
