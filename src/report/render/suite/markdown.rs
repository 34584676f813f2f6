//! Markdown, as GitHub shows it in the summary of a job: a table of what is not well, each with its
//! findings folded below.

use std::fmt::Write as _;

use super::facts;
use super::text::summary;
use crate::report::render::concise::place;
use crate::report::render::markdown::{block, code, escaped, escaped_html};
use crate::report::suite::{Case, Status, Suite};
use crate::visible::Visible;

/// The suite as Markdown.
pub(super) fn render(suite: &Visible<Suite>) -> String {
    let sign = if suite.exit_code == 0 { "✅" } else { "❌" };
    let mut text = format!("### {sign} zprobe check\n\n{}\n", escaped(&summary(suite)));
    let noted: Vec<&Case> = suite
        .cases
        .iter()
        .filter(|it| it.status.is_bad() || it.status == Status::Accepted)
        .collect();
    if !noted.is_empty() {
        text.push_str("\n| | probe | expected | got |\n|---|---|---|---|\n");
        for case in &noted {
            let got = case.reason.as_deref().unwrap_or(&case.got);
            let got = got.lines().next().unwrap_or_default();
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                case.status,
                code(&case.id()),
                escaped(&case.expected),
                escaped(got),
            );
        }
    }
    for case in noted {
        details(&mut text, case);
    }
    skipped(&mut text, suite);
    for notice in &suite.notices {
        let _ = writeln!(
            text,
            "\n{} baseline entry, {}: {}",
            notice.kind,
            code(&format!("{}:{}", notice.file, notice.line)),
            escaped(&notice.message)
        );
    }
    text
}

fn details(text: &mut String, case: &Case) {
    let id = escaped_html(&case.id());
    let _ = writeln!(text, "\n<details><summary><code>{id}</code></summary>\n");
    let _ = writeln!(text, "{}.\n", escaped(case.description.trim_end_matches('.')));
    for it in &case.findings {
        let (finding, place) = (&it.finding, place(&it.finding));
        let _ = writeln!(
            text,
            "**{} {}** {}\n",
            escaped(&finding.code),
            escaped(&finding.name),
            escaped(&place)
        );
        let _ = writeln!(text, "{}\n", escaped(&finding.message));
        for evidence in facts(finding) {
            let _ = writeln!(text, "- {}", escaped(&evidence));
        }
        if let Some(accepted) = &it.accepted {
            let reason = escaped(&accepted.reason);
            let _ = writeln!(text, "- accepted until {}: {reason}", escaped(&accepted.expires));
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{}\n</details>", block("", &case.command));
}

fn skipped(text: &mut String, suite: &Suite) {
    let mut reasons: Vec<(String, &str)> = Vec::new();
    for case in suite.cases.iter().filter(|case| case.status == Status::Skipped) {
        let reason = (case.engine.to_string(), case.reason.as_deref().unwrap_or_default());
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    for (engine, reason) in reasons {
        let _ = writeln!(text, "\nSkipped what is of {engine}: {}", escaped(reason));
    }
}
