//! Compares the output of a command on a page with the printed output.

use std::sync::LazyLock;

use regex::Regex;
use snapbox::{Assert, IntoData as _};

/// A line of a page that stands for left-out lines.
const LEFT_OUT: &str = "...";

/// Patterns of output that differs from one run or machine to the next, and the text that replaces each
/// match.
const VARIES: &[(&str, &str)] = &[
    (r"\b\d{8}T\d{6}Z-\d+", "RUN"),
    (r"\b\d+ min \d+ s\b", "TIME"),
    (r"\b\d+(\.\d+)? (s|ms|seconds)\b", "TIME"),
    // The sizes of files in a zip vary, because the files contain times.
    (r"(?m)^ +\d+  (\S+\.\w+ |as a zip)", "SIZE $1"),
    (r"/[^\s:]*/(bin|shims)/python3?(\.\d+)?\b", "PYTHON"),
    (r"/[^\s:]*/zprobe/envs/[^\s:/]*", "ENVIRONMENT"),
    // The spaces that align such a number depend on its digits.
    (r" +(TIME)", " $1"),
];

/// The text with all varying parts replaced.
fn steady(text: &str) -> String {
    static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        VARIES.iter().map(|(pattern, word)| (Regex::new(pattern).unwrap(), *word)).collect()
    });
    RULES
        .iter()
        .fold(text.to_owned(), |text, (rule, word)| rule.replace_all(&text, *word).into_owned())
}

/// The difference between the page and the printed output; `None` if they are the same.
pub fn difference(said: &str, printed: &str) -> Option<String> {
    let compared =
        Assert::new().try_eq(None, steady(printed).into_data(), steady(said).into_data());
    compared.err().map(|error| anstream::adapter::strip_str(&error.to_string()).to_string())
}

/// The output that the page should have: all printed lines, except those that the page leaves out.
pub fn corrected(said: &str, printed: &str) -> String {
    let said: Vec<&str> = said.lines().collect();
    let printed: Vec<&str> = printed.lines().collect();
    let Some(first) = said.iter().position(|line| *line == LEFT_OUT) else {
        return lines(&printed);
    };
    let last = said.iter().rposition(|line| *line == LEFT_OUT).unwrap_or(first);
    let behind = (said.len() - last - 1).min(printed.len());
    let before = first.min(printed.len() - behind);
    lines(&[&printed[..before], &[LEFT_OUT], &printed[printed.len() - behind..]].concat())
}

fn lines(all: &[&str]) -> String {
    all.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn only_what_varies_may_differ() {
    let said = "recorded in .zprobe/runs/20261124T091500Z-4711\n1 of 1 probe passed, in 0.7 s\n";
    let printed = "recorded in .zprobe/runs/20270101T000000Z-1\n1 of 1 probe passed, in 12.0 s\n";
    assert_eq!(difference(said, printed), None);
    assert!(difference(said, &printed.replace("1 of 1", "1 of 2")).is_some());
    assert!(difference("rank 0   1  [2]\n", "rank 0   1   2\n").is_some());
    assert!(difference("a\n", "a\nb\n").is_some());
}

#[test]
fn lines_that_the_page_leaves_out_may_be_any() {
    assert_eq!(difference("a\n...\nd\n", "a\nb\nc\nd\n"), None);
    assert_eq!(difference("a\n...\n", "a\nb\nc\n"), None);
    assert!(difference("a\n...\nd\n", "a\nb\nc\n").is_some());
    assert_eq!(corrected("a\n...\nd\n", "A\nb\nc\nD\n"), "A\n...\nD\n");
    assert_eq!(corrected("x\ny\n", "a\nb\n"), "a\nb\n");
}
