//! Bugs of the zoo are recognised in every user's run: by its findings, and by the versions and settings that
//! ran.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use zprobe_diagnose::diagnose;
use zprobe_model::spec::{Dtype, Engine, EngineSettings, NormType, Shape, SpecRequest};
use zprobe_model::trace::Trace;
use zprobe_report::render::render;
use zprobe_report::{Finding, Form, Report, RuleCode};
use zprobe_zoo::{Expectation, ZooRow, name_known_bugs, registry};

/// The default settings of an engine.
fn settings_of(engine: Engine) -> EngineSettings {
    let request = SpecRequest { engine: Some(engine), ..SpecRequest::default() };
    request.resolve().unwrap().settings
}

/// The settings of a user's script.
fn a_script() -> EngineSettings {
    let options = serde_json::json!({"command": ["train.py"], "dry": false});
    EngineSettings::Script(serde_json::from_value(options).unwrap())
}

/// The report on a run of DeepSpeed that leaks its boundary microbatch.
fn leak(deepspeed: &str, optimizer_class: &str) -> Report {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut report = diagnose(&Trace::read(&root.join("fixtures/traces/boundary-leak")).unwrap());
    report.run.spec.settings = settings_of(Engine::DeepSpeed);
    report.run.optimizer_class = Some(optimizer_class.to_owned());
    report.run.versions.insert("deepspeed".to_owned(), deepspeed.to_owned());
    name_known_bugs(&mut report);
    report
}

fn names(report: &Report) -> Vec<&str> {
    report.findings[0].known.iter().map(|known| known.name.as_str()).collect()
}

#[test]
fn a_bug_is_named_in_the_releases_that_have_it() {
    for affected in ["0.18.5", "0.18.9", "0.18.9+cpu"] {
        assert_eq!(names(&leak(affected, "BF16_Optimizer")), ["boundary-leak"], "{affected}");
    }
    for other in ["0.18.4", "0.19.0", "0.19.8", "not a version"] {
        assert!(names(&leak(other, "BF16_Optimizer")).is_empty(), "{other}");
    }
}

#[test]
fn a_bug_of_an_engine_is_named_in_a_script_by_the_class_and_what_the_engine_tells() {
    let mut report = leak("0.18.4", "FP16_UnfusedOptimizer");
    report.run.spec.settings = a_script();
    report.run.spec.dtype = Dtype::Bf16;
    report.findings[0].code = RuleCode::new("ZP106");
    name_known_bugs(&mut report);
    assert!(names(&report).is_empty(), "the stage is not known");
    let facts = &mut report.run.engine_facts;
    facts.insert("zero_optimization_stage".to_owned(), "0".to_owned());
    name_known_bugs(&mut report);
    assert_eq!(names(&report), ["bf16-never-cleared"]);
    // No script meets a condition that no engine reports.
    let mut report = leak("0.18.9", "BF16_Optimizer");
    report.run.spec.settings = a_script();
    report.findings[0].code = RuleCode::new("ZP103");
    name_known_bugs(&mut report);
    assert!(names(&report).is_empty());
}

#[test]
fn a_bug_of_offload_is_named_in_a_script_whose_engine_offloads() {
    let mut report = leak("0.16.9", "DeepSpeedZeroOptimizer");
    report.run.spec.settings = a_script();
    report.findings[0].code = RuleCode::new("ZP102");
    let told = [("zero_optimization_stage", "2"), ("cpu_offload", "False")];
    report.run.engine_facts = told.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    name_known_bugs(&mut report);
    assert!(names(&report).is_empty(), "without offload");
    report.run.engine_facts.insert("cpu_offload".to_owned(), "True".to_owned());
    name_known_bugs(&mut report);
    assert_eq!(names(&report), ["offload-loses-middle"]);
}

#[test]
fn what_only_cpu_ranks_have_is_a_limit_of_them_and_any_other_bug_is_a_finding() {
    let mut report = leak("0.17.6", "DeepSpeedZeroOptimizer");
    report.findings[0].code = RuleCode::new("ZP104");
    let EngineSettings::DeepSpeed(options) = &mut report.run.spec.settings else {
        panic!("another engine")
    };
    options.contiguous_gradients = Some(false);
    name_known_bugs(&mut report);
    assert_eq!(names(&report), ["cpu-never-reduced", "not-averaged-mixed-dtype"]);
    assert_eq!(report.limit(), None, "it may be the one that GPUs have, too");
    report.run.spec.dtype = Dtype::Fp32;
    name_known_bugs(&mut report);
    assert_eq!(names(&report), ["cpu-never-reduced"]);
    let limit = report.limit().unwrap();
    assert!(limit.starts_with("CPU ranks only") && limit.contains("what to do"), "{limit}");
    // A finding in addition to the known bug is no limit of CPU ranks.
    let mut both = report.clone();
    both.findings.push(leak("0.18.9", "BF16_Optimizer").findings[0].clone());
    assert_eq!(both.limit(), None);
    assert_eq!(leak("0.18.9", "BF16_Optimizer").limit(), None);
    assert_eq!(diagnose_clean().limit(), None);
}

fn diagnose_clean() -> Report {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    diagnose(&Trace::read(&root.join("fixtures/traces/clean-accumulator")).unwrap())
}

#[test]
fn what_only_looks_like_a_known_bug_is_not_named() {
    assert!(names(&leak("0.18.9", "DeepSpeedZeroOptimizer")).is_empty());
    let mut native = leak("0.18.9", "BF16_Optimizer");
    native.run.spec.settings = settings_of(Engine::Native);
    name_known_bugs(&mut native);
    assert!(names(&native).is_empty());
    let mut other = leak("0.18.9", "BF16_Optimizer");
    other.findings[0].code = RuleCode::new("ZP102");
    name_known_bugs(&mut other);
    assert!(names(&other).is_empty());
}

#[test]
fn what_a_bug_leaves_in_its_wake_is_named_beside_it_and_not_alone() {
    let wake = |codes: &[&str]| {
        let mut report = leak("0.18.9", "DistributedDataParallel");
        report.run.spec.settings = settings_of(Engine::Ddp);
        report.run.spec.shapes = vec![Shape::Unmanaged];
        report.run.versions.insert("torch".to_owned(), "2.15.0".to_owned());
        let finding = report.findings[0].clone();
        let coded = |code: &&str| Finding { code: RuleCode::new(code), ..finding.clone() };
        report.findings = codes.iter().map(coded).collect();
        name_known_bugs(&mut report);
        report.findings.iter().map(|finding| finding.known.len()).collect::<Vec<_>>()
    };
    assert_eq!(wake(&["ZP104", "ZP107"]), [1, 1]);
    assert_eq!(wake(&["ZP104", "ZP401"]), [1, 0]);
    assert_eq!(wake(&["ZP107"]), [0]);
}

#[test]
fn the_reader_is_told_the_fix_and_what_to_do_without_it() {
    let report = leak("0.18.9", "BF16_Optimizer");
    let text = anstream::adapter::strip_str(&render(&report, Form::Full).unwrap()).to_string();
    for part in ["known bug boundary-leak", "fixed in 0.19.0", "pull/7985", "immediate_grad_update"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let concise = render(&report, Form::Concise).unwrap();
    assert!(concise.contains("(known bug boundary-leak, fixed in 0.19.0; fix: "), "{concise}");
}

#[test]
fn every_row_says_in_which_runs_it_is_recognised() {
    for row in rows_of_engines() {
        // A report leaves these settings out at their defaults.
        let is_fsdp2 = row.engine == Engine::Fsdp2;
        let request = SpecRequest {
            engine: Some(row.engine),
            world_size: Some(4),
            shards_after_forward: is_fsdp2.then_some(2),
            norm_type: is_fsdp2.then_some(NormType::One),
            gradient_clipping: is_fsdp2.then_some(0.125),
            ..SpecRequest::default()
        };
        let spec = serde_json::to_value(request.resolve().unwrap()).unwrap();
        let known = row.known.as_ref().unwrap_or_else(|| panic!("{} has no [known]", row.name));
        assert!(!known.affected.is_empty(), "{}: affected by no package", row.name);
        for (field, values) in &known.when {
            let pointer = format!("/{}", field.replace('.', "/"));
            // A configuration has only the keys that a user has set.
            let may_lack = field.starts_with("deepspeed_config.");
            let has = may_lack || spec.pointer(&pointer).is_some();
            assert!(has, "{}: a run has no {field}", row.name);
            assert!(!values.is_empty(), "{}: {field} can be nothing", row.name);
        }
    }
}

/// The rows about engines. An installed trainer is not necessarily used by a script, so a row about a trainer
/// is never recognised in a run.
fn rows_of_engines() -> impl Iterator<Item = &'static ZooRow> {
    registry::rows().iter().filter(|row| row.script.is_none())
}

/// Tests that a release, if tried with the row's arguments, has the bug if and only if it is affected.
#[test]
fn affected_releases_are_those_that_were_seen_to_have_the_bug() {
    for row in rows_of_engines() {
        let known = row.known.as_ref().unwrap();
        for release in row.releases.iter().filter(|release| release.extra.is_empty()) {
            let fits = known.affected.iter().all(|(package, versions)| {
                release.packages.version(package).is_some_and(|version| versions.contains(version))
            });
            let has = release.expect != Expectation::Clean;
            // A user's mistake depends on the arguments of a run, and not on the release.
            let by_words = row.releases.iter().any(|other| {
                other.packages == release.packages && other.expect != Expectation::Clean
            });
            assert_eq!(fits, has || by_words, "{}: {}", row.name, release.label());
            let fixed = known.fixed.as_ref();
            let is_fixed = fixed.is_some_and(|fixed| {
                known
                    .affected
                    .keys()
                    .any(|package| release.packages.version(package) >= Some(fixed))
            });
            assert!(!(has && is_fixed), "{}: {} is to be fixed", row.name, release.label());
        }
    }
}
