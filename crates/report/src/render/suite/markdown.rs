//! Renders a suite as Markdown for GitHub's job summary: a table of the cases that need attention or are accepted, with
//! their findings folded below.

use std::fmt::Write as _;

use super::in_short;
use super::text::summary;
use crate::render::markdown::{block, code, escaped, escaped_html, facts};
use crate::suite::{Case, Status, Suite};
use zprobe_model::visible::Visible;

/// Renders the suite as Markdown.
pub fn render(suite: &Visible<Suite>) -> String {
    let sign = if suite.exit_code == 0 { "✅" } else { "❌" };
    let mut text = format!("### {sign} zprobe check\n\n");
    if let Some(why) = &suite.unchecked {
        let _ = writeln!(text, "**Not checked**: {}\n", escaped(why));
    }
    let _ = writeln!(text, "{}", escaped(&summary(suite)));
    let noted: Vec<&Case> = suite
        .cases
        .iter()
        .filter(|it| it.status.is_bad() || it.status == Status::Accepted)
        .collect();
    if !noted.is_empty() {
        text.push_str("\n| | probe | expected | got |\n|---|---|---|---|\n");
        for case in &noted {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                case.status,
                code(&case.id()),
                escaped(&case.expected),
                escaped(&in_short(case)),
            );
        }
    }
    let causes = suite.causes();
    for case in noted {
        match causes.iter().find(|cause| cause.cases().any(|of_it| std::ptr::eq(of_it, case))) {
            Some(cause) if std::ptr::eq(cause.first, case) => {
                details(&mut text, case, &cause.others);
            }
            Some(_) => {}
            None => details(&mut text, case, &[]),
        }
    }
    for skipped in suite.skipped() {
        let _ = writeln!(text, "\nSkipped {}", escaped(&skipped));
    }
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

/// Writes the details of a case; `others` are cases with the same cause.
fn details(text: &mut String, case: &Case, others: &[&Case]) {
    let ids = std::iter::once(&case)
        .chain(others)
        .map(|case| format!("<code>{}</code>", escaped_html(&case.id())));
    let ids = ids.collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "\n<details><summary>{ids}</summary>\n");
    let _ = writeln!(text, "{}.\n", escaped(case.description.trim_end_matches('.')));
    for it in &case.findings {
        let finding = &it.finding;
        let (title, place) = (escaped(&finding.title()), escaped(&finding.place()));
        let _ = writeln!(text, "**{title}** {place}\n\n{}\n", escaped(&finding.message));
        *text += &facts(&finding.facts());
        if let Some(accepted) = &it.accepted {
            let _ = writeln!(text, "- {}", escaped(&accepted.describe()));
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{}\n</details>", block("", &case.command));
}
