//! The words of comments, messages and pages: docs/contributing/style.md in the parts that a program can check.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

/// Words with which a first sentence does not name its object.
const NO_OBJECT: &[&str] =
    &["What", "Whether", "How", "Which", "Where", "Who", "Whose", "Why", "When", "It", "They"];

/// Patterns of words that a reader stumbles over, each with the plain words.
const STUMBLES: &[(&str, &str)] = &[
    (r"(?i)\bbehind\b", "after, past or following"),
    (r"(?i)\bbeside\b", "besides, next to or in addition to"),
    (r"(?i)\bso many\b", "that many, or the number"),
    (r"(?i)\bthat one( (is|was|has|had|does|can|runs|repeats))?([.,;:)]|$)", "the noun"),
    (r"(?i)\bof all these\b", "the noun"),
    (r"[;,] none (if|where|when|for)\b|^None (if|where|when|for)\b", "`None` if"),
    (r"(?i)\b(has|have) not the\b", "does not have the"),
    (r"(?i)\bit is that\b", "a plain statement"),
];

/// Phrases with one of these words that are plain.
const PLAIN: &str = r"(?i)\b(fall|falls|fell|left|leave|leaves) behind\b|`[^`]*`|\{[^}]*\}";

/// Folders whose Rust sources are read.
const FOLDERS: &[&str] = &["crates", "src", "xtask/src", "tests", "examples"];

/// Pages that are made by commands, or quote others word for word.
const QUOTED: &[&str] =
    &["docs/zoo.md", "docs/planted.md", "docs/lattice.md", "docs/contributing/style.md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files whose paths from the root fit a pattern, each with that path and its text.
fn files(pattern: &str) -> Vec<(String, String)> {
    let found = glob::glob(&root().join(pattern).display().to_string()).unwrap();
    let named = |path: PathBuf| path.strip_prefix(root()).unwrap().display().to_string();
    let read = |path: PathBuf| (fs::read_to_string(&path).unwrap(), named(path));
    let files: Vec<_> =
        found.map(|path| read(path.unwrap())).map(|(text, name)| (name, text)).collect();
    assert!(!files.is_empty(), "{pattern}");
    files
}

fn sources() -> Vec<(String, String)> {
    FOLDERS.iter().flat_map(|folder| files(&format!("{folder}/**/*.rs"))).collect()
}

#[test]
fn the_first_sentence_of_every_comment_names_its_object() {
    let mut nameless = Vec::new();
    for (name, text) in sources() {
        let mut before = "";
        for (number, line) in text.lines().enumerate() {
            let comment = line.trim_start();
            let of = |line: &str| ["/// ", "//! "].into_iter().find(|it| line.starts_with(it));
            let begins = of(comment).filter(|kind| !before.starts_with(kind.trim_end()));
            let first = begins.and_then(|kind| comment[kind.len()..].split([' ', ',', ':']).next());
            if first.is_some_and(|word| NO_OBJECT.contains(&word)) {
                nameless.push(format!("{name}:{}: {comment}", number + 1));
            }
            before = comment;
        }
    }
    assert!(nameless.is_empty(), "{}", nameless.join("\n"));
}

/// The texts of a line of Rust or Python: its comment, and its string literals.
fn texts(line: &str) -> Vec<&str> {
    static STRING: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#""(?:[^"\\]|\\.)*""#).unwrap());
    let line = line.trim_start();
    let comment = ["/// ", "//! ", "// ", "# "].iter().find_map(|mark| line.strip_prefix(mark));
    let after_code = line.split_once(" // ").map(|(_, comment)| comment);
    // A string of one word is a key or a name.
    let strings = STRING.find_iter(line).map(|it| it.as_str()).filter(|it| it.contains(' '));
    comment.map_or_else(|| after_code.into_iter().chain(strings).collect(), |it| vec![it])
}

/// The lines of a page outside of its code blocks.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        is_code ^= fence;
        !is_code && !fence
    })
}

#[test]
fn no_text_has_a_word_that_a_reader_stumbles_over() {
    let stumbles = STUMBLES.iter().map(|(pattern, plain)| (Regex::new(pattern).unwrap(), plain));
    let stumbles: Vec<_> = stumbles.collect();
    let mut found = Vec::new();
    let plain_phrases = Regex::new(PLAIN).unwrap();
    let mut read = |name: &str, number: usize, text: &str| {
        let text = plain_phrases.replace_all(text, "");
        for (pattern, plain) in &stumbles {
            if let Some(word) = pattern.find(&text) {
                found.push(format!("{name}:{}: `{}`: write {plain}", number + 1, word.as_str()));
            }
        }
    };
    for (name, text) in sources().into_iter().chain(files("crates/**/*.py")) {
        if name != "tests/it/prose.rs" {
            for (number, line) in text.lines().enumerate() {
                texts(line).into_iter().for_each(|text| read(&name, number, text));
            }
        }
    }
    for (name, text) in ["*.md", "docs/**/*.md"].into_iter().flat_map(files) {
        if !QUOTED.contains(&&*name) {
            prose(&text).for_each(|(number, line)| read(&name, number, line));
        }
    }
    assert!(
        found.is_empty(),
        "{} words, see docs/contributing/style.md:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn comments_and_strings_are_read_and_names_are_not() {
    assert_eq!(texts("    /// A place behind it."), ["A place behind it."]);
    assert_eq!(texts(r#"let behind = f("a \"b\" c", "d"); // e"#), ["e", r#""a \"b\" c""#]);
    assert!(texts("fn behind(&self) -> usize {").is_empty());
}
