//! When to stop waiting: a pure state machine over what the ranks did and when.
//!
//! The rules, in the order in which they apply:
//!
//! 1. **After a crash** (a rank ended abnormally), the other ranks have [`CRASH_GRACE`] to notice
//!    and to say so. Silence means nothing in that time: they wait for a peer that is gone.
//! 2. **Silence**: a rank that has neither finished nor ended is late once the timeout has passed
//!    without an event from it. Ranks that wait for each other fall silent one after the other, so
//!    the verdict waits until every such rank is late, or for a fifth of the timeout past the first;
//!    then it names all that are late. A rank that speaks again in the meantime was only slow.
//! 3. **Lingering**: when no rank is left to wait for, processes have [`LINGER_GRACE`] to end.

use std::time::{Duration, Instant};

/// How long the other ranks have after one ended abnormally; less if the timeout is less.
pub(super) const CRASH_GRACE: Duration = Duration::from_secs(3);

/// How long processes may take to end once every rank has finished or ended.
pub(super) const LINGER_GRACE: Duration = Duration::from_secs(5);

/// What is known about each rank, and when it came to be known.
pub(super) struct Watchdog {
    timeout: Duration,
    ranks: Vec<Rank>,
    crashed: Option<Instant>,
}

struct Rank {
    state: State,
    /// The last sign of life.
    last: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Finished,
    Ended,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing before this time, unless something happens.
    WaitUntil(Instant),
    /// End the run: these ranks are silent.
    Silent(Vec<usize>),
    /// End the run: a grace is over.
    GraceOver,
}

impl Watchdog {
    /// Watches `ranks` ranks that are being started `now`.
    pub(super) fn new(ranks: usize, timeout: Duration, now: Instant) -> Self {
        let ranks = (0..ranks).map(|_| Rank { state: State::Running, last: now }).collect();
        Self { timeout, ranks, crashed: None }
    }

    /// An event came from a rank.
    pub(super) fn heard(&mut self, rank: usize, now: Instant) {
        self.ranks[rank].last = now;
    }

    /// A rank has said that it is done.
    pub(super) fn finished(&mut self, rank: usize, now: Instant) {
        self.ranks[rank] = Rank { state: State::Finished, last: now };
    }

    /// The process of a rank has ended, with success or without. Whoever ends without having
    /// finished has crashed, even with success.
    pub(super) fn ended(&mut self, rank: usize, success: bool, now: Instant) {
        let finished = self.ranks[rank].state == State::Finished;
        self.ranks[rank] = Rank { state: State::Ended, last: now };
        if !(success && finished) {
            self.crashed.get_or_insert(now);
        }
    }

    /// Judges the situation.
    pub(super) fn verdict(&self, now: Instant) -> Verdict {
        let deadline = |at: Instant| {
            if now < at { Verdict::WaitUntil(at) } else { Verdict::GraceOver }
        };
        if let Some(crashed) = self.crashed {
            return deadline(crashed + CRASH_GRACE.min(self.timeout));
        }
        let running =
            || self.ranks.iter().enumerate().filter(|(_, rank)| rank.state == State::Running);
        let lasts = || running().map(|(_, rank)| rank.last);
        let (Some(first), Some(last)) = (lasts().min(), lasts().max()) else {
            let settled = self.ranks.iter().map(|rank| rank.last).max().unwrap_or(now);
            return deadline(settled + LINGER_GRACE);
        };
        let first_late = first + self.timeout;
        if now < first_late {
            return Verdict::WaitUntil(first_late);
        }
        let all_late = last + self.timeout;
        let decision = all_late.min(first_late + self.timeout / 5);
        if now < decision {
            return Verdict::WaitUntil(decision);
        }
        let late = running().filter(|(_, rank)| now >= rank.last + self.timeout);
        Verdict::Silent(late.map(|(rank, _)| rank).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn two_ranks() -> (Watchdog, Instant) {
        let start = Instant::now();
        (Watchdog::new(2, TIMEOUT, start), start)
    }

    #[test]
    fn ranks_that_never_say_anything_are_both_named() {
        let (dog, t0) = two_ranks();
        assert_eq!(dog.verdict(t0), Verdict::WaitUntil(t0 + TIMEOUT));
        assert_eq!(dog.verdict(t0 + TIMEOUT), Verdict::Silent(vec![0, 1]));
    }

    #[test]
    fn a_rank_blocked_by_the_hung_one_is_named_with_it() {
        let (mut dog, t0) = two_ranks();
        dog.heard(0, t0 + seconds(1.0));
        dog.heard(1, t0 + seconds(1.5));
        let all_late = t0 + seconds(11.5);
        assert_eq!(dog.verdict(t0 + seconds(11.0)), Verdict::WaitUntil(all_late));
        assert_eq!(dog.verdict(all_late), Verdict::Silent(vec![0, 1]));
    }

    #[test]
    fn a_rank_that_goes_on_talking_is_not_named() {
        let (mut dog, t0) = two_ranks();
        dog.heard(1, t0 + seconds(9.0));
        assert_eq!(dog.verdict(t0 + seconds(10.0)), Verdict::WaitUntil(t0 + seconds(12.0)));
        dog.heard(1, t0 + seconds(11.0));
        assert_eq!(dog.verdict(t0 + seconds(12.0)), Verdict::Silent(vec![0]));
    }

    #[test]
    fn a_rank_that_speaks_again_before_the_verdict_was_only_slow() {
        let (mut dog, t0) = two_ranks();
        dog.heard(1, t0 + seconds(9.0));
        dog.heard(0, t0 + seconds(11.0));
        assert_eq!(dog.verdict(t0 + seconds(12.0)), Verdict::WaitUntil(t0 + seconds(19.0)));
    }

    #[test]
    fn after_a_crash_the_others_have_a_grace_and_their_silence_is_not_judged() {
        let (mut dog, t0) = two_ranks();
        dog.ended(0, false, t0 + seconds(9.0));
        let over = t0 + seconds(9.0) + CRASH_GRACE;
        assert_eq!(dog.verdict(t0 + seconds(11.0)), Verdict::WaitUntil(over));
        assert_eq!(dog.verdict(over), Verdict::GraceOver);
    }

    #[test]
    fn ending_without_finished_is_a_crash_and_ending_after_it_is_none() {
        let (mut dog, t0) = two_ranks();
        dog.finished(0, t0);
        dog.ended(0, true, t0);
        assert_eq!(dog.verdict(t0), Verdict::WaitUntil(t0 + TIMEOUT));
        dog.ended(1, true, t0);
        assert_eq!(dog.verdict(t0), Verdict::WaitUntil(t0 + CRASH_GRACE));
    }

    #[test]
    fn the_lingering_clock_starts_when_the_last_rank_has_finished() {
        let (mut dog, t0) = two_ranks();
        dog.finished(0, t0);
        dog.finished(1, t0 + seconds(8.0));
        let over = t0 + seconds(8.0) + LINGER_GRACE;
        assert_eq!(dog.verdict(t0 + seconds(12.0)), Verdict::WaitUntil(over));
        assert_eq!(dog.verdict(over), Verdict::GraceOver);
    }
}
