//! The source of ranks for the runs of this process: programs that are started for each run, or a pool
//! that stays warm.

use std::path::Path;

use anyhow::Result;

use super::cuda::Cuda;
use super::order::{Order, Ranks};
use super::pooled::Pooled;
use crate::adapters;
use crate::console::say;
use crate::engines;
use crate::launch::{Ended, Launch, RankProgram, Source};
use crate::native;
use crate::spec::RunSpec;
use crate::trace::{Event, Record};

/// Makes one run after the other.
pub enum Runner {
    /// A pool: the engine is loaded once.
    Warm(Pooled),
    /// A program that is started for each run.
    Cold(RankProgram),
    /// Native ranks on GPUs, started for each run.
    Cuda(Cuda),
}

impl Runner {
    /// A runner for this order. The files that its ranks are started from are in `dir`.
    pub fn new(order: &Order, dir: &Path) -> Result<Self> {
        let engine = order.spec.engine();
        Ok(match &order.ranks {
            Ranks::Program(program) => Self::Cold(program.clone()),
            Ranks::Cuda(cuda) => Self::Cuda(cuda.clone()),
            Ranks::Cold(_) if !engines::of(engine).is_real() => {
                Self::Cold(native::cpu_ranks(native::program()?))
            }
            Ranks::Cold(python) => Self::Cold(adapters::rank_program(python, dir)?),
            Ranks::Warm(python) => Self::Warm(Pooled::new(engine, python, &dir.join("pool"))?),
        })
    }

    /// Makes a run and leaves its trace in `run_dir`. The result is false if the user has interrupted the
    /// run.
    pub fn run(
        &mut self,
        spec: &RunSpec,
        run_id: &str,
        run_dir: &Path,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<bool> {
        let mut interrupted = false;
        let mut observer = |record: &Record| {
            interrupted |= matches!(record.event, Event::Interrupted);
            observer(record);
        };
        let cold = |program: &RankProgram, observer: &mut dyn FnMut(&Record)| {
            Launch { run_id, spec, source: Source::Cold(program), run_dir }.run(observer)
        };
        let ended = match self {
            Self::Warm(pooled) => pooled.run(spec, run_id, run_dir, &mut observer)?,
            Self::Cold(program) => cold(program, &mut observer)?,
            Self::Cuda(cuda) => cold(&cuda.ranks(spec, run_dir)?, &mut observer)?,
        };
        warn_of_survivors(&ended);
        Ok(!interrupted)
    }
}

/// Warns of processes of a run that are left, if any are.
pub(super) fn warn_of_survivors(Ended { survivors }: &Ended) {
    if !survivors.is_empty() {
        say(format_args!("warning: processes that cannot be killed: {survivors:?}"));
    }
}
