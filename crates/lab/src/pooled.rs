//! Runs over a pool that is started when a run needs it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use zprobe_launch::{HostSource, Launch, LaunchError, Pool, RankProgram, Survivors};
use zprobe_model::spec::RunSpec;
use zprobe_model::trace::Record;

/// The time limit for the import of an engine; a busy machine needs a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// Number of pools in a row that may fail to start; after that, no further pool is tried.
const ATTEMPTS: usize = 2;

/// A pool that is started when a run needs it, and started again after it has died.
pub struct Pooled {
    program: RankProgram,
    /// The directory for the logs of the pools, each in a directory of its own.
    dir: PathBuf,
    started: usize,
    pool: Option<Pool>,
    /// The number of failed starts since the last successful one, and the error of the last failed start.
    failed: (usize, String),
}

impl Pooled {
    /// A pool of `program` that is not started yet; its logs go to `dir`.
    pub fn new(program: RankProgram, dir: PathBuf) -> Self {
        Self { program, dir, started: 0, pool: None, failed: (0, String::new()) }
    }

    /// Makes a run and leaves its trace in its directory. A run that failed because the pool was gone is tried once
    /// more, over a new pool.
    pub fn run(
        &mut self,
        spec: &RunSpec,
        run_id: &str,
        run_dir: &Path,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<Survivors> {
        let mut again = true;
        loop {
            let pool = match &self.pool {
                Some(pool) => pool,
                None => {
                    let pool = self.start()?;
                    self.pool.insert(pool)
                }
            };
            let launch = Launch { run_id, spec, source: HostSource::Warm(pool), run_dir };
            match launch.run(observer) {
                Ok(ended) => return Ok(ended),
                Err(LaunchError::Pool { .. }) if again => {
                    self.pool = None;
                    again = false;
                    continue;
                }
                Err(error) => {
                    self.pool = None;
                    return Err(error).context("the run could not be watched");
                }
            }
        }
    }

    /// Starts a pool, unless the last [`ATTEMPTS`] starts have failed, because each of them may have taken minutes.
    fn start(&mut self) -> Result<Pool> {
        let (count, reason) = &mut self.failed;
        if *count == ATTEMPTS {
            bail!(
                "no pool was started, because the last {ATTEMPTS} pools failed to start: {reason}"
            );
        }
        let dir = self.dir.join(self.started.to_string());
        self.started += 1;
        match Pool::start(&self.program, &dir, PATIENCE) {
            Ok(pool) => {
                *count = 0;
                Ok(pool)
            }
            Err(error) => {
                *count += 1;
                *reason = error.to_string();
                Err(error.into())
            }
        }
    }
}
