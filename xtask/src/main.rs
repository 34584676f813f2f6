//! Sets zprobe up, builds it, tests it and measures it.
fn main() {}
