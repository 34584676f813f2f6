//! What this machine and a Python can run, and why not.
//!
//! [`Python::ask`] and [`Machine::look`] collect facts; [`checks`] turns them into lines with advice, as a
//! pure function.

mod checks;
mod machine;
mod python;

pub use checks::{Check, State, engines, surroundings};
pub use machine::Machine;
pub use python::{Attempt, NoAnswer, Python};
