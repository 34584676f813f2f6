//! One line of the doctor: what is there, missing or broken, and what to do about it.

use super::python::NOT_TRIED;
use super::{Attempt, NoAnswer};
use crate::spec::named_enum;

/// What to do without torch.
pub(super) const INSTALL_TORCH: &str =
    "install torch (`pip install torch`), or name another interpreter with --python";

named_enum! {
    /// What was found.
    pub enum State {
        /// It is there and works.
        Ok = "ok",
        /// It is not there.
        Missing = "missing",
        /// It is there and does not work.
        Broken = "broken",
    }
}

/// One line of the doctor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub subject: &'static str,
    /// What was found.
    pub state: State,
    /// More about it: a version, or why not.
    pub detail: String,
    /// What to do; none where nothing has to be done.
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

    /// For something that was tried in Python: it is missing if it is a module that is not there.
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

/// For everything that only an interpreter could tell, when it did not.
pub(super) fn no_answer(subject: &'static str, error: &NoAnswer) -> Check {
    let state =
        if matches!(error, NoAnswer::Start { .. }) { State::Missing } else { State::Broken };
    Check::not(subject, state, error.to_string(), "name a working interpreter with --python")
}
