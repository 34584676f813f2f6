//! Runs over a pool that is there when it is needed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use zprobe_launch::{Ended, Launch, LaunchError, Pool, RankProgram, Source};
use zprobe_model::spec::RunSpec;
use zprobe_model::trace::Record;

/// Time that an engine may take to be imported; a busy machine needs a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// Number of pools in a row that may fail to start; after these, none is tried any more.
const ATTEMPTS: usize = 2;

/// A pool, started when it is needed and again when it has died.
pub struct Pooled {
    program: RankProgram,
    /// Directory for the logs of pools, each in a directory of its own.
    dir: PathBuf,
    started: usize,
    pool: Option<Pool>,
    /// Number of pools that failed to start since one did start, and the error of the last of them.
    failed: (usize, String),
}

impl Pooled {
    /// A pool of `program`, whose logs are in `dir`.
    pub fn new(program: RankProgram, dir: PathBuf) -> Self {
        Self { program, dir, started: 0, pool: None, failed: (0, String::new()) }
    }

    /// Makes a run and leaves its trace in its directory. A run for which there was no pool is
    /// tried once more, over a new one.
    pub fn run(
        &mut self,
        spec: &RunSpec,
        run_id: &str,
        run_dir: &Path,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<Ended> {
        let mut again = true;
        loop {
            let pool = match &self.pool {
                Some(pool) => pool,
                None => {
                    let pool = self.start()?;
                    self.pool.insert(pool)
                }
            };
            let launch = Launch { run_id, spec, source: Source::Warm(pool), run_dir };
            match launch.run(observer) {
                Ok(ended) => return Ok(ended),
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

    /// Starts a pool, unless the last ones did not start, which may have taken minutes each.
    fn start(&mut self) -> Result<Pool> {
        let (count, reason) = &mut self.failed;
        if *count == ATTEMPTS {
            bail!("no pool was started, because {ATTEMPTS} in a row did not: {reason}");
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
