//! The report as Markdown, as GitHub reads it: for issues, pull requests and job summaries.

use std::fmt::Write as _;

use super::Report;
use super::concise;
use super::full::{self, weights};
use crate::report::words::{matrix_text, weight_text};
use crate::report::{Contribution, Finding, KnownBug};
use crate::trace::{Outcome, Point};

/// More groups of weights than these are in `report.json` only.
const GROUPS: usize = 6;

/// More microbatches than this do not make a readable table.
const COLUMNS: usize = 24;

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut text = format!(
        "## zprobe: {}, {}\n\n",
        report.verdict.name().to_uppercase(),
        escaped(&full::headline(report))
    );
    text += &setup(report);
    text += &findings(report);
    if let Some(minimised) = &report.minimised {
        let _ = write!(text, "\nThe smallest configuration that shows {}:\n\n", minimised.code);
        text += &block("", &minimised.command);
    }
    text += &ranks(report);
    text += &contributions(report);
    text += &environment(report);
    text + &power(report)
}

/// What was run, one line each.
pub fn setup(report: &Report) -> String {
    let lines = full::setting(report).into_iter();
    lines.map(|line| format!("- {}\n", escaped(&line))).collect()
}

/// What is wrong, one root cause after the other.
pub fn findings(report: &Report) -> String {
    report.findings.iter().map(finding).collect()
}

fn finding(finding: &Finding) -> String {
    let Finding { code, name, message, .. } = finding;
    let place = concise::place(finding);
    let place = if place.is_empty() { place } else { format!(" ({})", escaped(&place)) };
    let mut text = format!("\n**{code} {name}**{place}: {}\n\n", escaped(message));
    for evidence in &finding.evidence {
        let _ = writeln!(text, "- {}", escaped(evidence));
    }
    for consequence in &finding.consequences {
        let _ =
            writeln!(text, "- follows, {}: {}", consequence.code, escaped(&consequence.message));
    }
    for known in &finding.known {
        text += &known_bug(known);
    }
    text
}

/// A bug that is known: it need not be reported again.
fn known_bug(known: &KnownBug) -> String {
    let fixed = match &known.fixed {
        Some(release) => format!("fixed in {release}"),
        None => "not fixed in any release that was tried".to_owned(),
    };
    let title = escaped(&known.title);
    let mut text = format!("- looks like a known bug: {title} ({}; {fixed})", known.affected);
    // Addresses are links as they stand.
    for link in &known.links {
        let _ = write!(text, ", {link}");
    }
    let _ = write!(text, "\n- what to do about it: {}\n", escaped(&known.workaround));
    text
}

/// What ranks did last that did not end well, with their last words.
pub fn ranks(report: &Report) -> String {
    let mut text = String::new();
    for rank in report.ranks.iter().filter(|rank| !rank.finished) {
        let outcome = match rank.outcome {
            Some(Outcome::Code(code)) => format!("exit code {code}"),
            Some(Outcome::Signal(signal)) => format!("signal {signal}"),
            Some(Outcome::Reaped) => "ended by zprobe".to_owned(),
            None => "no known end".to_owned(),
        };
        let _ = write!(text, "\nRank {} ({outcome}): {}\n", rank.rank, escaped(&rank.last));
        let words = [rank.failure.as_deref(), rank.stderr.as_deref()];
        for words in words.into_iter().flatten().filter(|words| !words.trim().is_empty()) {
            let _ = write!(text, "\n{}", block("", words));
        }
    }
    text
}

/// Contribution weights, as tables: those that are wrong.
pub fn contributions(report: &Report) -> String {
    let mut text = String::new();
    let input = weights::entries(report, Point::OptimizerInput);
    for (point, what) in [
        (Point::OptimizerInput, "What the optimizer consumed"),
        (Point::MasterWeights, "The update of the master weights"),
        (Point::Parameters, "The update of the model's parameters"),
    ] {
        let entries = weights::entries(report, point);
        if entries.is_empty() {
            continue;
        }
        if entries.iter().all(|entry| entry.as_planned) {
            let _ = write!(text, "\n{what}: every contribution weight is as it should be.\n");
            continue;
        }
        if point != Point::OptimizerInput && weights::follows(&entries, &input) {
            let _ = write!(text, "\n{what}: the same weights.\n");
            continue;
        }
        let groups = weights::grouped(&entries);
        for group in groups.iter().take(GROUPS).filter(|group| !group.entry.as_planned) {
            let _ = write!(text, "\n{what}, {}:\n\n", escaped(&group.place()));
            text += &table(group.entry);
        }
        if groups.len() > GROUPS {
            let more = groups.len() - GROUPS;
            let _ = write!(text, "\nand {more} more groups of weights in report.json\n");
        }
    }
    text
}

/// One row a source rank, one column a microbatch; what is wrong is bold.
fn table(entry: &Contribution) -> String {
    let columns = entry.weights.first().map_or(0, Vec::len);
    let mut text = String::new();
    if columns > COLUMNS {
        let _ = writeln!(text, "{}", block("", &matrix_text(&entry.weights)));
    } else {
        let head: String = (0..columns).map(|m| format!(" m{m} |")).collect();
        let _ = write!(text, "| from |{head}\n|---|{}\n", "---:|".repeat(columns));
        for (rank, (row, expected)) in entry.weights.iter().zip(&entry.expected).enumerate() {
            let cell = |(weight, expected): (&f64, &f64)| {
                let said = weight_text(*weight);
                let wrong = (weight - expected).abs() > entry.tolerance;
                if wrong { format!(" **{said}** |") } else { format!(" {said} |") }
            };
            let cells: String = row.iter().zip(expected).map(cell).collect();
            let _ = writeln!(text, "| rank {rank} |{cells}");
        }
    }
    if entry.leftover.iter().flatten().any(|weight| *weight != 0.0) {
        let _ = write!(text, "\nand of earlier steps {}\n", matrix_text(&entry.leftover));
    }
    if entry.residual > entry.tolerance {
        let residual = weight_text(entry.residual);
        let _ = write!(text, "\nand a part that no gradient explains: {residual}\n");
    }
    text
}

/// Versions, and what the engine says about itself.
pub fn environment(report: &Report) -> String {
    let run = &report.run;
    let facts = run.versions.iter().chain(&run.engine_facts);
    let rows: String = facts
        .map(|(name, value)| format!("| {} | {} |\n", escaped(name), escaped(value)))
        .collect();
    if rows.is_empty() { rows } else { format!("\n| what | value |\n|---|---|\n{rows}") }
}

/// What the run could have seen, and what it did not exercise.
pub fn power(report: &Report) -> String {
    let mut text =
        format!("\nSmallest deviation that was visible: {}\n", escaped(&report.power.statement));
    for precision in &report.precision {
        let _ = writeln!(text, "\nSums: {}", escaped(&precision.describe()));
    }
    let mut left_out = report.not_exercised.iter().peekable();
    if left_out.peek().is_some() {
        text += "\nNot exercised:\n\n";
    }
    for missing in left_out {
        let _ = writeln!(text, "- {}", escaped(missing));
    }
    text
}

/// Text that means itself: no markup, no mention of a user, no link to an issue.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = characters.next() {
        let next = characters.peek().copied().unwrap_or(' ');
        match c {
            '\n' | '\r' => escaped.push(' '),
            '\\' | '`' | '*' | '<' | '|' | '~' => escaped.extend(['\\', c]),
            // Inside of a word it is a letter like others.
            '_' if !(before.is_alphanumeric() && next.is_alphanumeric()) => {
                escaped.extend(['\\', c]);
            }
            '@' | '#' if next.is_alphanumeric() => {
                escaped.push(c);
                escaped.push_str("<!-- -->");
            }
            c => escaped.push(c),
        }
        before = c;
    }
    escaped
}

/// A block of code that no content ends early.
pub fn block(language: &str, content: &str) -> String {
    let longest = content.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}\n", content.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_looks_like_markup_means_itself() {
        assert_eq!(
            escaped("a|b <c> *d* `e` __init__ fp32_groups, @user #12 # 3"),
            "a\\|b \\<c> \\*d\\* \\`e\\` \\_\\_init\\_\\_ fp32_groups, @<!-- -->user #<!-- -->12 # 3"
        );
    }

    #[test]
    fn no_content_ends_its_block() {
        assert_eq!(block("", "a\n```\nb\n"), "````\na\n```\nb\n````\n");
    }
}
