//! Ranks that hang, and ranks that wait for them: only the ranks that hang are named.

use zprobe_diagnose::diagnose;
use zprobe_model::trace::{CollectiveOp, Meeting, Outcome};

use crate::harness::{Run, ranks, run_program, spec};

/// Runs a rank for each script of `fixtures/ranks/rank.py`, with a timeout of three seconds. The scripts
/// start with `ready`, so that all ranks are ready before the timeout of the first rank expires.
fn run(scripts: &[&str], hosting: &str) -> Run {
    let world_size = scripts.len();
    let scripts = scripts.iter().enumerate();
    let arguments: String =
        scripts.map(|(rank, script)| format!(" --script {rank}={script}")).collect();
    run_program(&ranks(&format!("acts{arguments} {hosting}")), &spec(world_size, 3))
}

fn collective(sequence: u64) -> Meeting {
    Meeting::Collective { sequence, op: CollectiveOp::AllReduce }
}

/// The message of the only finding.
fn message(run: &Run) -> String {
    let report = diagnose(&run.trace);
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!(finding.code, "ZP902");
    finding.message.clone()
}

#[test]
fn the_rank_that_hangs_long_after_another_began_to_wait_is_named_alone() {
    for hosting in ["", "--forked"] {
        let run = run(&["ready,enters:0", "ready,after:2,works", "ready,enters:0"], hosting);
        assert_eq!(run.silent(), Some(&[1][..]));
        assert_eq!(run.waiting(), [(0, collective(0)), (2, collective(0))]);
        assert!((0..3).all(|rank| run.outcome(rank) == Outcome::Reaped));
        let message = message(&run);
        let expected = "; ranks 0 and 2 wait for it in all-reduce 0";
        assert!(message.ends_with(expected), "{message}");
    }
}

#[test]
fn all_that_hang_are_named_in_whatever_order_they_fell_silent() {
    let hangs_last = "ready,works,after:2,works,after:2,works,after:2,works";
    for scripts in [
        ["ready,works", "ready,enters:3", hangs_last],
        [hangs_last, "ready,enters:3", "ready,works"],
    ] {
        let run = run(&scripts, "");
        assert_eq!(run.silent(), Some(&[0, 2][..]), "{scripts:?}");
        assert_eq!(run.waiting(), [(1, collective(3))], "{scripts:?}");
    }
}

#[test]
fn a_rank_may_wait_for_longer_than_the_timeout_for_one_that_works() {
    let slow = "ready,after:2,works,after:2,works,after:2,works,enters:0,meets,finishes";
    let run = run(&[slow, "ready,enters:0,meets,finishes"], "");
    assert_eq!(run.silent(), None);
    assert!(run.finished(0) && run.finished(1));
}

#[test]
fn ranks_that_hang_in_one_collective_hang_there_together() {
    let run = run(&["ready,enters:5", "ready,enters:5"], "");
    assert_eq!((run.silent(), run.waiting()), (Some(&[0, 1][..]), vec![]));
    let message = message(&run);
    assert!(message.starts_with("ranks 0 and 1 hung in all-reduce 5, which all"), "{message}");
}

#[test]
fn a_rank_that_never_comes_up_keeps_those_waiting_that_did() {
    let run = run(&["ready", "after:3600"], "");
    assert_eq!((run.silent(), run.waiting()), (Some(&[1][..]), vec![(0, Meeting::Start)]));
}

#[test]
fn ranks_that_wait_for_each_other_are_all_named() {
    let run = run(&["ready,enters:0,exchanges", "ready,enters:0,enters:1"], "");
    assert_eq!(run.silent(), Some(&[0, 1][..]));
    assert_eq!(run.waiting(), [(0, Meeting::Digests { step: 0 }), (1, collective(1))]);
    assert!(message(&run).starts_with("ranks 0 and 1 wait for each other"), "{}", message(&run));
}
