use proptest::prelude::*;

use super::*;
use zprobe_model::trace::{CollectiveOp, Meeting, Phase};

const TIMEOUT: Duration = Duration::from_secs(10);

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn ranks(ranks: usize) -> (Watchdog, Instant) {
    let start = Instant::now();
    (Watchdog::new(ranks, TIMEOUT, start), start)
}

fn works() -> Event {
    Event::PhaseEntered { step: 0, microbatch: 0, phase: Phase::Forward }
}

fn ready() -> Event {
    Event::RankReady { versions: std::collections::BTreeMap::new(), device: "cpu".to_owned() }
}

fn enters(sequence: u64) -> Event {
    let op = CollectiveOp::AllReduce;
    Event::CollectiveEntered { sequence, op, dtype: "fp32".to_owned(), numel: 1 }
}

fn exchanges() -> Event {
    Event::PhaseEntered { step: 0, microbatch: 0, phase: Phase::Digests }
}

fn in_collective(rank: usize, sequence: u64) -> Waiting {
    Waiting { rank, meeting: Meeting::Collective { sequence, op: CollectiveOp::AllReduce } }
}

fn silent(silent: &[usize], waiting: &[Waiting]) -> WatchdogDecision {
    WatchdogDecision::Silent(Silence { silent: silent.to_vec(), waiting: waiting.to_vec() })
}

/// Feeds the watchdog these events, each with its second and its rank, and asks for a verdict whenever the watchdog
/// wants to. Returns the final verdict with its second.
fn verdict_on(ranks: usize, mut events: Vec<(f64, usize, Event)>) -> (WatchdogDecision, f64) {
    events.sort_by(|one, other| one.0.total_cmp(&other.0));
    let start = Instant::now();
    let mut dog = Watchdog::new(ranks, TIMEOUT, start);
    let mut events = events.into_iter().peekable();
    let mut now = start;
    loop {
        match dog.verdict(now) {
            WatchdogDecision::WaitUntil(until) => {
                assert!(until > now, "the watchdog wants to judge again at once");
                let next = events.peek().map(|(at, ..)| start + seconds(*at));
                match next.filter(|next| *next < until) {
                    Some(next) => {
                        now = next;
                        let (_, rank, event) = events.next().unwrap();
                        dog.heard(rank, &event, now);
                    }
                    None => now = until,
                }
            }
            verdict => return (verdict, (now - start).as_secs_f64()),
        }
    }
}

#[test]
fn ranks_that_never_say_anything_are_both_named() {
    assert_eq!(verdict_on(2, vec![]), (silent(&[0, 1], &[]), 10.0));
}

#[test]
fn who_waits_in_a_collective_is_not_named_and_who_hung_later_is() {
    let events = vec![(1.0, 0, enters(4)), (4.0, 1, works())];
    assert_eq!(verdict_on(2, events), (silent(&[1], &[in_collective(0, 4)]), 14.0));
}

#[test]
fn two_that_hang_are_both_named_however_far_apart() {
    let mut events = vec![(0.5, 0, enters(4)), (1.0, 1, works())];
    events.extend([2.0, 11.0, 20.0].map(|at| (at, 2, works())));
    assert_eq!(verdict_on(3, events), (silent(&[1, 2], &[in_collective(0, 4)]), 30.0));
}

#[test]
fn a_rank_may_be_waited_for_as_long_as_it_talks() {
    let mut events = vec![(0.0, 0, enters(0))];
    events.extend((0..100).map(|n| (f64::from(n) * 9.0, 1, works())));
    let (verdict, at) = verdict_on(2, events);
    assert_eq!(verdict, silent(&[1], &[in_collective(0, 0)]));
    assert!((at - 901.0).abs() < 1e-6, "{at}");
}

#[test]
fn who_waited_has_a_timeout_of_its_own_once_everybody_has_come() {
    let events = vec![(0.0, 0, enters(0)), (9.0, 1, works()), (18.0, 1, enters(0))];
    assert_eq!(verdict_on(2, events), (silent(&[0, 1], &[]), 28.0));
}

#[test]
fn a_rank_that_goes_on_talking_is_not_named_and_does_not_keep_the_hung_one_from_it() {
    let talks = (0..1000).map(|n| (f64::from(n), 1, works())).collect();
    assert_eq!(verdict_on(2, talks), (silent(&[0], &[]), 50.0));
}

#[test]
fn a_rank_that_speaks_again_before_the_verdict_was_only_slow() {
    let (mut dog, t0) = ranks(2);
    dog.heard(1, &works(), t0 + seconds(9.0));
    dog.heard(0, &works(), t0 + seconds(11.0));
    assert_eq!(dog.verdict(t0 + seconds(12.0)), WatchdogDecision::WaitUntil(t0 + seconds(19.0)));
}

#[test]
fn who_is_furthest_behind_hangs_where_all_are_in_collectives() {
    let events = vec![(0.0, 0, enters(5)), (0.0, 1, enters(5)), (1.0, 1, enters(6))];
    assert_eq!(verdict_on(2, events), (silent(&[0], &[in_collective(1, 6)]), 10.0));
}

#[test]
fn who_is_ready_waits_for_who_was_never_heard() {
    let waiting = Waiting { rank: 0, meeting: Meeting::Start };
    assert_eq!(verdict_on(2, vec![(9.0, 0, ready())]), (silent(&[1], &[waiting]), 10.0));
}

#[test]
fn ranks_that_wait_for_each_other_are_all_named() {
    let events = vec![(0.0, 0, enters(0)), (1.0, 0, exchanges()), (2.0, 1, enters(0))];
    let mut deadlock = events.clone();
    deadlock.push((3.0, 1, enters(1)));
    let waiting = [Waiting { rank: 0, meeting: Meeting::Digests { step: 0 } }, in_collective(1, 1)];
    assert_eq!(verdict_on(2, deadlock), (silent(&[0, 1], &waiting), 13.0));
    assert_eq!(verdict_on(2, events), (silent(&[1], &waiting[..1]), 12.0));
}

#[test]
fn who_has_finished_may_end_before_the_others_are() {
    let (mut dog, t0) = ranks(2);
    dog.heard(0, &Event::Finished, t0 + seconds(9.0));
    assert_eq!(
        dog.verdict(t0 + TIMEOUT),
        WatchdogDecision::WaitUntil(t0 + seconds(9.0) + LINGER_GRACE)
    );
    dog.ended(0, true, t0 + seconds(11.0));
    assert_eq!(dog.verdict(t0 + seconds(11.0)), silent(&[1], &[]));
}

#[test]
fn nobody_waits_for_a_rank_that_has_finished() {
    let events = vec![(0.0, 0, enters(0)), (4.0, 1, works()), (8.0, 1, Event::Finished)];
    assert_eq!(verdict_on(2, events), (silent(&[0], &[]), 18.0));
}

#[test]
fn time_without_a_core_does_not_count_and_does_not_go_on_for_ever() {
    let (mut dog, t0) = ranks(1);
    assert_eq!(dog.verdict(t0 + TIMEOUT), silent(&[0], &[]));
    assert!(dog.starved(0, seconds(3.0)));
    let later = t0 + seconds(13.0);
    assert_eq!(dog.verdict(t0 + TIMEOUT), WatchdogDecision::WaitUntil(later));
    assert_eq!(dog.verdict(later), silent(&[0], &[]));
    assert!(dog.starved(0, TIMEOUT * 100));
    let last = t0 + TIMEOUT * (1 + STARVED);
    assert_eq!(dog.verdict(later), WatchdogDecision::WaitUntil(last));
    assert!(!dog.starved(0, TIMEOUT * 100));
    assert_eq!(dog.verdict(last), silent(&[0], &[]));
}

#[test]
fn after_a_crash_the_others_have_a_grace_and_their_silence_is_not_judged() {
    let (mut dog, t0) = ranks(2);
    dog.ended(0, false, t0 + seconds(9.0));
    let over = t0 + seconds(9.0) + CRASH_GRACE;
    assert_eq!(dog.verdict(t0 + seconds(11.0)), WatchdogDecision::WaitUntil(over));
    assert_eq!(dog.verdict(over), WatchdogDecision::GraceOver);
    assert!(dog.grace_starved(seconds(2.0)));
    assert_eq!(dog.verdict(over), WatchdogDecision::WaitUntil(over + seconds(2.0)));
}

#[test]
fn ending_without_finished_is_a_crash_and_ending_after_it_is_none() {
    let (mut dog, t0) = ranks(2);
    dog.heard(0, &Event::Finished, t0);
    dog.ended(0, true, t0);
    assert_eq!(dog.verdict(t0), WatchdogDecision::WaitUntil(t0 + TIMEOUT));
    dog.ended(1, true, t0);
    assert_eq!(dog.verdict(t0), WatchdogDecision::WaitUntil(t0 + CRASH_GRACE));
}

#[test]
fn the_lingering_clock_starts_when_the_last_rank_has_finished() {
    let (mut dog, t0) = ranks(2);
    dog.heard(0, &Event::Finished, t0);
    dog.heard(1, &Event::Finished, t0 + seconds(8.0));
    let over = t0 + seconds(8.0) + LINGER_GRACE;
    assert_eq!(dog.verdict(t0 + seconds(12.0)), WatchdogDecision::WaitUntil(over));
    assert_eq!(dog.verdict(over), WatchdogDecision::GraceOver);
}

/// The fate of a rank, with the second at which it occurs.
#[derive(Clone, Debug)]
enum Fate {
    Hangs(f64),
    Waits(f64),
    Finishes(f64),
}

fn fate() -> impl Strategy<Value = Fate> {
    // The fates are up to three timeouts apart, which is less than the time for which the verdict waits for talkers.
    let at = 0.0..30.0;
    prop_oneof![
        at.clone().prop_map(Fate::Hangs),
        at.clone().prop_map(Fate::Waits),
        at.prop_map(Fate::Finishes),
    ]
}

proptest! {
    /// Every rank works, and reports it, until its fate occurs.
    #[test]
    fn all_that_hang_are_named_and_nobody_else_in_whatever_order(
        fates in prop::collection::vec(fate(), 1..9),
        pace in 1.0..9.9,
    ) {
        let mut events = Vec::new();
        let (mut hung, mut waiting, mut last) = (Vec::new(), Vec::new(), 0.0_f64);
        for (rank, fate) in fates.iter().enumerate() {
            let (at, end) = match *fate {
                Fate::Hangs(at) => {
                    hung.push(rank);
                    (at, works())
                }
                Fate::Waits(at) => {
                    waiting.push(rank);
                    (at, enters(7))
                }
                Fate::Finishes(at) => (at, Event::Finished),
            };
            let mut now = 0.0;
            while now < at {
                events.push((now, rank, works()));
                now += pace;
            }
            events.push((at, rank, end));
            last = last.max(at);
        }
        let (verdict, at) = verdict_on(fates.len(), events);
        if hung.is_empty() && waiting.is_empty() {
            prop_assert_eq!(verdict, WatchdogDecision::GraceOver);
        } else if hung.is_empty() {
            // No rank has kept the others waiting, or the rank that did has finished.
            prop_assert_eq!(verdict, silent(&waiting, &[]));
        } else {
            let waiting: Vec<_> = waiting.iter().map(|&rank| in_collective(rank, 7)).collect();
            prop_assert_eq!(verdict, silent(&hung, &waiting));
            // The verdict comes one timeout after the last event of all ranks, and no later.
            prop_assert!(at <= last + TIMEOUT.as_secs_f64() + 1e-6, "{} after {}", at, last);
        }
    }
}
