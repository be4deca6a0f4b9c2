//! Nothing is built: only the features of build dependencies count.

fn main() {}
