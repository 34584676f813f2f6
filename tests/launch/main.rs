//! Tests of the launcher with real processes: fixture ranks that behave, and many that do not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod harness;
mod healthy;
mod hung;
mod interrupted;
mod limits;
mod misbehaving;
mod pool_of_its_own;
mod pooled;
mod protocol;
mod refused;
