//! Tests of which findings a baseline accepts.

use super::*;
use zprobe_model::document::Document;
use zprobe_model::spec::Engine;
use zprobe_report::suite::exit;
use zprobe_report::{Finding, Severity};

const LEAK: &str = r#"
[[accept]]
code = "ZP101"
probe = "deepspeed/stage1-*"
reason = "until we upgrade"
expires = 2026-06-30
"#;

fn read(text: &str) -> Result<Baseline, zprobe_model::document::Complaint> {
    Baseline::read(&Document { file: "zprobe-baseline.toml".to_owned(), text: text.to_owned() })
}

fn date(text: &str) -> Date {
    day(text).unwrap()
}

fn finding(code: &str, rank: Option<usize>) -> CaseFinding {
    let finding = Finding {
        code: code.parse().unwrap(),
        name: "name".to_owned(),
        severity: Severity::Error,
        message: "something is wrong".to_owned(),
        step: None,
        microbatch: None,
        rank,
        param: None,
        bucket: None,
        evidence: vec![],
        consequences: vec![],
        known: vec![],
        limit: None,
        location: None,
    };
    CaseFinding { finding, accepted: None }
}

/// Marks the accepted findings of all cases, and returns the notices about entries.
fn marked(baseline: &Baseline, cases: &mut [Case], today: &str, whole: bool) -> Vec<Notice> {
    cases.iter_mut().for_each(|case| baseline.accept(case, date(today)));
    baseline.notices(cases, date(today), whole)
}

fn case(probe: &str, status: Status, findings: Vec<CaseFinding>) -> Case {
    Case {
        probe: probe.to_owned(),
        engine: Engine::DeepSpeed,
        description: String::new(),
        file: None,
        command: String::new(),
        expected: "clean".to_owned(),
        got: String::new(),
        status,
        reason: None,
        findings,
        versions: Default::default(),
        seconds: 0.0,
        run_dir: None,
    }
}

fn leak() -> Case {
    case("stage1-bf16", Status::Failed, vec![finding("ZP101", Some(1))])
}

/// The cases after the baseline `text` was applied to them on the day `today`, and the notices.
fn applied(text: &str, mut cases: Vec<Case>, today: &str, whole: bool) -> (Vec<Case>, Vec<Notice>) {
    let notices = marked(&read(text).unwrap(), &mut cases, today, whole);
    (cases, notices)
}

#[test]
fn an_accepted_finding_does_not_fail_and_is_still_there() {
    let (cases, notices) = applied(LEAK, vec![leak()], "2026-06-30", true);
    assert_eq!((cases[0].status, exit([cases[0].status]).code()), (Status::Accepted, 0));
    let accepted = cases[0].findings[0].accepted.as_ref().unwrap();
    assert_eq!(
        (accepted.reason.as_str(), accepted.expires.as_str()),
        ("until we upgrade", "2026-06-30")
    );
    assert_eq!(notices, []);
}

#[test]
fn the_day_after_it_fails_again_and_says_why() {
    let (cases, notices) = applied(LEAK, vec![leak()], "2026-07-01", true);
    assert_eq!(cases[0].status, Status::Failed);
    assert_eq!(notices.len(), 1);
    assert_eq!((notices[0].kind, notices[0].line), (NoticeKind::Expired, 2));
    assert!(notices[0].message.contains("was accepted until 2026-06-30 (until we upgrade)"));
}

#[test]
fn a_finding_beside_an_accepted_one_still_fails() {
    let findings = vec![finding("ZP101", Some(1)), finding("ZP604", None)];
    let two = case("stage1-bf16", Status::Failed, findings);
    let (cases, _) = applied(LEAK, vec![two], "2026-01-01", true);
    assert_eq!(cases[0].status, Status::Failed);
    assert!(cases[0].findings[0].accepted.is_some());
}

#[test]
fn rank_and_parameter_narrow_an_entry_down() {
    for (key, accepted) in [("rank = 1", true), ("rank = 0", false), ("param = 'w'", false)] {
        let (cases, _) = applied(&format!("{LEAK}{key}\n"), vec![leak()], "2026-01-01", true);
        assert_eq!(cases[0].findings[0].accepted.is_some(), accepted, "{key}");
    }
}

#[test]
fn a_probe_goes_by_its_name_or_with_its_engine() {
    for (probe, accepted) in [
        ("deepspeed/stage1-*", true),
        ("stage1-bf16", true),
        ("*", true),
        ("native/*", false),
        ("stage2-*", false),
    ] {
        let text = LEAK.replace("deepspeed/stage1-*", probe);
        let (cases, _) = applied(&text, vec![leak()], "2026-01-01", false);
        assert_eq!(cases[0].status == Status::Accepted, accepted, "{probe}");
    }
}

#[test]
fn an_entry_without_use_is_reported_where_that_is_certain() {
    let kinds = |cases, whole| -> Vec<NoticeKind> {
        applied(LEAK, cases, "2026-01-01", whole).1.iter().map(|it| it.kind).collect()
    };
    let passed = |probe, status| vec![case(probe, status, vec![])];
    assert_eq!(kinds(passed("stage1-bf16", Status::Passed), false), [NoticeKind::Unused]);
    assert_eq!(kinds(passed("stage3-bf16", Status::Passed), true), [NoticeKind::Unused]);
    // The entry may be about a case that was not asked for, or could not be run.
    assert_eq!(kinds(passed("stage3-bf16", Status::Passed), false), []);
    assert_eq!(kinds(passed("stage1-bf16", Status::Skipped), true), []);
}

#[test]
fn doubt_and_a_run_that_was_not_made_cannot_be_accepted() {
    let text = LEAK.replace("ZP101", "ZP901");
    for (status, expected) in [
        (Status::Crashed, Status::Accepted),
        (Status::Inconclusive, Status::Inconclusive),
        (Status::NotRun, Status::NotRun),
    ] {
        let cases = vec![case("stage1-bf16", status, vec![finding("ZP901", None)])];
        assert_eq!(applied(&text, cases, "2026-01-01", true).0[0].status, expected);
    }
}

#[test]
fn entries_that_are_written_accept_what_they_were_written_for() {
    let mut cases =
        vec![leak(), leak(), case("odd[1]", Status::Failed, vec![finding("ZP604", None)])];
    let text = entries(&cases, "says \"wait\"", "2026-12-31");
    assert_eq!(text.matches("[[accept]]").count(), 2, "{text}");
    let notices = marked(&read(&text).unwrap(), &mut cases, "2026-12-31", true);
    assert_eq!(notices, []);
    assert!(cases.iter().all(|case| case.status == Status::Accepted), "{text}");
    assert_eq!(entries(&cases, "again", "2026-12-31"), "");
}

#[test]
fn complaints_name_the_line_and_the_key() {
    let complaints = [
        ("code", "cod"),
        ("\"ZP101\"", "\"101\""),
        ("deepspeed/stage1-*", "stage[1"),
        ("\"until we upgrade\"", "\"\""),
        ("reason = \"until we upgrade\"\n", ""),
        ("2026-06-30", "\"soon\""),
        ("2026-06-30", "2026-06-31"),
        ("2026-06-30", "2026-06-30T00:00:00Z"),
        ("accept", "acept"),
    ]
    .map(|(from, to)| read(&LEAK.replacen(from, to, 1)).unwrap_err().to_string());
    insta::assert_snapshot!(complaints.join("\n"));
}
