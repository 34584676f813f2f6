//! Decides when to stop waiting for ranks: a pure state machine over the ranks' events and the times of these events.
//!
//! The rules, in the order in which they apply:
//!
//! 1. **After a crash** (a rank ended abnormally), the other ranks have a grace period of [`CRASH_GRACE`] to notice
//!    the crash and to report it. Silence has no meaning in that time, because the ranks wait for a peer that is gone.
//! 2. **Silence**: a rank that has neither finished nor ended is late once the timeout has passed without an event
//!    from it. A rank that waits for another rank in a [meeting](zprobe_model::trace::Meeting) is not late, however long it
//!    waits; its time starts when all ranks have come to the meeting. The verdict is put off until every rank that
//!    does not wait is late. So each rank that hangs has had its own timeout, whichever rank hung first. Ranks that
//!    continue to send events put the verdict off by at most [`TALKERS`] further timeouts. A rank that has finished
//!    gets [`LINGER_GRACE`] to end before the verdict.
//! 3. **Deadlock**: if every rank waits for another rank (in meetings of different kinds), all ranks are late once
//!    the timeout has passed since the last rank came to its meeting.
//! 4. **No rank**: if ranks join a run and none has joined, the timeout counts from the start of the run.
//! 5. **Lingering**: once no rank is left to wait for, the processes have [`LINGER_GRACE`] to end.
//!
//! Time in which a process was ready to run and had no CPU core does not count ([`Watchdog::starved`]), up to
//! [`STARVED`] times the timeout or grace period.

use std::time::{Duration, Instant};

use zprobe_model::trace::{Event, Meetings, Reached, Waiting};

/// The grace period of the other ranks after one rank has ended abnormally; cut to the timeout.
pub(super) const CRASH_GRACE: Duration = Duration::from_secs(3);

/// The time that processes may take to end once every rank has finished or ended.
pub(super) const LINGER_GRACE: Duration = Duration::from_secs(5);

/// The largest number of further timeouts by which ranks that continue to send events can delay the verdict about a
/// late rank.
const TALKERS: u32 = 4;

/// The largest factor by which processes that had no CPU core can extend a timeout or a grace period.
const STARVED: u32 = 20;

/// The state of each rank, with the times at which the states changed.
pub(super) struct Watchdog {
    timeout: Duration,
    /// The grace period of the other ranks after a crash; `None` if they may continue without a limit.
    crash_grace: Option<Duration>,
    linger_grace: Duration,
    started: Instant,
    ranks: Vec<WatchedRank>,
    meetings: Meetings,
    /// For each line of meetings, the last meeting that all ranks had come to at the last check.
    by_all: Reached,
    /// The time of the last change of `by_all`, for each line of meetings.
    since: [Instant; 2],
    crashed: Option<Instant>,
    /// The extension of the grace period after a crash, or of the grace period for ending.
    grace_starved: Duration,
}

struct WatchedRank {
    state: RankActivity,
    /// The time of the last event or state change of the rank.
    last: Instant,
    /// The time without a CPU core since `last`.
    starved: Duration,
}

impl WatchedRank {
    fn new(now: Instant) -> Self {
        Self { state: RankActivity::Running, last: now, starved: Duration::ZERO }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RankActivity {
    Running,
    Finished,
    Ended,
}

/// The decision of the watchdog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WatchdogDecision {
    /// The supervisor has nothing to do before this time, unless an event arrives.
    WaitUntil(Instant),
    /// The run is to be ended, because ranks are silent.
    Silent(Silence),
    /// The run is to be ended, because a grace period is over.
    GraceOver,
}

/// The ranks that are silent, and the ranks that wait for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Silence {
    /// The ranks that hang. In a deadlock, these are all ranks.
    pub(super) silent: Vec<usize>,
    /// The ranks that wait for others, with their meetings.
    pub(super) waiting: Vec<Waiting>,
}

/// A rank that has neither finished nor ended.
struct Running {
    rank: usize,
    waits: Option<Waiting>,
    /// The time at which the rank is late, if it does not wait for another rank.
    due: Instant,
}

impl Watchdog {
    /// Watches `ranks` ranks, which are being started at the time `now`.
    pub(super) fn new(ranks: usize, timeout: Duration, now: Instant) -> Self {
        Self {
            timeout,
            crash_grace: Some(CRASH_GRACE.min(timeout)),
            linger_grace: LINGER_GRACE,
            started: now,
            ranks: (0..ranks).map(|_| WatchedRank::new(now)).collect(),
            meetings: Meetings::new(ranks),
            by_all: Reached::default(),
            since: [now; 2],
            crashed: None,
            grace_starved: Duration::ZERO,
        }
    }

    /// Sets the two grace periods: `crash` for the other ranks after one has ended abnormally, cut to the timeout,
    /// and `linger` for processes to end after their work is done.
    pub(super) fn with_graces(self, crash: Option<Duration>, linger: Duration) -> Self {
        Self { crash_grace: crash.map(|it| it.min(self.timeout)), linger_grace: linger, ..self }
    }

    /// Extends the watch to at least `ranks` ranks; the timeout of each newly added rank starts at `now`.
    pub(super) fn grow(&mut self, ranks: usize, now: Instant) {
        while self.ranks.len() < ranks {
            self.ranks.push(WatchedRank::new(now));
        }
        self.meetings.grow(ranks);
    }

    /// True if a rank has ended abnormally.
    pub(super) fn has_crashed(&self) -> bool {
        self.crashed.is_some()
    }

    /// Notes that the process of a rank exists. The rank's time starts.
    pub(super) fn spawned(&mut self, rank: usize, now: Instant) {
        let state = self.ranks[rank].state;
        if state == RankActivity::Running {
            self.set_state(rank, state, now);
        }
    }

    /// Notes an event of a rank.
    pub(super) fn heard(&mut self, rank: usize, event: &Event, now: Instant) {
        self.meetings.see(rank, event);
        let state =
            if *event == Event::Finished { RankActivity::Finished } else { RankActivity::Running };
        self.set_state(rank, state, now);
    }

    /// Notes that the process of a rank has ended, with or without success. A rank that ends without having finished
    /// has crashed, even if its process ended with success.
    pub(super) fn ended(&mut self, rank: usize, success: bool, now: Instant) {
        let finished = self.ranks[rank].state == RankActivity::Finished;
        self.set_state(rank, RankActivity::Ended, now);
        if !(success && finished) {
            self.crashed.get_or_insert(now);
        }
    }

    fn set_state(&mut self, rank: usize, state: RankActivity, now: Instant) {
        self.ranks[rank] = WatchedRank { state, last: now, starved: Duration::ZERO };
        if state != RankActivity::Running {
            self.meetings.leave(rank);
        }
    }

    /// Adds `by` to the time for which a rank had no CPU core since its last event. Returns true if this gives the rank
    /// more time.
    pub(super) fn starved(&mut self, rank: usize, by: Duration) -> bool {
        lengthen(&mut self.ranks[rank].starved, by, self.timeout)
    }

    /// Adds `by` to the time during which the processes that zprobe waits for (after a crash or at the end) got no CPU
    /// core. Returns true if this extends the grace period.
    pub(super) fn grace_starved(&mut self, by: Duration) -> bool {
        let after_crash = self.crash_grace.filter(|_| self.has_crashed());
        lengthen(&mut self.grace_starved, by, after_crash.unwrap_or(self.linger_grace))
    }

    /// Returns the decision at the time `now`.
    pub(super) fn verdict(&mut self, now: Instant) -> WatchdogDecision {
        self.look_at_meetings(now);
        let grace = |start: Instant, grace: Duration| {
            let end = start + grace + self.grace_starved;
            if now < end { WatchdogDecision::WaitUntil(end) } else { WatchdogDecision::GraceOver }
        };
        if self.ranks.is_empty() {
            let late = self.started + self.timeout;
            let nobody = WatchdogDecision::Silent(Silence::default());
            return if now < late { WatchdogDecision::WaitUntil(late) } else { nobody };
        }
        if let (Some(crashed), Some(crash_grace)) = (self.crashed, self.crash_grace) {
            return grace(crashed, crash_grace);
        }
        let running = self.running();
        let awaited = |rank: &&Running| rank.waits.is_none();
        let (Some(first), Some(last)) = (
            running.iter().filter(awaited).map(|rank| rank.due).min(),
            running.iter().filter(awaited).map(|rank| rank.due).max(),
        ) else {
            // Every rank waits for another rank, or no rank is running.
            let Some(all_late) = running.iter().map(|rank| rank.due).max() else {
                let settled = self.ranks.iter().map(|rank| rank.last).max().unwrap_or(now);
                return grace(settled, self.linger_grace);
            };
            if now < all_late {
                return WatchdogDecision::WaitUntil(all_late);
            }
            return WatchdogDecision::Silent(Silence {
                silent: running.iter().map(|rank| rank.rank).collect(),
                waiting: running.iter().filter_map(|rank| rank.waits).collect(),
            });
        };
        if now < first {
            return WatchdogDecision::WaitUntil(first);
        }
        // A rank that has finished is about to end, and must not be cut off by the end of the others.
        let leaving = self.ranks.iter().filter(|rank| rank.state == RankActivity::Finished);
        let left = leaving.map(|rank| rank.last + rank.starved + self.linger_grace).max();
        let decision = last.min(first + self.timeout * TALKERS).max(left.unwrap_or(first));
        if now < decision {
            return WatchdogDecision::WaitUntil(decision);
        }
        let late = |rank: &&Running| rank.waits.is_none() && now >= rank.due;
        WatchdogDecision::Silent(Silence {
            silent: running.iter().filter(late).map(|rank| rank.rank).collect(),
            waiting: running.iter().filter_map(|rank| rank.waits).collect(),
        })
    }

    /// Notes the time at which all ranks have come to a meeting.
    fn look_at_meetings(&mut self, now: Instant) {
        let by_all = self.meetings.reached_by_all();
        for (line, since) in self.since.iter_mut().enumerate() {
            if by_all[line] != self.by_all[line] {
                *since = now;
            }
        }
        self.by_all = by_all;
    }

    fn running(&self) -> Vec<Running> {
        let running =
            self.ranks.iter().enumerate().filter(|(_, it)| it.state == RankActivity::Running);
        running
            .map(|(rank, it)| {
                let meeting = self.meetings.waits(rank, &self.by_all);
                // If all ranks have come to the meeting, a rank can continue only from the time at which the last of
                // them came.
                let came = self.meetings.line(rank).map(|line| self.since[line]);
                let free = came.map_or(it.last, |came| came.max(it.last));
                Running {
                    rank,
                    waits: meeting.map(|meeting| Waiting { rank, meeting }),
                    due: free + it.starved + self.timeout,
                }
            })
            .collect()
    }
}

/// Adds `by` to a time without a CPU core, up to [`STARVED`] times `whole`. Returns true if the time grew.
fn lengthen(starved: &mut Duration, by: Duration, whole: Duration) -> bool {
    let before = *starved;
    *starved = (before + by).min(whole * STARVED);
    *starved > before
}

#[cfg(test)]
mod tests;
