//! Runs that several zprobe processes make together, as on several machines. The ranks are those of
//! `fixtures/ranks`: nothing here needs a Python package, a launcher or a network.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod job;
mod lost;
mod met;
mod refused;
