//! Runs that are to be made.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::limits::{CANNOT_RUN, Limits};
use crate::launch::RankProgram;
use crate::spec::RunSpec;

/// A run that is to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The settings of the run.
    pub spec: RunSpec,
    /// The source of its ranks.
    pub ranks: Ranks,
    /// Number of times that the run is made.
    pub repeats: usize,
}

/// The source of the ranks of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ranks {
    /// The engine's own ranks, with this interpreter for those that are Python.
    Engine(PathBuf),
    /// The user's own program.
    Program(RankProgram),
}

impl Order {
    /// Refuses a run that this machine cannot make.
    ///
    /// # Errors
    /// With the reason, in one line.
    pub fn refuse_what_cannot_run(&self) -> Result<()> {
        // What another program can run is its own business.
        if let Ranks::Engine(python) = &self.ranks
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

/// The same for the settings alone, of a run on the CPU.
pub type ReadSpec<'a> = dyn Fn(&[String]) -> Result<RunSpec> + Sync + 'a;
