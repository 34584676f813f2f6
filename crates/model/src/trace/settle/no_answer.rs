//! The reasons why a script that has run cannot be checked.

use std::fmt::{self, Display};

use crate::trace::Outcome;

/// The reason why a script that has run has no complete specification, and so cannot be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// No process called a backward while zprobe watched.
    NobodyJoined {
        /// The outcome of the command; `None` if zprobe had to kill the command.
        outcome: Option<Outcome>,
        /// True if the user ended the command.
        interrupted: bool,
        /// True if the command was silent for longer than the timeout.
        timed_out: bool,
        /// The machine of an agent that was lost; `None` if no agent was lost.
        lost: Option<String>,
        /// Descriptions of the ranks' failures, each with the number of the rank.
        failures: Vec<String>,
    },
    /// The observation of a rank stopped before any optimizer had stepped.
    GaveUp {
        /// The outcome of the command; `None` if zprobe or the user ended the command.
        outcome: Option<Outcome>,
        /// The reason why the rank stopped watching.
        why: String,
    },
    /// The ranks ended before an optimizer had stepped.
    NoStep {
        /// The outcome of the command; `None` if zprobe or the user ended the command.
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
                    "zprobe on {machine} was lost before any process had called backward; look at the output there"
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
                "no process of the command called backward while zprobe watched: the command ended before \
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
    /// Returns the outcome of the command, if the command ended by itself.
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
