//! Lines of the doctor: things that work, are missing or are broken, with advice.

use super::python::NOT_TRIED;
use super::{Attempt, NoAnswer};
use zprobe_model::spec::named_enum;

/// Advice for an interpreter without torch.
pub(super) const INSTALL_TORCH: &str =
    "install torch (`pip install torch`), or name another interpreter with --python";

named_enum! {
    /// Outcome of a check.
    pub enum State {
        /// Present and working.
        Ok = "ok",
        /// Absent.
        Missing = "missing",
        /// Present and not working.
        Broken = "broken",
    }
}

/// A line of the doctor.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// The thing that was checked.
    pub subject: &'static str,
    /// Outcome of the check.
    pub state: State,
    /// Details: a version, or the reason for the outcome.
    pub detail: String,
    /// Advice; none where nothing has to be done.
    pub advice: Option<&'static str>,
}

impl Check {
    pub(super) fn ok(subject: &'static str, detail: impl Into<String>) -> Self {
        Self { subject, state: State::Ok, detail: detail.into(), advice: None }
    }

    pub(super) fn not(
        subject: &'static str,
        state: State,
        detail: impl Into<String>,
        advice: &'static str,
    ) -> Self {
        Self { subject, state, detail: detail.into(), advice: Some(advice) }
    }

    /// A check of something that was tried in Python: missing if a module, or torch, was not found.
    pub(super) fn tried<T>(
        subject: &'static str,
        attempt: &Attempt<T>,
        detail: impl Fn(&T) -> String,
        advice: &'static str,
    ) -> Self {
        match attempt {
            Attempt::Value(value) => Self::ok(subject, detail(value)),
            Attempt::Problem(problem) => {
                let absent = problem.starts_with("ModuleNotFoundError") || problem == NOT_TRIED;
                let state = if absent { State::Missing } else { State::Broken };
                Self::not(subject, state, problem.as_str(), advice)
            }
        }
    }
}

/// A check that only an interpreter could have made, when it gave no answer.
pub(super) fn no_answer(subject: &'static str, error: &NoAnswer) -> Check {
    let state =
        if matches!(error, NoAnswer::Start { .. }) { State::Missing } else { State::Broken };
    Check::not(subject, state, error.to_string(), "name a working interpreter with --python")
}
