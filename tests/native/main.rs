//! The native engine: real ranks on libtorch, real Gloo.
#![cfg(feature = "native")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_macros, reason = "tables for those who run a test by itself")]

mod budget;
mod check;
mod cli;
mod cuda;
mod faults;
mod grid;
mod large;
mod pool;
mod pooled;
mod preflight;
mod reference;
mod repeat;
mod support;
