//! The forms of a suite's report: their contents, and whether other programs can read them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use quick_junit::TestCaseStatus;
use serde_json::Value;
use zprobe_diagnose::{diagnose, rules};
use zprobe_model::spec::Engine;
use zprobe_model::trace::Trace;
use zprobe_model::visible::Visible;
use zprobe_report::document::{Block, Document, Surroundings};
use zprobe_report::render::markdown::escaped;
use zprobe_report::render::{html, suite_html, tensorboard, trace_events};
use zprobe_report::render::{render as rendered, render_within as rendered_within};
use zprobe_report::render::{render_suite as render, render_suite_within as render_within};
use zprobe_report::suite::{Acceptance, Case, Notice, NoticeKind, Status, Suite, findings};
use zprobe_report::{Form, Report, Verdict};
use zprobe_zoo::registry;

fn report(trace: &str) -> Report {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces").join(trace);
    diagnose(&Trace::read(&dir).unwrap())
}

fn page(code: &str) -> Option<&'static str> {
    rules::find(code).map(|rule| rule.doc)
}

fn case(trace: &str, engine: Engine, probe: &str) -> Case {
    case_of(&report(trace), trace, engine, probe)
}

fn case_of(report: &Report, trace: &str, engine: Engine, probe: &str) -> Case {
    Case {
        probe: probe.to_owned(),
        engine,
        description: format!("The trace {trace}"),
        file: None,
        command: format!("zprobe run --engine {engine}"),
        expected: "clean".to_owned(),
        got: zprobe_zoo::got(report),
        status: Status::of(report.verdict),
        reason: None,
        findings: findings(report),
        versions: [("zprobe".to_owned(), "0.1.0".to_owned())].into(),
        seconds: 0.25,
        run_dir: None,
    }
}

/// A suite with a case of every status, and with every text that a format might handle wrongly.
fn suite() -> Suite {
    let mut accepted = case("boundary-leak", Engine::Native, "accepted");
    accepted.status = Status::Accepted;
    accepted.findings[0].accepted = Some(Acceptance {
        reason: "until <we> upgrade & test".to_owned(),
        expires: "2026-12-31".to_owned(),
    });
    let mut failed = case("boundary-leak", Engine::Native, "leak");
    failed.file = Some("my probes/leak, 100%.toml".to_owned());
    failed.run_dir = Some(".zprobe/check/1/native/leak".into());
    let mut crashed = case("rank-dies", Engine::DeepSpeed, "dies");
    crashed.findings[0].finding.message += "\nand\u{1b}[1m a | control, character: 50%";
    let mut missed = case("clean-accumulator", Engine::DeepSpeed, "missed");
    missed.expected = "ZP101".to_owned();
    missed.status = Status::Failed;
    let not_run = Case {
        status: Status::NotRun,
        findings: vec![],
        got: "no run".to_owned(),
        reason: Some("the pool of python3 has exited with code 1".to_owned()),
        ..case("clean-accumulator", Engine::DeepSpeed, "not-run")
    };
    let skipped = Case {
        status: Status::Skipped,
        findings: vec![],
        got: "no run".to_owned(),
        reason: Some("No module named 'torch'; install torch".to_owned()),
        versions: Default::default(),
        ..case("clean-accumulator", Engine::Ddp, "skipped")
    };
    let cases = vec![
        case("clean-accumulator", Engine::Native, "fine"),
        accepted,
        failed,
        crashed,
        missed,
        not_run,
        skipped,
    ];
    let notice = |kind, line, message: &str| Notice {
        kind,
        file: "zprobe-baseline.toml".to_owned(),
        line,
        message: message.to_owned(),
    };
    let notices = vec![
        notice(NoticeKind::Expired, 3, "ZP604 in `*` was accepted until 2026-01-01"),
        notice(NoticeKind::Unused, 9, "ZP602 in `*` was not found"),
    ];
    Suite::new(cases, notices, "zprobe.toml".to_owned(), page)
}

fn text(form: Form) -> String {
    anstream::adapter::strip_str(&render(&suite(), form).unwrap()).to_string()
}

#[test]
fn a_script_is_a_suite_of_one_case() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces/script-noise");
    let render = |form| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_zprobe"))
            .args(["diagnose", "--output-format", form])
            .arg(&fixture)
            .output()
            .expect("zprobe");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let junit = render("junit");
    assert!(junit.contains(r#"tests="1" skipped="0" failures="1""#), "{junit}");
    let github = render("github");
    assert!(github.starts_with("::error file=examples/train/ddp.py,line=88,title="), "{github}");
    let sarif = assert_sarif(&render("sarif"));
    let place = &sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "examples/train/ddp.py");
    assert_eq!(place["region"]["startLine"], 88);
}

#[test]
fn the_fix_and_the_command_that_repeats_the_run_are_in_every_form() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces/boundary-leak");
    let trace = Trace::read(&dir).unwrap();
    let mut report = diagnose(&trace);
    let known = registry::rows().iter().find(|row| row.name == "boundary-leak").unwrap();
    report.findings[0].known.extend(known.known_bug());
    let again = report.command().unwrap().line();
    report.run.command = Some(again.clone());
    let mut failed = case_of(&report, "boundary-leak", Engine::Native, "leak");
    failed.command.clone_from(&again);
    let suite = Suite::new(vec![failed], vec![], "zprobe.toml".to_owned(), page);
    let mut forms = vec![
        ("html".to_owned(), html(&report, &trace, &page).unwrap()),
        ("tensorboard".to_owned(), tensorboard(&report, &trace).unwrap()),
        ("trace events".to_owned(), trace_events(&report, &trace).unwrap()),
        ("suite html".to_owned(), suite_html(&suite, |_| Ok(Some(report.clone()))).unwrap()),
    ];
    for form in Form::ALL {
        let around = Surroundings::default();
        let of_run = || Ok(Suite::of_run(&report, again.clone(), String::new(), page));
        let text = rendered_within(&report, *form, 80, &around, of_run).unwrap();
        forms.push((form.to_string(), text));
    }
    for form in Form::OF_A_SUITE {
        forms.push((format!("suite {form}"), render(&suite, *form).unwrap()));
    }
    for (form, text) in forms {
        let text = anstream::adapter::strip_str(&text).to_string();
        let text = text.replace("&gt;", ">").replace("&#62;", ">").replace("&#39;", "'");
        let text = text.replace("&apos;", "'").replace("\\u003e", ">");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in ["pip install 'deepspeed>=0.19.0'", again.as_str()] {
            assert!(text.contains(words), "{form} lacks {words}:\n{text}");
        }
    }
}

#[test]
fn the_page_of_a_script_has_its_command_and_the_weights_of_its_tokens() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces/script-mean-of-means");
    let trace = Trace::read(&dir).unwrap();
    let html = html(&diagnose(&trace), &trace, &page).unwrap();
    let (head, panels) = html.split_once("<main").unwrap();
    assert!(head.contains("<pre class=\"typed\">python tests/engines/exec/ranks.py 2 "), "{head}");
    assert!(panels.contains("href=\"#tokens\">target tokens</a>"), "{panels}");
    let row = "<td>0</td><td>0</td><td>25</td><td>1.16</td><td>25.0 %</td>";
    assert!(panels.contains(row), "{panels}");
}

#[test]
fn people_are_told_what_is_wrong_and_how_to_see_it_again() {
    insta::assert_snapshot!("full", text(Form::Full));
    insta::assert_snapshot!("concise", text(Form::Concise));
    insta::assert_snapshot!("markdown", text(Form::Markdown));
}

#[test]
fn only_what_is_to_be_copied_is_wider_than_the_terminal() {
    for columns in [60, 80] {
        let text = render_within(&suite(), Form::Full, columns).unwrap();
        let text = anstream::adapter::strip_str(&text).to_string();
        let copied = |line: &&str| line.starts_with("  again: ") || line.contains("recorded in");
        for line in text.lines().filter(|line| !copied(line)) {
            assert!(line.chars().count() <= columns, "{columns} columns: {line}");
        }
    }
}

#[test]
fn annotations_are_one_line_each_whatever_stands_in_them() {
    let text = render(&suite(), Form::Github).unwrap();
    insta::assert_snapshot!("github", text);
    let commands = text.lines().filter(|line| line.starts_with("::"));
    // The eight commands are five cases, a notice about skipped probes, and two entries of the baseline.
    assert_eq!(commands.count(), 8, "{text}");
    assert!(text.contains("file=my probes/leak%2C 100%25.toml,line=1,"), "{text}");
    assert!(text.contains("character: 50%25"), "{text}");
}

#[test]
fn junit_counts_every_case_and_holds_no_character_that_xml_forbids() {
    let text = render(&suite(), Form::Junit).unwrap();
    let report = quick_junit::Report::deserialize_from_str(&text).unwrap();
    assert_eq!((report.tests, report.failures, report.errors), (7, 2, 2));
    let of = |name: &str| {
        let mut tests = report.test_suites.iter().flat_map(|suite| &suite.test_cases);
        &tests.find(|test| test.name.as_str() == name).unwrap().status
    };
    assert!(matches!(of("fine"), TestCaseStatus::Success { .. }));
    assert!(matches!(of("accepted"), TestCaseStatus::Success { .. }));
    let TestCaseStatus::Skipped { message: Some(message), .. } = of("skipped") else {
        panic!("{:?}", of("skipped"));
    };
    assert_eq!(message.as_str(), "No module named 'torch'; install torch");
    let TestCaseStatus::NonSuccess { ty: Some(ty), description, .. } = of("leak") else {
        panic!("{:?}", of("leak"));
    };
    assert_eq!(ty.as_str(), "ZP101");
    assert!(description.as_ref().unwrap().as_str().contains("zprobe run --engine native"));
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn a_cause_is_told_once_with_every_case_that_it_made() {
    let leak = |probe: &str| case("boundary-leak", Engine::DeepSpeed, probe);
    let mut late = leak("late");
    // A finding in another microbatch has the same cause.
    let message = &mut late.findings[0].finding.message;
    *message = message.replace("microbatch 1", "microbatch 3");
    let mut own = leak("own");
    own.file = Some("probes/own.toml".to_owned());
    let cases = vec![
        leak("first"),
        case("rank-dies", Engine::DeepSpeed, "dies"),
        late,
        own,
        case("boundary-leak", Engine::Native, "other-engine"),
    ];
    let suite = Suite::new(cases, vec![], "zprobe.toml".to_owned(), page);
    let render =
        |format| anstream::adapter::strip_str(&render(&suite, format).unwrap()).to_string();
    let full = render(Form::Full);
    assert_eq!(full.matches("more: zprobe explain ZP101").count(), 2, "{full}");
    let also = "and 2 other probes with the same cause: deepspeed/late, deepspeed/own";
    assert!(full.contains(also), "{full}");
    let markdown = render(Form::Markdown);
    assert_eq!(markdown.matches("<details>").count(), 3, "{markdown}");
    // There is one more error, at the file of the probe that has a file.
    let github = render(Form::Github);
    assert_eq!(github.lines().filter(|line| line.starts_with("::error")).count(), 4, "{github}");
    assert!(github.contains("in deepspeed/first and 1 other probe::"), "{github}");
    let junit = quick_junit::Report::deserialize_from_str(&render(Form::Junit)).unwrap();
    assert_eq!((junit.tests, junit.failures, junit.errors), (5, 4, 1));
    let sarif = assert_sarif(&render(Form::Sarif));
    assert_eq!(sarif["runs"][0]["results"].as_array().unwrap().len(), 5);
}

#[test]
fn a_suite_without_an_answer_says_so_first_in_every_form_for_people() {
    let cases = vec![case("clean-accumulator", Engine::Native, "fine")];
    let suite = Suite::new(cases, vec![], "zprobe.toml".to_owned(), page);
    assert_eq!(suite.exit_code, 0);
    let suite = suite.without_answer("no real engine was checked".to_owned());
    assert_eq!(suite.exit_code, 2);
    let line = |format, number: usize| {
        let text = anstream::adapter::strip_str(&render(&suite, format).unwrap()).to_string();
        text.lines().nth(number).unwrap().to_owned()
    };
    let why = "no real engine was checked";
    assert_eq!(line(Form::Full, 0), format!("NOT CHECKED  {why}"));
    assert_eq!(line(Form::Concise, 0), format!("NOT CHECKED: {why}"));
    assert_eq!(line(Form::Github, 0), format!("::error title=zprobe check::{why}"));
    assert_eq!(line(Form::Markdown, 0), "### ❌ zprobe check");
    assert_eq!(line(Form::Markdown, 2), format!("**Not checked**: {why}"));
    let sarif = assert_sarif(&render(&suite, Form::Sarif).unwrap());
    let invocation = &sarif["runs"][0]["invocations"][0];
    assert_eq!(invocation["exitCode"], 2);
    assert_eq!(invocation["toolExecutionNotifications"][0]["message"]["text"], why);
}

/// Asserts that a text has the parts of SARIF 2.1.0 that the schema and GitHub's code scanning require.
fn assert_sarif(text: &str) -> Value {
    let sarif: Value = serde_json::from_str(text).unwrap();
    assert_eq!(sarif["version"], "2.1.0");
    assert!(sarif["$schema"].as_str().unwrap().contains("sarif-2.1.0"));
    for run in sarif["runs"].as_array().unwrap() {
        let driver = &run["tool"]["driver"];
        assert_eq!(driver["name"], "zprobe");
        let rules = driver["rules"].as_array().unwrap();
        for rule in rules {
            assert!(rule["id"].is_string());
            let help = rule["help"]["markdown"].as_str().unwrap();
            assert!(help.contains("## What to do"), "{rule}");
            let short = rule["shortDescription"]["text"].as_str().unwrap();
            let full = rule["fullDescription"]["text"].as_str().unwrap();
            assert!(!short.is_empty() && !full.is_empty() && full.len() <= 1024, "{rule}");
        }
        for result in run["results"].as_array().unwrap() {
            let rule = &rules[usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap()];
            assert_eq!(rule["id"], result["ruleId"]);
            assert!(!result["message"]["text"].as_str().unwrap().is_empty());
            assert!(["error", "warning", "note"].contains(&result["level"].as_str().unwrap()));
            let place = &result["locations"][0]["physicalLocation"];
            let uri = place["artifactLocation"]["uri"].as_str().unwrap();
            assert!(!uri.is_empty() && !uri.starts_with('/') && !uri.contains(' '), "{uri}");
            assert!(place["region"]["startLine"].as_u64().unwrap() >= 1);
        }
    }
    sarif
}

#[test]
fn sarif_has_a_result_for_each_finding_and_a_notification_for_what_else_went_wrong() {
    let sarif = assert_sarif(&render(&suite(), Form::Sarif).unwrap());
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    let uris: Vec<&Value> = results
        .iter()
        .map(|it| &it["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])
        .collect();
    assert_eq!(uris, ["zprobe.toml", "my%20probes/leak%2C%20100%25.toml", "zprobe.toml"]);
    let suppressed: Vec<bool> = results.iter().map(|it| it["suppressions"].is_array()).collect();
    assert_eq!(suppressed, [true, false, false]);
    let invocation = &sarif["runs"][0]["invocations"][0];
    let notifications = invocation["toolExecutionNotifications"].as_array().unwrap();
    assert_eq!((notifications.len(), &invocation["exitCode"]), (4, &Value::from(1)));
}

#[test]
fn a_single_run_is_a_suite_of_one_case() {
    for (trace, junit) in
        [("clean-accumulator", (1, 0, 0)), ("boundary-leak", (1, 1, 0)), ("rank-dies", (1, 0, 1))]
    {
        let report = report(trace);
        let command = "zprobe run".to_owned();
        let suite = Suite::of_run(&report, command, "zprobe.toml".to_owned(), page);
        assert_eq!(suite.exit_code, report.exit().code(), "{trace}");
        let text = render(&suite, Form::Junit).unwrap();
        let read = quick_junit::Report::deserialize_from_str(&text).unwrap();
        assert_eq!((read.tests, read.failures, read.errors), junit, "{trace}");
        let sarif = assert_sarif(&render(&suite, Form::Sarif).unwrap());
        let results = sarif["runs"][0]["results"].as_array().unwrap().len();
        assert_eq!(results > 0, report.verdict != Verdict::Clean, "{trace}");
    }
}

#[test]
fn terminal_and_markdown_say_every_fact_of_the_document() {
    for trace in ["boundary-leak", "dead-hooks", "rank-dies", "clean-ipg-bucket"] {
        let report = report(trace);
        let visible = Visible::of(&report).unwrap();
        let document = Document::of(&visible).unwrap();
        let suite = || unreachable!("a run has these forms of its own");
        let full =
            rendered_within(&report, Form::Full, 5000, &Surroundings::default(), suite).unwrap();
        let full = anstream::adapter::strip_str(&full).to_string();
        let markdown = rendered(&report, Form::Markdown).unwrap();
        let mut said = 0;
        for section in &document.sections {
            assert_eq!(full.contains(&section.title), !section.is_detail, "{}", section.title);
            let facts = section.blocks.iter().filter_map(|block| match block {
                Block::Facts(facts) => Some(facts),
                _ => None,
            });
            for fact in facts.flatten() {
                for words in &fact.said {
                    let words = words.text();
                    assert!(full.contains(&format!("{}{words}", fact.lead())), "{words}\n{full}");
                    let words = [escaped(words), format!("`{words}`")];
                    assert!(words.iter().any(|it| markdown.contains(it)), "{words:?}\n{markdown}");
                    said += 1;
                }
            }
        }
        assert!(said > 3, "{trace}: {said} facts");
    }
}
