//! Runners, which make the runs of this process: over a rank program that is started for each run, or over a pool
//! that stays warm.

use std::path::Path;

use anyhow::Result;

use super::cuda::Cuda;
use super::order::{Order, Ranks};
use super::pooled::Pooled;
use crate::console::say;
use crate::native::{self, NativeError};
use zprobe_engines as engines;
use zprobe_launch::adapters;
use zprobe_launch::agents::Team;
use zprobe_launch::{HostSource, Launch, RankProgram, Survivors};
use zprobe_model::spec::{Device, Engine, RunSpec};
use zprobe_model::trace::{Event, Record};

/// Makes the runs of this process, one after the other.
pub struct Runner<'a> {
    ranks: Origin,
    /// The other agents of each run; `None` if this process starts all ranks.
    team: Option<&'a mut Team>,
}

/// The source of a runner's ranks.
enum Origin {
    /// A pool, which has loaded the engine once.
    Warm(Pooled),
    /// A rank program that is started for each run.
    Cold(RankProgram),
    /// The native ranks on GPUs, started for each run.
    Cuda(Cuda),
}

impl<'a> Runner<'a> {
    /// A runner for the runs of an order, together with the agents of `team`. The files that its ranks are started
    /// from are in `dir`.
    pub fn new(order: &Order, dir: &Path, team: Option<&'a mut Team>) -> Result<Self> {
        let engine = order.spec.engine();
        let ranks = match &order.ranks {
            Ranks::Warm(python) => {
                let dir = dir.join("pool");
                Origin::Warm(Pooled::new(
                    program(engine, python, &dir, Some(order.spec.device))?,
                    dir,
                ))
            }
            Ranks::Cuda(cuda) => Origin::Cuda(cuda.clone()),
            Ranks::Program(_) | Ranks::Cold(_) => Origin::Cold(cold(order, dir)?),
        };
        Ok(Self { ranks, team })
    }

    /// True if an agent that starts some of the ranks is lost, so that no further run can be made.
    pub fn has_lost(&self) -> bool {
        self.team.as_ref().is_some_and(|team| team.has_lost())
    }

    /// Makes a run and leaves its trace in `run_dir`; `repeat` is its number among several repeats. Returns false if
    /// the user has interrupted the run.
    pub fn run(
        &mut self,
        spec: &RunSpec,
        run_id: &str,
        run_dir: &Path,
        repeat: Option<usize>,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<bool> {
        let mut interrupted = false;
        let mut observer = |record: &Record| {
            interrupted |= matches!(record.event, Event::Interrupted);
            observer(record);
        };
        let team = &mut self.team;
        let mut cold = |program: &RankProgram, observer: &mut dyn FnMut(&Record)| {
            let launch = Launch { run_id, spec, source: HostSource::Cold(program), run_dir };
            match team {
                Some(team) => launch.lead(team, repeat, observer),
                None => launch.run(observer),
            }
        };
        let ended = match &mut self.ranks {
            Origin::Warm(pooled) => pooled.run(spec, run_id, run_dir, &mut observer)?,
            Origin::Cold(program) => cold(program, &mut observer)?,
            Origin::Cuda(cuda) => cold(&cuda.ranks(spec, run_dir)?, &mut observer)?,
        };
        warn_of_survivors(&ended);
        Ok(!interrupted)
    }
}

/// The rank program of an order, which is started for each run. The files that it is started from are in `dir`.
pub(super) fn cold(order: &Order, dir: &Path) -> Result<RankProgram> {
    match &order.ranks {
        Ranks::Program(program) => Ok(program.clone()),
        Ranks::Cuda(cuda) => cuda.ranks(&order.spec, dir),
        Ranks::Cold(python) | Ranks::Warm(python) => {
            program(order.spec.engine(), python, dir, None)
        }
    }
}

/// The rank program of a real engine, or of the native engine on the CPU; with `pool`, the program of a real engine's
/// pool on that device. The files that it is started from are in `dir`.
fn program(engine: Engine, python: &Path, dir: &Path, pool: Option<Device>) -> Result<RankProgram> {
    Ok(match (engines::of(engine).is_real(), pool) {
        (false, _) => {
            native::cpu_ranks(native::program(Some(python)).map_err(NativeError::Missing)?)
        }
        (true, Some(device)) => adapters::pool_program(python, dir, engine, device)?,
        (true, None) => adapters::rank_program(python, dir)?,
    })
}

/// Warns of processes of a run that are still alive, if there are any.
pub(super) fn warn_of_survivors(Survivors { pids }: &Survivors) {
    if !pids.is_empty() {
        say(format_args!("warning: processes that cannot be killed: {pids:?}"));
    }
}
