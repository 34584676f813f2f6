//! A stopwatch for the duration of a step.

use std::time::{Duration, Instant};

/// A stopwatch that does not count the time during which it is paused.
pub struct Stopwatch {
    started: Instant,
    paused: Duration,
}

impl Stopwatch {
    /// Starts a stopwatch.
    pub fn start() -> Self {
        Self { started: Instant::now(), paused: Duration::ZERO }
    }

    /// Runs `work` without counting its time.
    pub fn pause<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = Instant::now();
        let done = work();
        self.paused += before.elapsed();
        done
    }

    /// The measured time in nanoseconds.
    pub fn elapsed_ns(&self) -> u64 {
        u64::try_from((self.started.elapsed() - self.paused).as_nanos()).unwrap_or(u64::MAX)
    }
}
