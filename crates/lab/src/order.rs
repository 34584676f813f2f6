//! Runs that are to be made.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::cuda::Cuda;
use super::limits::{CANNOT_RUN, Limits};
use zprobe_launch::RankProgram;
use zprobe_model::spec::RunSpec;

/// A run that is to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The settings of the run.
    pub spec: RunSpec,
    /// The source of its ranks.
    pub ranks: Ranks,
    /// Number of times that the run is made.
    pub repeats: usize,
}

/// The source of the ranks of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ranks {
    /// The user's own program, started for each run.
    Program(RankProgram),
    /// The native engine on GPUs, started for each run.
    Cuda(Cuda),
    /// The engine, started for each run, with this interpreter if it is Python.
    Cold(PathBuf),
    /// A pool that has loaded the engine, with this interpreter if it is Python.
    Warm(PathBuf),
}

impl Order {
    /// This order with warm ranks, if there are any for it.
    #[must_use]
    pub fn warm(self) -> Self {
        match self.ranks {
            Ranks::Cold(python) => Self { ranks: Ranks::Warm(python), ..self },
            ranks => Self { ranks, ..self },
        }
    }

    /// All settings that must be the same on all machines of the run, each under its name.
    pub fn settings(&self) -> Value {
        json!({ "command": "run", "spec": self.spec, "repeats": self.repeats })
    }

    /// Refuses a run that this machine cannot make.
    ///
    /// # Errors
    /// With the reason, in one line.
    pub fn refuse_what_cannot_run(&self) -> Result<()> {
        // Limits of other programs are not known.
        if let Ranks::Cold(python) | Ranks::Warm(python) = &self.ranks
            && let Some(reason) = Limits::default().refusal(&self.spec, python)
        {
            bail!("{CANNOT_RUN}: {reason}");
        }
        Ok(())
    }
}

/// Reads arguments of `zprobe run` that stand for themselves: the environment and configuration files do not
/// count.
pub type Read<'a> = dyn Fn(&[String]) -> Result<Order> + Sync + 'a;

/// Reads the settings alone, of a run on the CPU, from arguments that stand for themselves, like
/// [`Read`].
pub type ReadSpec<'a> = dyn Fn(&[String]) -> Result<RunSpec> + Sync + 'a;
