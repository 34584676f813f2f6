//! The doctor: checks that tell which engines this machine and a Python can run, with advice.
//!
//! [`PythonFacts::ask`] and [`MachineFacts::look`] collect facts; [`engines()`] and [`surroundings()`] turn the facts into
//! checks with advice, as pure functions.

mod checks;
mod cuda;
mod engines;
mod job;
mod limits;
mod machine;
mod python;
mod surroundings;
#[cfg(test)]
mod tests;

pub use checks::{CheckState, DoctorCheck};
pub use engines::{engines, native};
pub use job::job;
pub use limits::{questions, refusal};
pub use machine::MachineFacts;
pub use python::{InterpreterError, PythonAttempt, PythonFacts, absent, found};
pub use surroundings::surroundings;
