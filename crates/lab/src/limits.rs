//! Limits of this machine: an interpreter is asked before a run whether the run can be made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::doctor::{InterpreterError, MachineFacts, PythonFacts, questions, refusal};
use crate::native;
use zprobe_model::spec::RunSpec;

/// The time limit for an interpreter's answer: a busy machine takes minutes to import an engine.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The words before the reason why a run cannot be made on this machine.
pub const CANNOT_RUN: &str = "cannot run here";

/// The answers of interpreters. Each interpreter is asked once, and only if a run depends on its answer.
#[derive(Default)]
pub struct Limits {
    /// The answers of the interpreters, by path; `None` for an interpreter that gave no answer, because then the run
    /// itself shows what is wrong.
    asked: Mutex<BTreeMap<PathBuf, Option<PythonFacts>>>,
}

impl Limits {
    /// Limits with the answer of an interpreter that was asked already.
    pub fn knowing(path: &Path, python: Option<PythonFacts>) -> Self {
        Self { asked: Mutex::new([(path.to_owned(), python)].into()) }
    }

    /// The reason why a run cannot be made with this interpreter, with advice; `None` where no obstacle is known.
    pub fn refusal(&self, spec: &RunSpec, python: &Path) -> Option<String> {
        let questions = questions(spec);
        if questions.is_empty() {
            return None;
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let python = asked
            .entry(python.to_owned())
            .or_insert_with(|| PythonFacts::ask_about(&questions, python, PATIENCE).ok());
        refusal(python.as_ref()?, spec)
    }
}

/// Collects the facts about the machine, and asks an interpreter.
pub fn examine(
    python: &Path,
    patience: Duration,
) -> (MachineFacts, Result<PythonFacts, InterpreterError>) {
    (machine(Some(python)), PythonFacts::ask(python, patience))
}

/// Collects the facts about the machine. The native engine may be in the environment of the interpreter `python`.
pub fn machine(python: Option<&Path>) -> MachineFacts {
    MachineFacts::look(native::program(python))
}
