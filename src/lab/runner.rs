//! The source of ranks for the runs of this process: programs that are started for each run, or a pool
//! that stays warm.

use std::path::Path;

use anyhow::Result;

use super::cuda::Cuda;
use super::order::{Order, Ranks};
use super::pooled::Pooled;
use crate::adapters;
use crate::console::say;
use crate::launch::{Ended, Launch, RankProgram, Source};
use crate::native;
use crate::spec::{Device, Engine, RunSpec};
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
    /// A runner for a single run; the files that its ranks are started from are in `dir`.
    ///
    /// # Errors
    /// When there is no program for the ranks, or `dir` cannot be written.
    pub fn cold(order: &Order, cuda: Option<Cuda>, dir: &Path) -> Result<Self> {
        Self::new(order, cuda, |python| {
            Ok(Self::Cold(match order.spec.engine {
                Engine::Native => native::cpu_ranks(native::program()?),
                _ => adapters::rank_program(python, dir)?,
            }))
        })
    }

    /// A runner for runs like this one, over ranks that stay warm where there are such; the pool's own files
    /// are in `dir`.
    ///
    /// # Errors
    /// As [`Runner::cold`].
    pub fn warm(order: &Order, cuda: Option<Cuda>, dir: &Path) -> Result<Self> {
        let pool = |python: &Path| Pooled::new(order.spec.engine, python, &dir.join("pool"));
        Self::new(order, cuda, |python| Ok(Self::Warm(pool(python)?)))
    }

    fn new(
        order: &Order,
        cuda: Option<Cuda>,
        on_cpu: impl FnOnce(&Path) -> Result<Self>,
    ) -> Result<Self> {
        match (&order.ranks, cuda.filter(|_| order.spec.device == Device::Cuda)) {
            (Ranks::Program(program), _) => Ok(Self::Cold(program.clone())),
            (Ranks::Engine(_), Some(cuda)) => Ok(Self::Cuda(cuda)),
            (Ranks::Engine(python), None) => on_cpu(python),
        }
    }

    /// Makes a run and leaves its trace in `run_dir`. The result is false if the user has interrupted the
    /// run.
    ///
    /// # Errors
    /// When there was nothing to watch.
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

/// Says which processes of a run are left, if any are.
fn warn_of_survivors(Ended { survivors }: &Ended) {
    if !survivors.is_empty() {
        say(format_args!("warning: processes that cannot be killed: {survivors:?}"));
    }
}
