//! The queue of an experiment's jobs, which is the only owner of signals, fail-fast, time limit and progress.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::console::{ProgressLine, say};
use zprobe_launch::Stop;

/// Largest number of log lines about finished jobs, in addition to the line about the first job.
const MILESTONES: usize = 10;

/// The longest delay of a signal between the first and the last process of a group that receive it.
const SIGNALS: Duration = Duration::from_secs(1);

/// A queue of jobs. While a queue exists, the first signal of the user ends the queue, and not the process.
pub struct Queue {
    stop: Stop,
    line: ProgressLine,
    jobs: usize,
    started: AtomicUsize,
    /// True if a log has a line for each job when the job starts.
    announces: bool,
    /// True if the queue ends after the first failure.
    fail_fast: bool,
    failed: AtomicBool,
    end: Option<Instant>,
    began: Instant,
    done: AtomicUsize,
}

/// The reason why the queue did not start a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// The user has ended the queue by a signal.
    Interrupted,
    /// An earlier job has failed, and the queue is set to fail fast.
    AfterFailure,
    /// The time limit was reached.
    TimeIsUp,
}

impl Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Interrupted => "interrupted before it was started",
            Self::AfterFailure => "not started after a failure (--fail-fast)",
            Self::TimeIsUp => "not started: time was up (--time-limit)",
        })
    }
}

impl Queue {
    /// A queue for this number of jobs; no job has been started.
    pub fn new(jobs: usize) -> Result<Self> {
        Self::with(ProgressLine::counter(jobs), jobs)
    }

    /// A queue for an unknown number of jobs, which name their current step by [`Queue::begin`].
    pub fn uncounted() -> Result<Self> {
        Self::with(ProgressLine::timed(), 0)
    }

    /// A queue that shows no progress.
    pub fn unseen() -> Result<Self> {
        Self::with(ProgressLine::hidden(), 0)
    }

    fn with(line: ProgressLine, jobs: usize) -> Result<Self> {
        Ok(Self {
            stop: Stop::listen().context("cannot listen to signals")?,
            line,
            jobs,
            started: AtomicUsize::new(0),
            announces: false,
            fail_fast: false,
            failed: AtomicBool::new(false),
            end: None,
            began: Instant::now(),
            done: AtomicUsize::new(0),
        })
    }

    /// This queue, set to start no job after the first failure if `fail_fast`.
    #[must_use]
    pub fn fail_fast(self, fail_fast: bool) -> Self {
        Self { fail_fast, ..self }
    }

    /// This queue, set to start no job after the time limit.
    #[must_use]
    pub fn time_limit(self, limit: Option<Duration>) -> Self {
        Self { end: limit.and_then(|limit| Instant::now().checked_add(limit)), ..self }
    }

    /// This queue, set to announce each job in a log when the job starts, because jobs may take minutes.
    #[must_use]
    pub fn announcing(self) -> Self {
        Self { announces: true, ..self }
    }

    /// The reason why no more jobs are started; `None` while jobs may be started.
    pub fn over(&self) -> Option<NotStarted> {
        if self.stop.is_wanted() {
            Some(NotStarted::Interrupted)
        } else if self.fail_fast && self.failed.load(Ordering::Relaxed) {
            Some(NotStarted::AfterFailure)
        } else {
            self.end.filter(|end| Instant::now() >= *end).map(|_| NotStarted::TimeIsUp)
        }
    }

    /// True if the user has ended the queue or the worker of a job. A failure of that job is then not its result.
    pub fn is_interrupted(&self, worker_was_stopped: bool) -> bool {
        if worker_was_stopped {
            // A signal to the whole process group may reach the worker first. Waiting for it keeps another job from
            // being started.
            let end = Instant::now() + SIGNALS;
            while !self.stop.is_wanted() && Instant::now() < end {
                thread::sleep(Duration::from_millis(1));
            }
        }
        worker_was_stopped || self.over() == Some(NotStarted::Interrupted)
    }

    /// Notes that a job has failed.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Prints a text above the progress line.
    pub fn say(&self, text: impl Display) {
        self.line.say(text);
    }

    /// Shows the current step on a terminal, with the seconds that the step takes.
    pub fn begin(&self, text: &str) {
        self.line.begin(text);
    }

    /// True where the progress line is not shown.
    pub fn is_hidden(&self) -> bool {
        self.line.is_hidden()
    }

    /// Does a job on the calling thread, unless the queue is over.
    pub fn job<R>(&self, label: &str, work: impl FnOnce() -> R) -> Result<R, NotStarted> {
        if let Some(reason) = self.over() {
            return Err(reason);
        }
        let number = 1 + self.started.fetch_add(1, Ordering::Relaxed);
        if self.announces && self.line.is_hidden() {
            let took = self.began.elapsed().as_secs();
            say(format_args!("[{number}/{}] {label} ({took} s)", self.jobs));
        } else {
            self.line.show(label);
        }
        let result = work();
        self.line.advance();
        let done = 1 + self.done.fetch_add(1, Ordering::Relaxed);
        if !self.announces && self.line.is_hidden() && self.is_milestone(done) {
            let took = self.began.elapsed().as_secs();
            say(format_args!("[{done}/{}] {label} ({took} s)", self.jobs));
        }
        Ok(result)
    }

    /// True if a log has a line after this number of finished jobs: after the first, which has loaded the engine, and
    /// after each tenth of all jobs.
    fn is_milestone(&self, done: usize) -> bool {
        let part = |done: usize| done * MILESTONES / self.jobs;
        self.jobs > 1 && (done == 1 || part(done) > part(done - 1))
    }

    /// Has all jobs done by `workers` workers side by side; `worker` makes a worker from its number. The results are
    /// in the order of the jobs.
    pub fn all<J: Sync, W, R: Send>(
        &self,
        jobs: &[J],
        (workers, worker): (usize, impl Fn(usize) -> W + Sync),
        label: impl Fn(usize, &J) -> String + Sync,
        work: impl Fn(&mut W, &J) -> Result<R, NotStarted> + Sync,
    ) -> Vec<Result<R, NotStarted>> {
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::with_capacity(jobs.len()));
        let one_after_the_other = |number: usize| {
            let mut worker = worker(number);
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(at) else { return };
                let result = self.job(&label(at, job), || work(&mut worker, job)).flatten();
                results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
            }
        };
        thread::scope(|scope| {
            let work = &one_after_the_other;
            for number in 0..workers.min(jobs.len()) {
                scope.spawn(move || work(number));
            }
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(at, _)| *at);
        results.into_iter().map(|(_, result)| result).collect()
    }
}
