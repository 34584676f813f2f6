//! The report as Markdown, as GitHub reads it: for issues, pull requests and job summaries.

use std::fmt::Write as _;

use super::Report;
use super::concise;
use super::full::{self, weights};
use crate::report::words::{matrix_text, weight_text};
use crate::report::{Contribution, Finding, KnownBug};
use crate::trace::Point;
use crate::visible::Visible;

/// Most groups of weights that are shown; more are in `report.json` only.
const GROUPS: usize = 6;

/// Most microbatches that make a readable table.
const COLUMNS: usize = 24;

/// The whole report.
pub fn render(report: &Visible<Report>) -> String {
    let mut text = format!(
        "## zprobe: {}, {}\n\n",
        report.verdict.name().to_uppercase(),
        escaped(&full::headline(report))
    );
    text += &setup(report);
    text += &findings(report);
    if let Some(minimised) = &report.minimised {
        let code = escaped(&minimised.code);
        let _ = write!(text, "\nThe smallest configuration that shows {code}:\n\n");
        text += &block("", &minimised.command);
    }
    text += &ranks(report);
    text += &contributions(report);
    text += &environment(report);
    text + &power(report)
}

/// Settings of the run, one a line.
pub fn setup(report: &Visible<Report>) -> String {
    let lines = full::setting(report).into_iter();
    lines.map(|line| format!("- {}\n", escaped(&line))).collect()
}

/// Findings, one root cause after the other.
pub fn findings(report: &Visible<Report>) -> String {
    report.findings.iter().map(finding).collect()
}

fn finding(finding: &Finding) -> String {
    let Finding { code, name, message, .. } = finding;
    let place = concise::place(finding);
    let place = if place.is_empty() { place } else { format!(" ({})", escaped(&place)) };
    let mut text =
        format!("\n**{} {}**{place}: {}\n\n", escaped(code), escaped(name), escaped(message));
    for evidence in &finding.evidence {
        let _ = writeln!(text, "- {}", escaped(evidence));
    }
    for consequence in &finding.consequences {
        let _ = writeln!(
            text,
            "- follows, {}",
            escaped(&format!("{}: {}", consequence.code, consequence.message))
        );
    }
    for known in &finding.known {
        text += &known_bug(known);
    }
    text
}

/// A bug that is known: it need not be reported again.
fn known_bug(known: &KnownBug) -> String {
    let bug = escaped(&known.description());
    let mut text = format!("- looks like a known bug: {bug}");
    for link in &known.links {
        text += ", ";
        text += &address(link);
    }
    let _ = write!(text, "\n- what to do about it: {}\n", escaped(&known.workaround));
    text
}

/// An address as it stands, which GitHub makes a link of; anything else is escaped as text.
fn address(link: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/#".contains(c);
    match link.strip_prefix("https://") {
        Some(rest) if rest.chars().all(plain) => link.to_owned(),
        _ => escaped(link),
    }
}

/// Last actions and last words of the ranks that did not end well.
pub fn ranks(report: &Visible<Report>) -> String {
    let mut text = String::new();
    for rank in report.ranks.iter().filter(|rank| !rank.finished) {
        let outcome = rank.ending();
        let _ = write!(text, "\nRank {} ({outcome}): {}\n", rank.rank, escaped(&rank.last));
        let words = [rank.failure.as_deref(), rank.stderr.as_deref()];
        for words in words.into_iter().flatten().filter(|words| !words.trim().is_empty()) {
            let _ = write!(text, "\n{}", block("", words));
        }
    }
    text
}

/// Contribution weights that are wrong, as tables.
pub fn contributions(report: &Visible<Report>) -> String {
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

/// Table of weights: one row a source rank, one column a microbatch; what is wrong is bold.
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

/// Table of versions, and of the facts that the engine states about itself.
pub fn environment(report: &Visible<Report>) -> String {
    let run = &report.run;
    let facts = run.versions.iter().chain(&run.engine_facts);
    let rows: String = facts
        .map(|(name, value)| format!("| {} | {} |\n", escaped(name), escaped(value)))
        .collect();
    if rows.is_empty() { rows } else { format!("\n| what | value |\n|---|---|\n{rows}") }
}

/// Smallest deviation that the run could have seen, and parts of training that it did not exercise.
pub fn power(report: &Visible<Report>) -> String {
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

/// Comment that GitHub drops, so that the texts on both sides of it are no mention, reference or
/// address together.
const BREAK: &str = "<!-- -->";

/// Text that means itself in Markdown: no markup, no mention of a user, no link.
pub fn escaped(text: &str) -> String {
    let mut escaped = apart(text, |c, before, next| match c {
        '\\' | '`' | '*' | '<' | '|' | '~' | '[' | ']' | '&' => Some(format!("\\{c}")),
        // Inside a word it is a letter like others.
        '_' if !(before.is_alphanumeric() && next.is_alphanumeric()) => Some("\\_".to_owned()),
        // In a formula, a backslash before it has another meaning.
        '$' => Some("&#36;".to_owned()),
        _ => None,
    });
    if let Some(at) = block_sign(&escaped) {
        escaped.insert(at, '\\');
    }
    escaped
}

/// Text that means itself inside an HTML element in Markdown.
pub fn escaped_html(text: &str) -> String {
    apart(text, |c, _, _| match c {
        '&' => Some("&amp;".to_owned()),
        '<' => Some("&lt;".to_owned()),
        '>' => Some("&gt;".to_owned()),
        '"' => Some("&quot;".to_owned()),
        _ => None,
    })
}

/// A few words as code, which end neither the code nor the cell of a table.
pub fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "¦").replace('`', "'").replace(['\n', '\r'], " "))
}

/// The text in one line. `escape` returns the replacement for a character, given the ones before
/// and after it, or none. Everything that GitHub makes a link of wherever it stands is broken in
/// two.
fn apart(text: &str, escape: impl Fn(char, char, char) -> Option<String>) -> String {
    let mut apart = String::with_capacity(text.len());
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let rest = &text[at + c.len_utf8()..];
        let next = rest.chars().next().unwrap_or(' ');
        let ends_with = |word: &str| {
            let tail = at.checked_sub(word.len()).and_then(|start| text.get(start..at));
            tail.is_some_and(|tail| tail.eq_ignore_ascii_case(word))
        };
        match c {
            '\n' | '\r' => apart.push(' '),
            '@' | '#' if next.is_alphanumeric() => apart.extend([c.to_string().as_str(), BREAK]),
            ':' if rest.starts_with("//") => apart.extend([":", BREAK]),
            '.' if ends_with("www") => apart.extend([BREAK, "."]),
            '-' if next.is_ascii_digit() && ends_with("gh") => apart.extend([BREAK, "-"]),
            c => match escape(c, before, next) {
                Some(escaped) => apart.push_str(&escaped),
                None => apart.push(c),
            },
        }
        before = c;
    }
    apart
}

/// Position of the sign by which the line would be a heading, an item, a quotation or a rule.
fn block_sign(line: &str) -> Option<usize> {
    let start = line.len() - line.trim_start().len();
    let rest = &line[start..];
    if rest.trim_end() == "-" {
        // A single dash is the sign for an empty cell of a table.
        return None;
    }
    let ends = |at: usize| rest[at..].chars().next().is_none_or(char::is_whitespace);
    let run = |sign: fn(char) -> bool| rest.len() - rest.trim_start_matches(sign).len();
    let digits = run(|c| c.is_ascii_digit());
    if digits > 0 {
        let numbered = rest[digits..].starts_with(['.', ')']) && ends(digits + 1);
        return numbered.then_some(start + digits);
    }
    let is_rule = rest.chars().all(|c| c == '-' || c == '=' || c.is_whitespace());
    let is_sign = rest.starts_with('>')
        || rest.starts_with(['+', '-']) && ends(1)
        || rest.starts_with('#') && ends(run(|c| c == '#'))
        || is_rule && !rest.is_empty();
    is_sign.then_some(start)
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
        assert_eq!(
            escaped("- ![x](https://a.b) www.c.d GH-12 $e$ &amp;"),
            "\\- !\\[x\\](https:<!-- -->//a.b) www<!-- -->.c.d GH<!-- -->-12 &#36;e&#36; \\&amp;"
        );
        assert_eq!(escaped("12. one\n# two"), "12\\. one # two");
        for (text, meant) in [
            ("-0.5 of 0.25", "-0.5 of 0.25"),
            ("---", "\\---"),
            ("## a", "\\## a"),
            ("0.5", "0.5"),
            ("> a", "\\> a"),
        ] {
            assert_eq!(escaped(text), meant);
        }
        assert_eq!(
            escaped_html("</summary>@user & \"x\""),
            "&lt;/summary&gt;@<!-- -->user &amp; &quot;x&quot;"
        );
    }

    #[test]
    fn no_content_ends_its_block() {
        assert_eq!(block("", "a\n```\nb\n"), "````\na\n```\nb\n````\n");
    }
}
