//! Runs that several zprobe processes make together, as on several machines. The ranks are those of
//! `fixtures/ranks`, so the tests need no Python package, no launcher and no network.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod job;
mod lost;
mod met;
mod refused;
