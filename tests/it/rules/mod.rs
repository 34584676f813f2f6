//! Tests of the rules on traces: recorded traces of real faulty and healthy runs, and simulated ones. The
//! tests need no libtorch.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod decisions;
mod elements;
mod ended;
mod hung;
mod independent;
mod journey;
mod machines;
mod many_ranks;
mod repeated;
mod sampled;
mod scenarios;
mod script_losses;
mod script_ranks;
mod simulated;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use zprobe_diagnose::{diagnose, rules, rules::RULES};
use zprobe_model::trace::Trace;
use zprobe_report::document::Surroundings;
use zprobe_report::render::{render, render_within};
use zprobe_report::{Finding, Form, Report, RuleCode, Verdict};
use zprobe_zoo::{ZooRow, registry};

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

/// The reports on all recorded traces, then on all simulated ones, by name.
fn reports() -> Vec<(String, Report)> {
    let recorded = traces().into_iter().map(|(name, path)| (name, report(&path)));
    let simulated = scenarios::scenarios().into_iter();
    let repeated = [("simulated-repeats".to_owned(), repeated::one_of_five_differs())];
    recorded
        .chain(simulated.map(|(name, trace)| (name, diagnose(&trace))))
        .chain(repeated)
        .collect()
}

#[test]
fn every_trace_has_the_findings_that_it_was_made_for() {
    let lines: Vec<String> = reports()
        .iter()
        .map(|(name, report)| {
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
fn recorded_traces_name_no_directory_of_the_machine_they_were_made_on() {
    for (name, path) in traces() {
        let text = std::fs::read_to_string(path.join("trace.jsonl")).unwrap();
        for directory in ["/release/", "/debug/", "/home/", "/root/"] {
            assert!(!text.contains(directory), "{name} names a path in {directory}");
        }
    }
}

#[test]
fn healthy_traces_are_clean() {
    let healthy: Vec<_> =
        traces().into_iter().filter(|(name, _)| name.starts_with("clean-")).collect();
    assert!(healthy.len() >= 4);
    for (name, path) in healthy {
        let report = report(&path);
        assert_eq!((report.exit().code(), report.findings), (0, vec![]), "{name}");
    }
}

#[test]
fn every_rule_is_triggered_by_a_trace() {
    let triggered: BTreeSet<RuleCode> = reports()
        .into_iter()
        .flat_map(|(_, report)| report.findings)
        .flat_map(|finding| {
            let under = finding.consequences.into_iter().map(|consequence| consequence.code);
            [finding.code].into_iter().chain(under).collect::<Vec<_>>()
        })
        .collect();
    for rule in RULES {
        assert!(triggered.contains(&rule.code), "no trace triggers {} {}", rule.code, rule.name);
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
        assert!(finished || report.exit().code() != 0, "{kept} lines: {:?}", report.verdict);
        render(&report, Form::Full).unwrap();
    }
}

fn rendered(name: &str, form: Form) -> String {
    plain(&named(name), form)
}

/// The report in this form, without colours.
fn plain(report: &Report, form: Form) -> String {
    let text = render(report, form).unwrap();
    anstream::adapter::strip_str(&text).to_string()
}

#[test]
fn the_terminal_report_of_a_leak() {
    insta::assert_snapshot!(rendered("boundary-leak", Form::Full));
}

#[test]
fn the_terminal_report_of_the_leak_on_the_dense_model() {
    insta::assert_snapshot!(rendered("boundary-leak-mlp", Form::Full));
}

#[test]
fn the_terminal_report_of_a_clean_run_with_buckets() {
    insta::assert_snapshot!(rendered("clean-ipg-bucket", Form::Full));
}

#[test]
fn the_terminal_report_of_dead_hooks() {
    insta::assert_snapshot!(rendered("dead-hooks", Form::Full));
}

#[test]
fn the_terminal_report_of_a_killed_rank() {
    insta::assert_snapshot!(rendered("rank-dies", Form::Full));
}

#[test]
fn the_terminal_report_of_a_hung_rank() {
    insta::assert_snapshot!(rendered("rank-hangs", Form::Full));
}

/// The terminal report on a simulated trace.
fn simulated_report(name: &str) -> String {
    let (_, report) = reports().into_iter().find(|(known, _)| known == name).unwrap();
    plain(&report, Form::Full)
}

#[test]
fn the_terminal_report_of_a_real_engine_whose_hooks_never_fired() {
    insta::assert_snapshot!(simulated_report("simulated-hooks-never-fired"));
}

#[test]
fn the_terminal_report_of_a_real_engine_that_did_not_agree_on_an_overflow() {
    insta::assert_snapshot!(simulated_report("simulated-overflow-seen-by-one-rank"));
}

/// The surroundings of a run that was recorded in the default directory of runs.
fn surroundings() -> Surroundings<'static> {
    Surroundings {
        run_dir: Some(".zprobe/runs/20260101T000000Z-1"),
        own_engine: None,
        again: None,
        page: Some(|code| rules::find(code).map(|rule| rule.doc)),
        words: None,
    }
}

fn brief(report: &Report) -> String {
    let text = render_within(report, Form::Brief, 80, &surroundings(), || unreachable!()).unwrap();
    anstream::adapter::strip_str(&text).to_string()
}

#[test]
fn the_first_screen() {
    let of = |name| brief(&named(name));
    insta::assert_snapshot!("first-screen-leak", of("boundary-leak"));
    insta::assert_snapshot!("first-screen-clean", of("clean-ipg-bucket"));
    insta::assert_snapshot!("first-screen-killed", of("rank-dies"));
    insta::assert_snapshot!("first-screen-script", of("script-mean-of-means"));
    let mut several = named("script-step-left-out");
    several.findings.extend(named("script-clipped-by-rank").findings);
    insta::assert_snapshot!("first-screen-several", brief(&several));
    let mut inconclusive = named("clean-accumulator");
    inconclusive.verdict = Verdict::Inconclusive;
    insta::assert_snapshot!("first-screen-inconclusive", brief(&inconclusive));
}

#[test]
fn findings_about_a_script_have_a_line_of_the_script() {
    let of_scripts = reports().into_iter().filter(|(_, it)| it.run.spec.script().is_some());
    let lines = of_scripts.flat_map(|(name, report)| {
        let said = move |finding: Finding| {
            let line = finding.location.map(|it| format!("{}:{}", it.file, it.line));
            format!("{name}: {} at {}", finding.code, line.unwrap_or_default())
        };
        report.findings.into_iter().map(said)
    });
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"));
    let of_engines = reports().into_iter().filter(|(_, it)| it.run.spec.script().is_none());
    assert!(of_engines.flat_map(|(_, it)| it.findings).all(|it| it.location.is_none()));
}

#[test]
fn a_report_on_a_script_has_no_settings_of_a_model_that_the_script_does_not_have() {
    let text = rendered("script-clean", Form::Markdown);
    assert!(text.contains("\n- judged: scale and weighting of the loss"), "{text}");
    assert!(text.contains("| gradient_accumulation_steps | 2 |"), "{text}");
    for invented in ["optimizer.lr", "micro_batch_size", "offload", "| model |", "| judged |"] {
        assert!(!text.contains(invented), "{invented}: {text}");
    }
}

#[test]
fn a_key_that_deepspeed_ignores_is_a_remark_unless_it_is_misspelt() {
    let with = |key: &str| {
        let unread = serde_json::json!([{"optimizer": null, "keys": [key], "read": []}]);
        let edit = |record: &mut serde_json::Value| {
            if record["event"]["type"] == "script-remarked" {
                record["event"]["unread"] = unread.clone();
            }
            true
        };
        edited("script-clean", edit).unwrap()
    };
    let (ignored, known) = (with("our_own_key"), with("tensorboard"));
    assert_eq!((ignored.verdict, known.verdict), (Verdict::Clean, Verdict::Clean));
    let remark = "DeepSpeed ignores keys of its configuration that it does not know: our_own_key";
    assert_eq!(ignored.remarks.last().map(String::as_str), Some(remark));
    assert_eq!(known.remarks, named("script-clean").remarks);
    let misspelt = with("gradient_accumulation_step");
    assert_eq!(misspelt.findings[0].code, "ZP608");
    assert_eq!(misspelt.remarks, known.remarks);
}

#[test]
fn the_first_screen_of_a_run_that_was_interrupted_counts_what_is_missing() {
    let mut report = named("clean-accumulator");
    report.verdict = Verdict::Inconclusive;
    let unread = (0..100).map(|step| format!("weights of the update of step {step}: not read"));
    report.not_exercised.extend(unread);
    let text = brief(&report);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("weights of the update (100 places)"), "{text}");
    assert!(text.lines().count() <= 24, "{text}");
}

#[test]
fn the_first_screen_states_the_verdict_once_and_a_long_screen_again_at_its_end() {
    for (name, report) in reports() {
        let text = anstream::adapter::strip_str(&brief(&report)).to_string();
        let verdict = report.verdict.name().to_uppercase();
        // A terminal shows 24 lines, of which up to 3 have the next commands.
        let facts = text.lines().take_while(|line| !line.starts_with("next:")).count();
        let times = if facts > 22 { 2 } else { 1 };
        assert_eq!(text.matches(&verdict).count(), times, "{name}: {text}");
    }
}

#[test]
fn the_first_screen_of_a_known_bug_has_its_fix_as_a_command() {
    let row = registry::rows().iter().find(|row| row.name == "boundary-leak").unwrap();
    let mut report = named("boundary-leak");
    report.findings[0].known.extend(row.known_bug());
    let text = brief(&report);
    assert_eq!(text.matches("pip install 'deepspeed>=0.19.0'").count(), 1, "{text}");
    insta::assert_snapshot!("first-screen-known", text);
}

#[test]
fn every_known_bug_that_is_fixed_says_in_which_package() {
    for bug in registry::rows().iter().filter_map(ZooRow::known_bug) {
        assert_eq!(bug.upgrade.is_some(), bug.fixed.is_some(), "{}", bug.name);
    }
}

#[test]
fn the_concise_report() {
    insta::assert_snapshot!(rendered("stale-all-gather", Form::Concise));
}

#[test]
fn no_line_of_a_terminal_report_is_wider_than_the_terminal() {
    for (name, report) in reports() {
        for columns in [40, 60, 80] {
            for form in [Form::Brief, Form::Full] {
                let around = surroundings();
                let text = render_within(&report, form, columns, &around, || unreachable!());
                for line in anstream::adapter::strip_str(&text.unwrap()).to_string().lines() {
                    assert!(line.chars().count() <= columns, "{name} in {columns} columns: {line}");
                }
            }
        }
    }
}

/// The report on the trace of a healthy run, with its records edited.
fn edited(
    name: &str,
    edit: impl Fn(&mut serde_json::Value) -> bool,
) -> Result<Report, zprobe_model::trace::TraceError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces").join(name);
    let text = std::fs::read_to_string(path.join("trace.jsonl")).unwrap();
    let mut kept = String::new();
    for line in text.lines() {
        let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
        if edit(&mut record) {
            kept.push_str(&(record.to_string() + "\n"));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("trace.jsonl"), kept).unwrap();
    Trace::read(dir.path()).map(|trace| diagnose(&trace))
}

#[test]
fn what_was_not_read_is_not_clean() {
    type Keep = fn(&serde_json::Value) -> bool;
    let without: [(&str, Keep); 3] = [
        ("buffers of rank 1", |r| !(r["event"]["type"] == "buffer" && r["rank"] == 1)),
        ("buffers of step 0", |r| !(r["event"]["type"] == "buffer" && r["event"]["step"] == 0)),
        ("the optimizer's input of rank 0 in step 0", |r| {
            !(r["event"]["point"] == "optimizer-input" && r["rank"] == 0 && r["event"]["step"] == 0)
        }),
    ];
    for trace in ["clean-accumulator", "clean-ipg-bucket", "clean-mlp"] {
        for (what, keep) in without {
            let report = edited(trace, |record| keep(record)).unwrap();
            assert_ne!(report.exit().code(), 0, "{trace} without {what}");
        }
    }
    let report = edited("clean-accumulator", |r| r["event"]["type"] != "layout").unwrap();
    assert_eq!(report.exit().code(), 4);
}

#[test]
fn an_event_that_points_outside_the_run_is_refused_with_its_line() {
    for (place, value) in [
        ("/event/step", serde_json::json!(7)),
        ("/event/microbatch", serde_json::json!(u64::MAX)),
        ("/event/payload/numel", serde_json::json!(1u64 << 63)),
        ("/event/segments/0/len", serde_json::json!(u64::MAX)),
        ("/event/params/0/shape", serde_json::json!([0])),
        ("/event/spec/world_size", serde_json::json!(0)),
        ("/event/spec/steps", serde_json::json!(1u64 << 60)),
    ] {
        let result = edited("clean-accumulator", |record| {
            if let Some(field) = record.pointer_mut(place) {
                *field = value.clone();
            }
            true
        });
        let error = result.err().unwrap_or_else(|| panic!("{place} is refused")).to_string();
        assert!(error.contains(", line "), "{place}: {error}");
    }
}

#[test]
fn a_gradient_that_is_no_number_is_found_wherever_it_is() {
    // The last element of the partition of rank 1 belongs to the shortest parameter.
    for element in [0, 100] {
        let report = edited("clean-accumulator", |record| {
            let event = &mut record["event"];
            if event["point"] == "optimizer-input" && event["step"] == 0 {
                let mut payload: zprobe_model::trace::Payload =
                    serde_json::from_value(event["payload"].clone()).unwrap();
                let mut bytes = payload.bytes().unwrap();
                bytes[4 * element..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
                payload = zprobe_model::trace::Payload::new(payload.dtype, &bytes, f64::NAN);
                event["payload"] = serde_json::to_value(payload).unwrap();
            }
            true
        })
        .unwrap();
        assert!(report.findings.iter().any(|finding| finding.code == "ZP501"), "{element}");
        report.to_json().unwrap();
    }
}
