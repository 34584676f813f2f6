//! Decides when to stop waiting for ranks: a pure state machine over their events and the times of
//! these.
//!
//! The rules, in the order in which they apply:
//!
//! 1. **After a crash** (a rank ended abnormally), the other ranks have [`CRASH_GRACE`] to notice
//!    and to say so. Silence means nothing in that time: they wait for a peer that is gone.
//! 2. **Silence**: a rank that has neither finished nor ended is late once the timeout has passed
//!    without an event from it. One that waits for another in a [meeting](zprobe_model::trace::Meeting) is
//!    not late, however long it waits; its time starts when all ranks have come to the meeting. The
//!    verdict is put off until every rank that does not wait is late, so that each rank that hangs
//!    has had a timeout of its own, whichever hung first. For ranks that go on sending events it is
//!    put off by at most [`TALKERS`] timeouts more. A rank that has finished gets [`LINGER_GRACE`]
//!    to end before the verdict.
//! 3. **Deadlock**: where every rank waits for another (in meetings of different kinds), all are
//!    late once the timeout has passed since the last of them came.
//! 4. **Nobody**: where ranks join, and none has joined, the timeout counts from the start.
//! 5. **Lingering**: when no rank is left to wait for, processes have [`LINGER_GRACE`] to end.
//!
//! Time in which a process was ready to run and had no core does not count ([`Watchdog::starved`]),
//! up to [`STARVED`] times its timeout or grace.

use std::time::{Duration, Instant};

use zprobe_model::trace::{Event, Meetings, Reached, Waiting};

/// Time that the other ranks have after one ended abnormally; less if the timeout is less.
pub(super) const CRASH_GRACE: Duration = Duration::from_secs(3);

/// Time that processes may take to end once every rank has finished or ended.
pub(super) const LINGER_GRACE: Duration = Duration::from_secs(5);

/// Number of timeouts for which the verdict, once a rank is late, still waits for ranks that go on
/// sending events.
const TALKERS: u32 = 4;

/// Number of times by which a timeout or a grace may grow for processes that had no core.
const STARVED: u32 = 20;

/// State of each rank, with the times at which it changed.
pub(super) struct Watchdog {
    timeout: Duration,
    /// None where others are left to themselves after a crash.
    crash_grace: Option<Duration>,
    linger_grace: Duration,
    started: Instant,
    ranks: Vec<Rank>,
    meetings: Meetings,
    /// Meetings that all ranks had come to at the last look.
    by_all: Reached,
    /// Time of the last change of `by_all`, for each line of meetings.
    since: [Instant; 2],
    crashed: Option<Instant>,
    /// Extension of the grace after a crash, or of the one for ending.
    grace_starved: Duration,
}

struct Rank {
    state: State,
    /// Time of the last sign of life.
    last: Instant,
    /// Time without a core since the last sign of life.
    starved: Duration,
}

impl Rank {
    fn new(now: Instant) -> Self {
        Self { state: State::Running, last: now, starved: Duration::ZERO }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Finished,
    Ended,
}

/// Decision of the watchdog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Do nothing before this time, unless an event comes.
    WaitUntil(Instant),
    /// End the run: ranks are silent.
    Silent(Silence),
    /// End the run: a grace is over.
    GraceOver,
}

/// Ranks that are silent, and ranks that wait for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Silence {
    /// Ranks that hang; in a deadlock, all.
    pub(super) silent: Vec<usize>,
    /// Ranks that wait for others.
    pub(super) waiting: Vec<Waiting>,
}

/// A rank that has neither finished nor ended.
struct Running {
    rank: usize,
    waits: Option<Waiting>,
    /// Time at which the rank is late, if it does not wait for another.
    due: Instant,
}

impl Watchdog {
    /// Watches `ranks` ranks that are being started `now`.
    pub(super) fn new(ranks: usize, timeout: Duration, now: Instant) -> Self {
        Self {
            timeout,
            crash_grace: Some(CRASH_GRACE.min(timeout)),
            linger_grace: LINGER_GRACE,
            started: now,
            ranks: (0..ranks).map(|_| Rank::new(now)).collect(),
            meetings: Meetings::new(ranks),
            by_all: Reached::default(),
            since: [now; 2],
            crashed: None,
            grace_starved: Duration::ZERO,
        }
    }

    /// Gives the other ranks this long after one has ended abnormally, less if the timeout is less; and processes that
    /// are done this long to end.
    pub(super) fn with_graces(self, crash: Option<Duration>, linger: Duration) -> Self {
        Self { crash_grace: crash.map(|it| it.min(self.timeout)), linger_grace: linger, ..self }
    }

    /// Watches as many ranks, at least, from `now` on.
    pub(super) fn grow(&mut self, ranks: usize, now: Instant) {
        while self.ranks.len() < ranks {
            self.ranks.push(Rank::new(now));
        }
        self.meetings.grow(ranks);
    }

    /// True if a rank has ended abnormally.
    pub(super) fn has_crashed(&self) -> bool {
        self.crashed.is_some()
    }

    /// Takes note that the process of a rank exists: its time starts.
    pub(super) fn spawned(&mut self, rank: usize, now: Instant) {
        let state = self.ranks[rank].state;
        if state == State::Running {
            self.enters(rank, state, now);
        }
    }

    /// Takes note of an event of a rank.
    pub(super) fn heard(&mut self, rank: usize, event: &Event, now: Instant) {
        self.meetings.see(rank, event);
        let state = if *event == Event::Finished { State::Finished } else { State::Running };
        self.enters(rank, state, now);
    }

    /// Takes note that the process of a rank has ended, with or without success. A rank that ends
    /// without having finished has crashed, even with success.
    pub(super) fn ended(&mut self, rank: usize, success: bool, now: Instant) {
        let finished = self.ranks[rank].state == State::Finished;
        self.enters(rank, State::Ended, now);
        if !(success && finished) {
            self.crashed.get_or_insert(now);
        }
    }

    fn enters(&mut self, rank: usize, state: State, now: Instant) {
        self.ranks[rank] = Rank { state, last: now, starved: Duration::ZERO };
        if state != State::Running {
            self.meetings.leave(rank);
        }
    }

    /// Adds to the time for which a rank was ready to run and had no core since its last event.
    /// Returns true if the rank has more time because of it.
    pub(super) fn starved(&mut self, rank: usize, by: Duration) -> bool {
        lengthen(&mut self.ranks[rank].starved, by, self.timeout)
    }

    /// Adds to the time for which processes that are awaited after a crash, or at the end, had no
    /// core. Returns true if the grace is longer because of it.
    pub(super) fn grace_starved(&mut self, by: Duration) -> bool {
        let after_crash = self.crash_grace.filter(|_| self.has_crashed());
        lengthen(&mut self.grace_starved, by, after_crash.unwrap_or(self.linger_grace))
    }

    /// Decides what to do at the time `now`.
    pub(super) fn verdict(&mut self, now: Instant) -> Verdict {
        self.look_at_meetings(now);
        let grace = |start: Instant, grace: Duration| {
            let end = start + grace + self.grace_starved;
            if now < end { Verdict::WaitUntil(end) } else { Verdict::GraceOver }
        };
        if self.ranks.is_empty() {
            let late = self.started + self.timeout;
            let nobody = Verdict::Silent(Silence::default());
            return if now < late { Verdict::WaitUntil(late) } else { nobody };
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
            // Every rank waits for another, or no rank is running.
            let Some(all_late) = running.iter().map(|rank| rank.due).max() else {
                let settled = self.ranks.iter().map(|rank| rank.last).max().unwrap_or(now);
                return grace(settled, self.linger_grace);
            };
            if now < all_late {
                return Verdict::WaitUntil(all_late);
            }
            return Verdict::Silent(Silence {
                silent: running.iter().map(|rank| rank.rank).collect(),
                waiting: running.iter().filter_map(|rank| rank.waits).collect(),
            });
        };
        if now < first {
            return Verdict::WaitUntil(first);
        }
        // A rank that has finished is about to end, and must not be cut off by the end of the
        // others.
        let leaving = self.ranks.iter().filter(|rank| rank.state == State::Finished);
        let left = leaving.map(|rank| rank.last + rank.starved + self.linger_grace).max();
        let decision = last.min(first + self.timeout * TALKERS).max(left.unwrap_or(first));
        if now < decision {
            return Verdict::WaitUntil(decision);
        }
        let late = |rank: &&Running| rank.waits.is_none() && now >= rank.due;
        Verdict::Silent(Silence {
            silent: running.iter().filter(late).map(|rank| rank.rank).collect(),
            waiting: running.iter().filter_map(|rank| rank.waits).collect(),
        })
    }

    /// Takes note of the time at which all ranks have come to a meeting.
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
        let running = self.ranks.iter().enumerate().filter(|(_, it)| it.state == State::Running);
        running
            .map(|(rank, it)| {
                let meeting = self.meetings.waits(rank, &self.by_all);
                // In a meeting to which all ranks have come, a rank can go on only since the last
                // one came.
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

/// Adds `by` to a time without a core, up to [`STARVED`] times `whole`. Returns true if the time
/// grew.
fn lengthen(starved: &mut Duration, by: Duration, whole: Duration) -> bool {
    let before = *starved;
    *starved = (before + by).min(whole * STARVED);
    *starved > before
}

#[cfg(test)]
mod tests;
