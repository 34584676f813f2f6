//! Limits of this machine: found out before a run, where an interpreter knows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::doctor::{Machine, NoAnswer, Python, questions, refusal};
use crate::native;
use zprobe_model::spec::RunSpec;

/// Time that an interpreter may take to answer: a busy machine takes minutes to import an engine.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The words before the reason why a run cannot be made.
pub const CANNOT_RUN: &str = "cannot run here";

/// Answers of interpreters: each is asked once, and only if a run depends on it.
#[derive(Default)]
pub struct Limits {
    /// Answers of the interpreters, by path; none where there was no answer: then the run itself
    /// shows what is wrong.
    asked: Mutex<BTreeMap<PathBuf, Option<Python>>>,
}

impl Limits {
    /// Limits with the answer of an interpreter that was asked already.
    pub fn knowing(path: &Path, python: Option<Python>) -> Self {
        Self { asked: Mutex::new([(path.to_owned(), python)].into()) }
    }

    /// Reason why a run cannot be made with this interpreter, and what to do; none where nothing
    /// speaks against the run.
    pub fn refusal(&self, spec: &RunSpec, python: &Path) -> Option<String> {
        let questions = questions(spec);
        if questions.is_empty() {
            return None;
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let python = asked
            .entry(python.to_owned())
            .or_insert_with(|| Python::ask_about(&questions, python, PATIENCE).ok());
        refusal(python.as_ref()?, spec)
    }
}

/// Looks at the machine and asks an interpreter.
pub fn examine(python: &Path, patience: Duration) -> (Machine, Result<Python, NoAnswer>) {
    (machine(Some(python)), Python::ask(python, patience))
}

/// Looks at the machine. The native engine may be in the environment of an interpreter.
pub fn machine(python: Option<&Path>) -> Machine {
    Machine::look(native::program(python))
}
