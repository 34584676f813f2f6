//! Ranks that misbehave in every way. In all cases the run ends, the trace records the misbehaviour, and no
//! process is left, which `harness::run_program` checks.

use zprobe_model::trace::{Event, Outcome, Violation};

use crate::harness::{self, Run, for_each, ranks, run, run_program};

/// The outcome of a rank that was killed by SIGKILL.
const KILLED: Outcome = Outcome::Signal(9);
const EXITED: Outcome = Outcome::Code(0);

/// Runs two ranks until the timeout expires; the ranks of `hung` never end.
fn run_into_timeout(arguments: &str, hung: &[usize]) -> Run {
    let run = harness::run_into_timeout(hung, |spec| run_program(&ranks(arguments), spec));
    assert_eq!(run.silent(), Some(hung), "{arguments}");
    run
}

fn outcomes(run: &Run) -> [Outcome; 2] {
    [run.outcome(0), run.outcome(1)]
}

#[test]
fn hung_ranks_are_all_named() {
    for_each(["sleeps", "sleeps --forked"], |arguments| {
        let run = run_into_timeout(arguments, &[0, 1]);
        assert_eq!(outcomes(&run), [Outcome::Reaped; 2], "{arguments}");
    });
}

#[test]
fn a_rank_that_finished_is_not_named_with_the_hung_one() {
    for_each(["sleeps --rank 1", "sleeps --rank 1 --forked"], |arguments| {
        let run = run_into_timeout(arguments, &[1]);
        assert_eq!(outcomes(&run), [EXITED, Outcome::Reaped], "{arguments}");
    });
}

#[test]
fn ranks_that_resist_are_ended_all_the_same() {
    for_each(["ignores-sigterm", "stops-itself --forked", "closes-channel"], |arguments| {
        let run = run_into_timeout(arguments, &[0, 1]);
        assert_eq!(outcomes(&run), [Outcome::Reaped; 2], "{arguments}");
    });
}

#[test]
fn after_a_death_the_others_have_time_to_say_so() {
    for arguments in
        ["dies --rank 1 --others waits-for-peer", "dies --rank 1 --others waits-for-peer --forked"]
    {
        let run = run(arguments);
        assert_eq!(outcomes(&run), [Outcome::Code(1), KILLED], "{arguments}");
        let failed = Event::Failed { message: "Connection closed by peer".to_owned() };
        assert_eq!(run.said(0).last(), Some(&&failed), "{arguments}");
        assert_eq!(run.stderr(Some(1)), Some("last words"), "{arguments}");
        assert_eq!(run.silent(), None, "{arguments}");
    }
}

#[test]
fn after_a_death_the_others_do_not_have_for_ever() {
    let run = run("dies --rank 1 --others sleeps");
    assert_eq!(outcomes(&run), [Outcome::Reaped, KILLED]);
    assert_eq!(run.silent(), None, "the cause is known");
}

#[test]
fn every_violation_is_named_and_ends_the_run() {
    let cases = [
        ("prints-rubbish", Violation::NotJson, "Loading model..."),
        ("claims-another-rank", Violation::WrongSender, r#""rank": 2"#),
        ("skips-a-record", Violation::OutOfSequence, r#""seq": 5"#),
        ("goes-on-after-finished", Violation::AfterFinished, "rank-ready"),
        ("plays-launcher", Violation::LauncherEvent, "interrupted"),
    ];
    for_each(cases, |(behaviour, expected, excerpt)| {
        for hosting in ["", "--forked"] {
            let run = run(&format!("{behaviour} --rank 1 {hosting}"));
            let [(rank, violation, line)] = run.violations()[..] else {
                panic!("{behaviour}: {:?}", run.violations());
            };
            assert_eq!((rank, violation), (Some(1), expected), "{behaviour}");
            assert!(line.contains(excerpt), "{behaviour}: {line}");
            assert_eq!(run.outcome(1), Outcome::Reaped, "{behaviour}");
        }
    });
}

#[test]
fn half_a_line_before_a_death_is_no_violation() {
    let run = run("dies-within-a-line");
    assert_eq!(outcomes(&run), [KILLED; 2]);
    assert_eq!((run.said(0).len(), run.violations().len()), (1, 0));
}

#[test]
fn an_exit_is_recorded_as_it_was_with_and_without_finished() {
    let unfinished = run("exits-unfinished");
    assert_eq!((outcomes(&unfinished), unfinished.finished(0)), ([EXITED; 2], false));
    let failed = run("exits-7 --forked");
    assert_eq!((outcomes(&failed), failed.finished(0)), ([Outcome::Code(7); 2], true));
}

#[test]
fn a_channel_kept_open_by_a_grandchild_does_not_hold_up_the_run() {
    for behaviour in ["leaves-a-grandchild", "leaves-a-detached-grandchild"] {
        for hosting in ["", "--forked"] {
            let run = run(&format!("{behaviour} {hosting}"));
            assert_eq!(outcomes(&run), [EXITED; 2], "{behaviour} {hosting}");
            assert!(run.finished(0) && run.finished(1), "{behaviour} {hosting}");
        }
    }
}

#[test]
fn floods_of_output_go_to_the_logs_and_their_end_to_the_trace() {
    let run = run("floods-output");
    assert_eq!(outcomes(&run), [Outcome::Code(1); 2]);
    let tail = run.stderr(Some(0)).unwrap();
    assert!(tail.ends_with("flood 49999") && tail.lines().count() <= 20, "{tail}");
    let stdout = std::fs::metadata(run.dir.path().join("run/rank-1.stdout.log")).unwrap();
    assert!(stdout.len() > 1_000_000);
}

#[test]
fn a_rank_that_lingers_after_finished_is_ended() {
    let run = run("lingers --rank 1");
    assert_eq!(outcomes(&run), [EXITED, Outcome::Reaped]);
    assert_eq!((run.finished(1), run.silent()), (true, None));
}

#[test]
fn a_host_that_lingers_after_its_ranks_is_ended() {
    let run = run("well-behaved --forked --after-fork host-lingers");
    assert!(run.finished(0) && run.finished(1));
    assert_eq!(run.silent(), None);
}

#[test]
fn ranks_end_with_a_host_that_does_not_say_how_they_ended() {
    let died = run("sleeps --forked --after-fork host-dies");
    assert_eq!(outcomes(&died), [KILLED; 2]);
    assert_eq!(died.stderr(None), Some("the host's last words"));
    let never_forked = run("well-behaved --forked --before-fork host-exits-3");
    assert_eq!(outcomes(&never_forked), [Outcome::Code(3); 2]);
    assert_eq!(never_forked.stderr(None), Some("cannot import torch"));
}

#[test]
fn a_host_is_held_to_the_protocol_too() {
    let run = run("sleeps --forked --after-fork host-prints-rubbish");
    assert_eq!(run.violations(), [(None, Violation::NotJson, "forking...")]);
    assert_eq!(outcomes(&run), [Outcome::Reaped; 2]);
}
