//! The JSON Schemas of the external formats, which are checked in.
//!
//! After a change that only adds to a format, `ZPROBE_BLESS=1 cargo test --test it schema` writes the schemas
//! anew.

use std::path::Path;

use schemars::{JsonSchema, schema_for};
use zprobe_diagnose::diagnose;
use zprobe_lab::bisect::{BisectResult, Commit, CommitTrial, SearchedCommits, TrialVerdict};
use zprobe_lab::check::baseline::BaselineFile;
use zprobe_lab::check::probe::{ProbeFile, registry};
use zprobe_lab::compare::{Comparison, Side};
use zprobe_model::trace::{Record, Trace};
use zprobe_report::suite::Suite;
use zprobe_report::{Report, Schema};

fn schema_of<T: JsonSchema>(file: &str) -> serde_json::Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema").join(file);
    let schema = schema_for!(T).to_value();
    if std::env::var_os("ZPROBE_BLESS").is_some() {
        let text = serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n";
        std::fs::write(&path, text).expect("the schema can be written");
    }
    let text = std::fs::read_to_string(&path).expect("the schema is checked in");
    let checked_in: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(checked_in, schema, "{file} is out of date; see the head of this test file");
    checked_in
}

fn traces() -> Vec<std::path::PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces");
    std::fs::read_dir(directory)
        .expect("recorded traces")
        .map(|entry| entry.expect("a directory entry").path())
        .collect()
}

#[test]
fn every_report_obeys_the_checked_in_schema() {
    let validator = jsonschema::validator_for(&schema_of::<Report>("report.v1.schema.json"))
        .expect("a valid schema");
    for path in traces() {
        let report = diagnose(&Trace::read(&path).expect("a readable trace"));
        let json: serde_json::Value =
            serde_json::from_str(&report.to_json().expect("JSON")).expect("JSON");
        if let Err(error) = validator.validate(&json) {
            panic!("{}: {error}", path.display());
        }
        assert_eq!(json["schema"]["version"], 1);
    }
}

#[test]
fn a_report_without_its_verdict_is_against_the_schema() {
    let validator = jsonschema::validator_for(&schema_of::<Report>("report.v1.schema.json"))
        .expect("a valid schema");
    let path = traces().into_iter().next().expect("a recorded trace");
    let report = diagnose(&Trace::read(&path).expect("a readable trace"));
    let mut json = serde_json::to_value(&report).expect("JSON");
    json.as_object_mut().expect("an object").remove("verdict");
    assert!(validator.validate(&json).is_err());
}

#[test]
fn every_recorded_line_obeys_the_checked_in_schema() {
    let validator = jsonschema::validator_for(&schema_of::<Record>("record.v1.schema.json"))
        .expect("a valid schema");
    for path in traces() {
        let text = std::fs::read_to_string(path.join("trace.jsonl")).expect("a trace");
        for line in text.lines() {
            let json: serde_json::Value = serde_json::from_str(line).expect("JSON");
            if let Err(error) = validator.validate(&json) {
                panic!("{}: {error}\n{line}", path.display());
            }
        }
    }
}

#[test]
fn a_run_as_a_suite_obeys_the_checked_in_schema() {
    let validator = jsonschema::validator_for(&schema_of::<Suite>("check.v1.schema.json"))
        .expect("a valid schema");
    for path in traces() {
        let report = diagnose(&Trace::read(&path).expect("a readable trace"));
        let suite = Suite::of_run(&report, "zprobe run".into(), "zprobe.toml".into(), |_| None);
        let json: serde_json::Value =
            serde_json::from_str(&suite.to_json().expect("JSON")).expect("JSON");
        if let Err(error) = validator.validate(&json) {
            panic!("{}: {error}", path.display());
        }
    }
}

#[test]
fn every_comparison_obeys_the_checked_in_schema() {
    let validator = jsonschema::validator_for(&schema_of::<Comparison>("compare.v1.schema.json"))
        .expect("a valid schema");
    let side = |path: &Path| {
        let trace = Trace::read(path).expect("a readable trace");
        Side { name: path.display().to_string(), report: diagnose(&trace), trace: Some(trace) }
    };
    let traces = traces();
    let first = side(&traces[0]);
    for path in &traces {
        let json = serde_json::to_value(Comparison::new(&first, &side(path))).expect("JSON");
        if let Err(error) = validator.validate(&json) {
            panic!("{}: {error}", path.display());
        }
        assert_eq!(json["schema"]["version"], 1);
    }
}

#[test]
fn the_answer_of_a_bisection_obeys_the_checked_in_schema() {
    let validator = jsonschema::validator_for(&schema_of::<BisectResult>("bisect.v1.schema.json"))
        .expect("a valid schema");
    let commit = Commit::new(
        "1393f75dc2".repeat(4),
        "2026-01-18".to_owned(),
        "Choose the right optimizer (#7788)".to_owned(),
    );
    let verdict = TrialVerdict { shows: None, outcome: "crashed".to_owned() };
    let trial = CommitTrial { commit: commit.clone(), verdict };
    let answer = BisectResult {
        schema: Schema::CURRENT,
        package: "deepspeed".to_owned(),
        fixed_packages: "torch 2.11.0".to_owned(),
        finding: "ZP101 boundary-leak".to_owned(),
        fixed: false,
        first: vec!["0.18.5".to_owned()],
        releases: 2,
        trials: vec![],
        old_again: vec![],
        commits: Some(SearchedCommits {
            repository: "https://github.com/deepspeedai/DeepSpeed".to_owned(),
            release: "0.18.5".to_owned(),
            first: vec![commit],
            count: 34,
            trials: vec![trial],
        }),
        no_commits: None,
    };
    let mut json = serde_json::to_value(&answer).expect("JSON");
    assert!(validator.validate(&json).is_ok(), "{json:#}");
    assert_eq!(json["schema"]["version"], 1);
    json["commits"]["first"][0].as_object_mut().expect("a commit").remove("id");
    assert!(validator.validate(&json).is_err(), "a commit has a name");
}

/// The content of a TOML file as JSON.
fn json_of(text: &str) -> serde_json::Value {
    let value: toml::Value = toml::from_str(text).expect("it is TOML");
    serde_json::to_value(value).expect("it has no dates")
}

#[test]
fn every_probe_of_the_standard_suite_obeys_the_checked_in_schema() {
    let validator = jsonschema::validator_for(&schema_of::<ProbeFile>("probe.v1.schema.json"))
        .expect("a valid schema");
    for (file, text) in registry::FILES {
        if let Err(error) = validator.validate(&json_of(text)) {
            panic!("{file}: {error}");
        }
    }
    let unknown = json_of("description = 'Own'\nengine = 'ddp'");
    assert!(validator.validate(&unknown).is_err(), "an unknown key is against the schema");
}

#[test]
fn an_entry_of_a_baseline_without_a_reason_is_against_the_schema() {
    let schema = schema_of::<BaselineFile>("baseline.v1.schema.json");
    let validator = jsonschema::validator_for(&schema).expect("a valid schema");
    let entry = "[[accept]]\ncode = 'ZP101'\nprobe = '*'\nexpires = '2026-12-31'\n";
    assert!(validator.validate(&json_of(entry)).is_err());
    let whole = format!("{entry}reason = 'until we upgrade'\n");
    assert!(validator.validate(&json_of(&whole)).is_ok());
}
