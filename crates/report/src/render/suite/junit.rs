//! Renders a suite as JUnit XML, in the form that Jenkins describes: an engine is a test suite, a probe is a test case.
//!
//! A case whose result is not as expected is a failure; a case that crashed or could not be run is an error.

use std::fmt::Write as _;
use std::time::Duration;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use crate::suite::{Case, Status, Suite};
use zprobe_model::spec::Engine;
use zprobe_model::visible::Visible;

pub fn render(suite: &Visible<Suite>) -> anyhow::Result<String> {
    let mut report = Report::new("zprobe");
    report.set_time(seconds(suite.seconds));
    for engine in Engine::ALL {
        let cases: Vec<&Case> = suite.cases.iter().filter(|case| case.engine == *engine).collect();
        let Some(first) = cases.iter().find(|case| !case.versions.is_empty()).or(cases.first())
        else {
            continue;
        };
        let mut tests = TestSuite::new(format!("zprobe.{engine}"));
        tests.set_time(seconds(cases.iter().map(|case| case.seconds).sum()));
        tests.add_properties(&first.versions);
        tests.add_test_cases(cases.into_iter().map(test_case));
        report.add_test_suite(tests);
    }
    Ok(report.to_string()?)
}

fn test_case(case: &Case) -> TestCase {
    let mut status = match case.status {
        Status::Passed | Status::Accepted => TestCaseStatus::success(),
        Status::Skipped => TestCaseStatus::skipped(),
        Status::Failed | Status::Inconclusive => {
            TestCaseStatus::non_success(NonSuccessKind::Failure)
        }
        Status::Crashed | Status::NotRun => TestCaseStatus::non_success(NonSuccessKind::Error),
    };
    if case.status == Status::Skipped || case.status.is_bad() {
        status.set_message(case.complaint());
    }
    if case.status.is_bad() {
        let kind = case.findings.iter().find(|it| it.accepted.is_none());
        status.set_type(kind.map_or(case.status.name(), |it| it.finding.code.as_str()));
        status.set_description(story(case));
    }
    let mut test = TestCase::new(case.probe.as_str(), status);
    test.set_classname(format!("zprobe.{}", case.engine)).set_time(seconds(case.seconds));
    if let Some(file) = &case.file {
        test.extra.insert("file".into(), file.as_str().into());
    }
    if case.status == Status::Accepted {
        test.set_system_out(story(case));
    }
    test
}

/// The description of a case, its findings with their evidence, and the command that repeats the case.
fn story(case: &Case) -> String {
    let mut text = format!("{}\n", case.description);
    for it in &case.findings {
        let _ = writeln!(text, "\n{}: {}", it.finding.title(), it.finding.statement());
        for fact in it.finding.lines() {
            let _ = writeln!(text, "- {fact}");
        }
        if let Some(accepted) = &it.accepted {
            let _ = writeln!(text, "{}", accepted.describe());
        }
    }
    let _ = writeln!(text, "\nagain: {}", case.command);
    text
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
