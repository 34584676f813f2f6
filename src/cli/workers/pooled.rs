//! Runs over a pool that is there when it is needed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use zprobe::adapters;
use zprobe::launch::{Launch, LaunchError, Pool, RankProgram, Source};
use zprobe::native;
use zprobe::spec::{Engine, RunSpec};
use zprobe::trace::Record;

use crate::cli::run;

/// How long an engine may take to be imported: a busy machine takes a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// A pool, started when it is needed and again when it has died.
pub struct Pooled {
    program: RankProgram,
    dir: PathBuf,
    pool: Option<Pool>,
}

impl Pooled {
    /// A pool of `engine`, whose program and logs are in `dir`.
    pub fn new(engine: Engine, python: &Path, dir: &Path) -> Result<Self> {
        let program = match engine {
            Engine::Native => native::cpu_ranks(native::program()?),
            _ => adapters::pool_program(python, dir, engine)?,
        };
        Ok(Self { program, dir: dir.to_owned(), pool: None })
    }

    /// Makes a run and leaves its trace in its directory. A run for which there was no pool is
    /// tried once more, over a new one.
    pub fn run(
        &mut self,
        spec: &RunSpec,
        run_id: &str,
        run_dir: &Path,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<()> {
        let mut again = true;
        loop {
            let pool = match &self.pool {
                Some(pool) => pool,
                None => self.pool.insert(Pool::start(&self.program, &self.dir, PATIENCE)?),
            };
            let launch = Launch { run_id, spec, source: Source::Warm(pool), run_dir };
            match launch.run(observer) {
                Ok(ended) => {
                    run::warn_of_survivors(&ended);
                    return Ok(());
                }
                Err(LaunchError::Pool { .. }) if again => {
                    self.pool = None;
                    again = false;
                    continue;
                }
                Err(error) => {
                    self.pool = None;
                    return Err(error).context("there was nothing to watch");
                }
            }
        }
    }
}
