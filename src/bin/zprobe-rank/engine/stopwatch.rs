//! The duration of a step.

use std::time::{Duration, Instant};

/// Time since it was started, but for the time during which it was paused.
pub struct Stopwatch {
    started: Instant,
    paused: Duration,
}

impl Stopwatch {
    /// Starts one.
    pub fn start() -> Self {
        Self { started: Instant::now(), paused: Duration::ZERO }
    }

    /// Leaves out how long this takes.
    pub fn pause<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = Instant::now();
        let done = work();
        self.paused += before.elapsed();
        done
    }

    /// Nanoseconds.
    pub fn elapsed_ns(&self) -> u64 {
        u64::try_from((self.started.elapsed() - self.paused).as_nanos()).unwrap_or(u64::MAX)
    }
}
