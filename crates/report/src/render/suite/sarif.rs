//! Renders a suite as SARIF 2.1.0, the input format of GitHub's code scanning.
//!
//! A finding becomes a SARIF result. All other problems become notifications of the tool: a run that crashed without a
//! finding, a clean run where a finding was expected, and entries of the baseline that need attention.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::suite::{Case, CaseFinding, Suite};
use zprobe_model::visible::Visible;

/// The address of the JSON Schema of the format.
const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

pub fn render(
    suite: &Visible<Suite>,
    pages: &BTreeMap<String, &'static str>,
) -> serde_json::Result<String> {
    let rules = rules(suite, pages);
    let ids: Vec<&str> = rules.iter().filter_map(|rule| rule["id"].as_str()).collect();
    let cases = suite.cases.iter();
    let results: Vec<Value> = cases
        .flat_map(|case| case.findings.iter().map(move |it| (case, it)))
        .map(|(case, it)| result(suite, case, it, &ids))
        .collect();
    let driver = json!({
        "name": "zprobe",
        "semanticVersion": env!("CARGO_PKG_VERSION"),
        "rules": rules,
    });
    let sarif = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": driver },
            "automationDetails": { "id": "zprobe/" },
            "invocations": [{
                "executionSuccessful": suite.cases.iter().any(|case| case.run_was_made()),
                "exitCode": suite.exit_code,
                "toolExecutionNotifications": notifications(suite),
            }],
            "results": results,
        }],
    });
    zprobe_model::visible::json(&sarif)
}

/// The rules that have findings, in the order of their codes, each with the text of its page.
fn rules(suite: &Suite, pages: &BTreeMap<String, &'static str>) -> Vec<Value> {
    let mut rules: Vec<Value> = Vec::new();
    let findings = suite.cases.iter().flat_map(|case| &case.findings);
    let mut findings: Vec<_> = findings.map(|it| &it.finding).collect();
    findings.sort_by_key(|finding| finding.code);
    findings.dedup_by(|a, b| a.code == b.code);
    for finding in findings {
        let mut rule = Map::new();
        rule.insert("id".into(), json!(finding.code));
        rule.insert("name".into(), json!(finding.name));
        rule.insert("defaultConfiguration".into(), json!({ "level": finding.severity }));
        if let Some(page) = pages.get(&*finding.code) {
            rule.insert("shortDescription".into(), json!({ "text": finding.title() }));
            rule.insert("fullDescription".into(), json!({ "text": meaning(page) }));
            rule.insert("help".into(), json!({ "text": page, "markdown": page }));
        }
        rules.push(rule.into());
    }
    rules
}

/// The first paragraph of a rule's page, in one line.
fn meaning(page: &str) -> String {
    let lines = page.lines().skip_while(|line| line.is_empty() || line.starts_with('#'));
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

fn result(suite: &Suite, case: &Case, it: &CaseFinding, rules: &[&str]) -> Value {
    let finding = &it.finding;
    let mut text = format!("{}: {}", case.id(), finding.statement());
    for fact in finding.lines() {
        text = format!("{text}\n- {fact}");
    }
    text = format!("{text}\nagain: {}", case.command);
    let (file, line) = it.place(case).unwrap_or((&suite.file, 1));
    let mut result = json!({
        "ruleId": finding.code,
        "ruleIndex": rules.iter().position(|id| finding.code == *id),
        "level": finding.severity,
        "message": { "text": message(&text) },
        "locations": [location(file, line, Some(case))],
        // A finding of the same rule in the same case stays one alert, even if the numbers in its message change.
        "partialFingerprints": { "case/v1": format!("{}:{}", finding.code, case.id()) },
        "properties": { "command": case.command },
    });
    if let Some(accepted) = &it.accepted {
        let why = accepted.describe();
        result["suppressions"] =
            json!([{ "kind": "external", "status": "accepted", "justification": why }]);
    }
    result
}

fn location(file: &str, line: usize, case: Option<&Case>) -> Value {
    let mut location = json!({
        "physicalLocation": {
            "artifactLocation": { "uri": uri(file) },
            "region": { "startLine": line },
        },
    });
    if let Some(case) = case {
        location["logicalLocations"] = json!([{
            "name": case.probe,
            "fullyQualifiedName": case.id(),
            "kind": "module",
        }]);
    }
    location
}

/// A relative path as a URI, with percent escapes for characters that a URI may not contain.
fn uri(path: &str) -> String {
    let mut uri = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                uri.push(byte.into());
            }
            byte => uri += &format!("%{byte:02X}"),
        }
    }
    uri
}

fn notifications(suite: &Suite) -> Vec<Value> {
    let bad = suite.cases.iter().filter(|case| case.status.is_bad() && case.findings.is_empty());
    let cases = bad.map(|case| {
        let file = case.file.as_deref().unwrap_or(&suite.file);
        let text = format!("{}: {}\nagain: {}", case.id(), case.complaint(), case.command);
        json!({
            "level": "error",
            "message": { "text": message(&text) },
            "locations": [location(file, 1, Some(case))],
        })
    });
    let notices = suite.notices.iter().map(|notice| {
        json!({
            "level": notice.kind.severity(),
            "message": { "text": message(&notice.message) },
            "locations": [location(&notice.file, notice.line, None)],
        })
    });
    let unchecked = suite.unchecked.iter().map(|why| {
        json!({
            "level": "error",
            "message": { "text": why },
            "locations": [location(&suite.file, 1, None)],
        })
    });
    unchecked.chain(cases).chain(notices).collect()
}

/// The message without links: `[words](address)` would be a link, so a space is inserted between `]` and `(`.
fn message(text: &str) -> String {
    text.replace("](", "] (")
}
