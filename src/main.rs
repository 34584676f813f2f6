//! The `zprobe` command.

fn main() {}
