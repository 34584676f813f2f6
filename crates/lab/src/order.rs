//! Orders of runs: the settings, the source of the ranks, and the number of repeats.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::cuda::Cuda;
use super::limits::{CANNOT_RUN, Limits};
use zprobe_launch::RankProgram;
use zprobe_model::spec::RunSpec;

/// An order for a run that is to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The settings of the run.
    pub spec: RunSpec,
    /// The source of the run's ranks.
    pub ranks: Ranks,
    /// The number of times that the run is made.
    pub repeats: usize,
}

/// The source of the ranks of a run: cold, warm, on GPUs, or a program of the user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ranks {
    /// A rank program of the user, started for each run.
    Program(RankProgram),
    /// The native engine's rank program on GPUs, started for each run.
    Cuda(Cuda),
    /// The rank program of the engine, started for each run with this interpreter if the engine is Python.
    Cold(PathBuf),
    /// A pool that has loaded the engine, with this interpreter if the engine is Python.
    Warm(PathBuf),
}

impl Order {
    /// This order with warm ranks, if a pool can make its ranks.
    #[must_use]
    pub fn warm(self) -> Self {
        match self.ranks {
            Ranks::Cold(python) => Self { ranks: Ranks::Warm(python), ..self },
            ranks => Self { ranks, ..self },
        }
    }

    /// The settings that must be the same on all machines of the run, each under its name.
    pub fn settings(&self) -> Value {
        json!({ "command": "run", "spec": self.spec, "repeats": self.repeats })
    }

    /// Refuses a run that this machine cannot make.
    ///
    /// # Errors
    /// The reason why the run cannot be made, in one line.
    pub fn refuse_what_cannot_run(&self) -> Result<()> {
        // Only the CPU ranks of an engine have known limits.
        if let Ranks::Cold(python) | Ranks::Warm(python) = &self.ranks
            && let Some(reason) = Limits::default().refusal(&self.spec, python)
        {
            bail!("{CANNOT_RUN}: {reason}");
        }
        Ok(())
    }
}

/// Parses arguments of `zprobe run`, without the user's environment variables and configuration files.
pub type ParseOrder<'a> = dyn Fn(&[String]) -> Result<Order> + Sync + 'a;

/// Parses arguments like [`ParseOrder`], but returns only the settings of a run on the CPU.
pub type ParseSpec<'a> = dyn Fn(&[String]) -> Result<RunSpec> + Sync + 'a;
