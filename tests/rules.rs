//! The rules against recorded traces of real faulty and healthy runs. Needs no libtorch.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use zprobe::diagnose::{diagnose, rules::RULES};
use zprobe::report::Report;
use zprobe::report::render::{Format, render};
use zprobe::trace::Trace;

fn traces() -> Vec<(String, PathBuf)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces");
    let mut traces: Vec<_> = std::fs::read_dir(directory)
        .expect("recorded traces")
        .map(|entry| {
            let entry = entry.expect("a directory entry");
            (entry.file_name().to_string_lossy().into_owned(), entry.path())
        })
        .collect();
    traces.sort();
    traces
}

fn report(path: &Path) -> Report {
    diagnose(&Trace::read(path).expect("a readable trace"))
}

fn named(name: &str) -> Report {
    report(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces").join(name))
}

#[test]
fn every_trace_has_the_findings_that_it_was_recorded_for() {
    let lines: Vec<String> = traces()
        .iter()
        .map(|(name, path)| {
            let report = report(path);
            let findings: Vec<String> = report
                .findings
                .iter()
                .map(|finding| {
                    let under: Vec<&str> =
                        finding.consequences.iter().map(|c| c.code.as_str()).collect();
                    format!("{} {under:?}", finding.code)
                })
                .collect();
            format!("{name}: {}, {}", report.verdict, findings.join(", "))
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn healthy_traces_are_clean() {
    let healthy: Vec<_> =
        traces().into_iter().filter(|(name, _)| name.starts_with("clean-")).collect();
    assert!(healthy.len() >= 4);
    for (name, path) in healthy {
        let report = report(&path);
        assert_eq!((report.exit_code(), report.findings), (0, vec![]), "{name}");
    }
}

#[test]
fn every_rule_is_triggered_by_a_recorded_trace() {
    let triggered: BTreeSet<String> = traces()
        .iter()
        .flat_map(|(_, path)| report(path).findings)
        .flat_map(|finding| {
            let under = finding.consequences.into_iter().map(|consequence| consequence.code);
            [finding.code].into_iter().chain(under).collect::<Vec<_>>()
        })
        .collect();
    for rule in RULES {
        assert!(triggered.contains(rule.code), "no trace triggers {} {}", rule.code, rule.name);
    }
}

#[test]
fn rule_codes_ascend_and_explanations_name_rules() {
    assert!(RULES.is_sorted_by(|a, b| a.code < b.code));
    for rule in RULES {
        for code in rule.explained_by {
            assert!(RULES.iter().any(|other| other.code == *code), "{code} in {}", rule.code);
        }
    }
}

#[test]
fn a_trace_that_was_cut_off_anywhere_is_still_diagnosed_and_never_clean() {
    let (_, path) = traces().into_iter().find(|(name, _)| name == "clean-ipg-bucket").unwrap();
    let text = std::fs::read_to_string(path.join("trace.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let dir = tempfile::tempdir().unwrap();
    for kept in 1..lines.len() {
        let mut cut = lines[..kept].join("\n") + "\n";
        cut.push_str(&lines[kept][..lines[kept].len() / 2]);
        std::fs::write(dir.path().join("trace.jsonl"), cut).unwrap();
        let report = report(dir.path());
        let finished = report.ranks.iter().all(|rank| rank.finished);
        assert!(finished || report.exit_code() != 0, "{kept} lines: {:?}", report.verdict);
        render(&report, Format::Full).unwrap();
    }
}

/// Colours off, and process ids of dead ranks out.
fn rendered(name: &str, format: Format) -> String {
    let text = render(&named(name), format).unwrap();
    anstream::adapter::strip_str(&text).to_string()
}

#[test]
fn the_terminal_report_of_a_leak() {
    insta::assert_snapshot!(rendered("boundary-leak", Format::Full));
}

#[test]
fn the_terminal_report_of_the_leak_on_the_dense_model() {
    insta::assert_snapshot!(rendered("boundary-leak-mlp", Format::Full));
}

#[test]
fn the_terminal_report_of_a_clean_run_with_buckets() {
    insta::assert_snapshot!(rendered("clean-ipg-bucket", Format::Full));
}

#[test]
fn the_terminal_report_of_dead_hooks() {
    insta::assert_snapshot!(rendered("dead-hooks", Format::Full));
}

#[test]
fn the_terminal_report_of_a_killed_rank() {
    insta::assert_snapshot!(rendered("rank-dies", Format::Full));
}

#[test]
fn the_terminal_report_of_a_hung_rank() {
    insta::assert_snapshot!(rendered("rank-hangs", Format::Full));
}

#[test]
fn the_concise_report() {
    insta::assert_snapshot!(rendered("stale-all-gather", Format::Concise));
}

#[test]
fn no_line_of_a_terminal_report_is_wider_than_80_columns() {
    for (name, _) in traces() {
        // Quotes from logs stay as they were written.
        let report = rendered(&name, Format::Full);
        for line in report.lines().filter(|line| !line.starts_with("    | ")) {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
    }
}
