//! One rank of the native engine.

fn main() {}
