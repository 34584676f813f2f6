//! Reasons why a script that has run has no specification.

use std::fmt::{self, Display};

use crate::trace::Outcome;

/// Reason why a script that has run has no specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// No process called a backward under the watch.
    NobodyJoined {
        /// Outcome of the command; none if zprobe had to kill the command.
        outcome: Option<Outcome>,
        /// True if the user ended it.
        interrupted: bool,
        /// True if it was silent for too long.
        timed_out: bool,
        /// Machine whose agent was lost.
        lost: Option<String>,
        /// Accounts that ranks gave of a failure, each with the rank.
        failures: Vec<String>,
    },
    /// The watch failed before an optimizer had stepped.
    GaveUp {
        /// Outcome of the command; none if zprobe or the user ended the command.
        outcome: Option<Outcome>,
        /// Reason for it.
        why: String,
    },
    /// The ranks ended before an optimizer had stepped.
    NoStep {
        /// Outcome of the command; none if zprobe or the user ended the command.
        outcome: Option<Outcome>,
    },
    /// The user ended the script before its ranks had taken enough steps.
    Interrupted,
    /// zprobe was ended before an optimizer had stepped.
    CutOff,
}

impl Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NobodyJoined { interrupted: true, .. } => {
                "interrupted before any process had called backward"
            }
            Self::NobodyJoined { lost: Some(machine), .. } => {
                return write!(
                    f,
                    "zprobe on {machine} was lost before any process had called backward; look at its output"
                );
            }
            Self::NobodyJoined { timed_out: true, .. } => {
                "no process called backward in time; raise --timeout if the script takes longer to load"
            }
            Self::NobodyJoined { outcome: Some(outcome), failures, .. }
                if *outcome != Outcome::Code(0) =>
            {
                match outcome {
                    Outcome::Code(code) => write!(f, "the command failed with exit code {code}")?,
                    outcome => {
                        write!(f, "the command was {}", outcome.death().unwrap_or_default())?;
                    }
                }
                f.write_str(" before any process had called backward")?;
                return failures.iter().try_for_each(|failure| write!(f, "; {failure}"));
            }
            Self::NobodyJoined { .. } => {
                "no process of the command called backward while zprobe watched: it ended before \
                 its first backward, its gradients come from torch.autograd.grad or from elsewhere, or its \
                 launcher keeps PYTHONPATH from its ranks (python -I or -E, mpirun without -x PYTHONPATH)"
            }
            Self::GaveUp { why, .. } => return f.write_str(why),
            Self::NoStep { .. } => {
                "no optimizer stepped in the script: zprobe sees the steps of torch.optim.Optimizer, and \
                 needs three of them"
            }
            Self::Interrupted => "interrupted before the optimizer had taken the steps that zprobe needs",
            Self::CutOff => "zprobe was ended before an optimizer of the script had stepped",
        })
    }
}

impl NoAnswer {
    /// Outcome of the command, if it ended by itself.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::NobodyJoined { interrupted: true, .. }
            | Self::NobodyJoined { lost: Some(_), .. }
            | Self::NobodyJoined { timed_out: true, .. }
            | Self::Interrupted
            | Self::CutOff => None,
            Self::NobodyJoined { outcome, .. }
            | Self::GaveUp { outcome, .. }
            | Self::NoStep { outcome } => *outcome,
        }
    }
}
