//! The native engine: real ranks on libtorch, real Gloo.
#![cfg(feature = "native")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_macros, reason = "a test that is run by itself prints its table")]

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
