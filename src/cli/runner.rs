//! Who makes runs: ranks that are started for each, or a pool that stays warm.

use std::path::Path;

use anyhow::Result;
use zprobe::adapters;
use zprobe::launch::{Launch, RankProgram, Source};
use zprobe::native;
use zprobe::spec::{Device, Engine, RunSpec};
use zprobe::trace::{Event, Record};

use super::cuda::Cuda;
use super::run::{self, warn_of_survivors};
use super::workers::pooled::Pooled;

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
    /// For a single run; what its ranks are started from is in `dir`.
    pub fn cold(args: &run::Args, spec: &RunSpec, cuda: Option<Cuda>, dir: &Path) -> Result<Self> {
        Ok(match (args.own_program(), cuda.filter(|_| spec.device == Device::Cuda)) {
            (Some(program), _) => Self::Cold(program),
            (None, Some(cuda)) => Self::Cuda(cuda),
            (None, None) if spec.engine() == Engine::Native => {
                Self::Cold(native::cpu_ranks(native::program()?))
            }
            (None, None) => Self::Cold(adapters::rank_program(&args.interpreter(), dir)?),
        })
    }

    /// For runs like `spec`, over ranks that stay warm where there are such; a pool's own files are in
    /// `dir`.
    pub fn warm(args: &run::Args, spec: &RunSpec, cuda: Option<Cuda>, dir: &Path) -> Result<Self> {
        Ok(match (args.own_program(), cuda.filter(|_| spec.device == Device::Cuda)) {
            (Some(program), _) => Self::Cold(program),
            (None, Some(cuda)) => Self::Cuda(cuda),
            (None, None) => {
                Self::Warm(Pooled::new(spec.engine(), &args.interpreter(), &dir.join("pool"))?)
            }
        })
    }

    /// Makes a run and leaves its trace in `run_dir`. Whether it went on to its end: not if the
    /// user has interrupted it.
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
        let program = match self {
            Self::Warm(pooled) => {
                pooled.run(spec, run_id, run_dir, &mut observer)?;
                return Ok(!interrupted);
            }
            Self::Cold(program) => program.clone(),
            Self::Cuda(cuda) => cuda.ranks(spec, run_dir)?,
        };
        let launch = Launch { run_id, spec, source: Source::Cold(&program), run_dir };
        warn_of_survivors(&launch.run(&mut observer)?);
        Ok(!interrupted)
    }
}
