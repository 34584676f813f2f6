//! The checks that `zprobe doctor` prints, one line each: a thing works, is missing or is broken, with advice.

use super::python::NOT_TRIED;
use super::{InterpreterError, PythonAttempt};
use zprobe_model::spec::named_enum;

/// The advice for an interpreter without torch.
pub(super) const INSTALL_TORCH: &str =
    "install torch (`pip install torch`), or name another interpreter with --python";

named_enum! {
    /// The outcome of a check of the doctor.
    pub enum CheckState {
        /// The thing is present and works.
        Ok = "ok",
        /// The thing is absent.
        Missing = "missing",
        /// The thing is present but does not work.
        Broken = "broken",
    }
}

/// A check of the doctor, which is printed as one line.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DoctorCheck {
    /// The thing that was checked, for example `torch`.
    pub subject: &'static str,
    /// The outcome of the check.
    pub state: CheckState,
    /// The version or path that was found, or the reason why the check failed.
    pub detail: String,
    /// The advice to the user; `None` where nothing has to be done.
    pub advice: Option<&'static str>,
}

impl DoctorCheck {
    pub(super) fn ok(subject: &'static str, detail: impl Into<String>) -> Self {
        Self { subject, state: CheckState::Ok, detail: detail.into(), advice: None }
    }

    pub(super) fn not(
        subject: &'static str,
        state: CheckState,
        detail: impl Into<String>,
        advice: &'static str,
    ) -> Self {
        Self { subject, state, detail: detail.into(), advice: Some(advice) }
    }

    /// The check of something that was tried in Python; its state is `Missing` if a module, or torch, was not found.
    pub(super) fn tried<T>(
        subject: &'static str,
        attempt: &PythonAttempt<T>,
        detail: impl Fn(&T) -> String,
        advice: &'static str,
    ) -> Self {
        match attempt {
            PythonAttempt::Value(value) => Self::ok(subject, detail(value)),
            PythonAttempt::Problem(problem) => {
                let absent = problem.starts_with("ModuleNotFoundError") || problem == NOT_TRIED;
                let state = if absent { CheckState::Missing } else { CheckState::Broken };
                Self::not(subject, state, problem.as_str(), advice)
            }
        }
    }
}

/// The check of something that only an interpreter can tell, for an interpreter that gave no answer.
pub(super) fn no_answer(subject: &'static str, error: &InterpreterError) -> DoctorCheck {
    let state = if matches!(error, InterpreterError::Start { .. }) {
        CheckState::Missing
    } else {
        CheckState::Broken
    };
    DoctorCheck::not(subject, state, error.to_string(), "name a working interpreter with --python")
}
