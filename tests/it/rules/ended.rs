//! Scripts whose ranks end apart: the ranks that ZP901 names, and the findings on steps that only some ranks took.

use zprobe_diagnose::diagnose;
use zprobe_model::trace::{Event, Outcome, Phase, REST_OF_SCRIPT, Record, Trace};
use zprobe_report::document::Surroundings;
use zprobe_report::render::render_within;
use zprobe_report::{Form, OwnWords, Report, Verdict};

use super::scenarios::{crash, edit, recorded};
use super::surroundings;

const CLOSED: &str = "RuntimeError: Connection closed by peer";

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.code.as_str()).collect()
}

/// A script whose rank 0 failed in step 2 with this message. The script of rank 1 took only the steps before `end`.
fn ended_apart(message: &str, end: usize) -> Trace {
    let mut trace = recorded("script-clean");
    crash(&mut trace, 0, |event| event.moment().0 == Some(2), message);
    let is_before = |event: &Event| event.moment().0.is_none_or(|step| step < end);
    trace.records.retain(|record| record.rank != Some(1) || is_before(&record.event));
    trace
}

#[test]
fn the_script_that_ended_first_is_the_reason_for_lost_connections() {
    let mut trace = ended_apart(CLOSED, 2);
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Crashed, vec!["ZP901"]));
    let finding = &report.findings[0];
    let said = "the script ended (exit code 0) after 2 of the 3 watched steps; the ranks that went on \
                lost the connection";
    assert_eq!((finding.rank, finding.message.as_str()), (Some(1), said));
    let lost = format!("rank 0: failed with exit code 1: {CLOSED}");
    assert_eq!(finding.consequences[0].message, lost);
    let words = OwnWords::of(&trace);
    let around = Surroundings { words: Some(&words), ..surroundings() };
    let screen = render_within(&report, Form::Brief, 80, &around, || unreachable!()).unwrap();
    let screen = anstream::adapter::strip_str(&screen).to_string();
    assert!(screen.contains(&format!("\nerror      rank 0: {CLOSED}\n")), "{screen}");
    assert!(screen.contains("\nadvice     In a training script, "), "{screen}");

    let last = trace.records.iter().rposition(|it| it.rank == Some(1)).unwrap();
    let (what, why) = (REST_OF_SCRIPT.to_owned(), "zprobe gave up".to_owned());
    let event = Event::NotObserved { what, why };
    trace.records.insert(last, Record { event, ..trace.records[last].clone() });
    for other in [trace, ended_apart(CLOSED, 3), ended_apart("ValueError: no", 2)] {
        assert_eq!(diagnose(&other).findings[0].rank, Some(0));
    }
}

#[test]
fn a_rank_that_its_launcher_ended_follows_from_the_rank_that_failed() {
    let mut trace = ended_apart("ValueError: no", 2);
    trace.records.retain_mut(|record| {
        if let Event::RankExited { rank: 1, outcome } = &mut record.event {
            *outcome = Outcome::Unseen;
        }
        record.rank != Some(1) || record.event != Event::Finished
    });
    let report = diagnose(&trace);
    let [finding] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!((finding.rank, finding.message.as_str()), (Some(0), "ValueError"));
    assert_eq!(finding.consequences[0].message, "rank 1: ended before the work was done");
}

#[test]
fn a_crash_comes_before_other_findings() {
    let mut trace = recorded("script-same-samples");
    crash(&mut trace, 1, |event| *event == Event::Finished, "ValueError: no");
    assert_eq!(codes(&diagnose(&trace)), ["ZP901", "ZP116"]);
}

#[test]
fn the_values_at_the_end_of_a_script_are_not_those_of_ranks_that_went_on() {
    for goes_on in [false, true] {
        let mut trace = recorded("script-clean");
        trace.records.retain(|record| {
            let is_last = matches!(record.event, Event::StepEnded { step: 2, .. });
            goes_on || record.rank != Some(1) || !is_last
        });
        edit(&mut trace, 1, |event| {
            if let Event::ParametersDigested { step: Some(1), digests, .. } = event {
                digests[0] = Some(0.5);
            }
        });
        let expected = if goes_on { vec!["ZP601"] } else { vec![] };
        assert_eq!(codes(&diagnose(&trace)), expected);
    }
}

#[test]
fn a_rank_that_failed_before_its_parameters_had_numbers_may_have_used_all_of_them() {
    let mut trace = recorded("script-clean");
    let is_known = |event: &Event| !matches!(event, Event::HooksFired { .. });
    trace.records.retain(|record| record.rank != Some(0) || is_known(&record.event));
    edit(&mut trace, 0, |event| {
        if let Event::GraphWalked { params, .. } = event {
            params.clear();
        }
    });
    assert_eq!(codes(&diagnose(&trace)), Vec::<&str>::new());
}

#[test]
fn a_rank_that_loses_the_others_because_an_optimizer_never_stepped_has_not_crashed() {
    let mut trace = recorded("script-optimizer-idle");
    crash(&mut trace, 1, |event| *event == Event::Finished, "Connection closed by peer");
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Findings, vec!["ZP606"]));
}

#[test]
fn a_rank_that_skips_a_step_and_then_waits_for_the_finished_ranks_has_not_hung() {
    let hangs = |gives_up: bool| {
        let mut trace = recorded("script-clean");
        for record in &mut trace.records {
            if record.rank == Some(1) && record.event == Event::Finished {
                record.event =
                    Event::WindowGivenUp { step: if gives_up { 1 } else { 0 }, microbatches: 2 };
            } else if let Event::RankExited { rank: 1, outcome } = &mut record.event {
                *outcome = Outcome::Reaped;
            }
        }
        let first =
            trace.records.iter().position(|it| matches!(it.event, Event::RankExited { .. }));
        let silence = Event::TimedOut { silent: vec![1], timeout_s: 40, waiting: Vec::new() };
        let silence =
            Record { rank: None, event: silence, ..trace.records[first.unwrap()].clone() };
        trace.records.insert(first.unwrap(), silence);
        diagnose(&trace)
    };
    let report = hangs(true);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Findings, vec!["ZP606"]));
    assert_eq!(codes(&hangs(false)), ["ZP902"]);
}

#[test]
fn a_rank_that_is_ended_before_it_ever_stepped_has_not_crashed() {
    let mut trace = recorded("script-clean");
    trace.records.retain_mut(|record| {
        if let Event::RankExited { rank: 1, outcome } = &mut record.event {
            *outcome = Outcome::Unseen;
        }
        let is_of_backward = matches!(
            record.event,
            Event::RankReady { .. }
                | Event::PhaseEntered { phase: Phase::Backward, .. }
                | Event::LossWeighed(_)
                | Event::GraphWalked { .. }
                | Event::HooksFired { .. }
        );
        record.rank != Some(1) || is_of_backward
    });
    let report = diagnose(&trace);
    assert_eq!(report.verdict, Verdict::Findings);
    assert!(codes(&report).contains(&"ZP606"), "{:#?}", report.findings);
    assert!(!codes(&report).contains(&"ZP901"), "{:#?}", report.findings);
}

#[test]
fn a_rank_that_waits_after_its_last_step_for_finished_ranks_has_not_crashed() {
    // The rank is in the forward or in the backward of step 2 when it loses the connection.
    let lost_in = |phase: Phase| {
        let mut trace = recorded("script-clean");
        edit(&mut trace, 1, |event| {
            if let Event::PhaseEntered { step: 2, microbatch: 0, phase: entered } = event {
                *entered = phase;
            }
        });
        let is_next = |event: &Event| {
            event.moment().0 == Some(2) && !matches!(event, Event::PhaseEntered { .. })
        };
        crash(&mut trace, 1, is_next, CLOSED);
        diagnose(&trace)
    };
    let between = lost_in(Phase::Forward);
    assert!(!codes(&between).contains(&"ZP901"), "{:#?}", between.findings);
    assert_ne!(between.verdict, Verdict::Crashed);
    let inside = lost_in(Phase::Backward);
    assert!(codes(&inside).contains(&"ZP901"), "{:#?}", inside.findings);
}
