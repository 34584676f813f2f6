//! Makes hidden characters in untrusted text visible: characters that a terminal, a browser, a CI or a reader could
//! misinterpret are spelled out.
//!
//! Names, messages and versions come from untrusted traces, files, logs and engines. In data, this text stays
//! unchanged. All output for people is made from a [`Visible`] copy, so that no renderer has to handle hidden
//! characters. [`terminal`] is applied last to all text for a terminal, and [`json`] writes JSON documents that are
//! safe on a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;
use std::ops::Deref;
use std::sync::LazyLock;

use regex::Regex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A copy of a value whose texts contain no hidden characters.
#[derive(Clone, Debug)]
pub struct Visible<T>(T);

impl<T: Clone + Serialize + DeserializeOwned> Visible<T> {
    /// Makes the visible copy of a value.
    ///
    /// # Errors
    /// If the value cannot be written as JSON and read back, for example because a number in it is not finite.
    pub fn of(value: &T) -> serde_json::Result<Self> {
        let mut suspicion = Suspicion::default();
        serde_json::to_writer(&mut suspicion, value)?;
        if !suspicion.raised {
            return Ok(Self(value.clone()));
        }
        let mut tree = serde_json::to_value(value)?;
        spell_out(&mut tree);
        serde_json::from_value(tree).map(Self)
    }

    /// The copy without its wrapper.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Visible<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A writer that checks whether the JSON written to it may contain hidden characters.
#[derive(Default)]
struct Suspicion {
    raised: bool,
    after_backslash: bool,
}

impl io::Write for Suspicion {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            let escaped = std::mem::replace(&mut self.after_backslash, false);
            match byte {
                // The escapes `\n` and `\t` are harmless: they stand for line feeds and tabs.
                b'b' | b'f' | b'r' | b'u' if escaped => self.raised = true,
                b'\\' if !escaped => self.after_backslash = true,
                0x7f.. => self.raised = true,
                _ => {}
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Spells out the hidden characters in every text of a value, keys included.
fn spell_out(value: &mut Value) {
    match value {
        Value::String(string) => {
            if let Cow::Owned(visible) = text(string) {
                *string = visible;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(spell_out),
        Value::Object(members) => {
            let visible = std::mem::take(members).into_iter().map(|(key, mut item)| {
                spell_out(&mut item);
                (text(&key).into_owned(), item)
            });
            *members = visible.collect::<Map<_, _>>();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns true if a character is hidden: it controls a terminal, changes the direction of writing, or has no width.
/// Line feeds and tabs are not hidden.
pub fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        _ if c.is_control() => true,
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{fffe}'
        | '\u{ffff}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}' => true,
        _ => false,
    }
}

/// An escape sequence that only sets colours and font weights.
static COLOUR: LazyLock<Regex> = LazyLock::new(|| pattern(r"^\x1b\[[0-9;:]*m"));

/// An escape sequence for the colours and font weights of zprobe's own texts.
static OWN_STYLE: LazyLock<Regex> = LazyLock::new(|| pattern(r"^\x1b\[(?:0|1|2|4|3[1-6])?m"));

/// Two colons at the beginning of a line: a command of GitHub's runner.
static COMMAND: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?m)^((?:\x1b\[[0-9;]*m|[\s&&[^\n]])*)::"));

/// The older form of a runner's command, and the form of Azure and TeamCity, anywhere in a line.
static OLD_COMMAND: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"#((?:\x1b\[[0-9;]*m)*)#((?:\x1b\[[0-9;]*m|[\w.-])*)\["));

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|error| unreachable!("{error}"))
}

/// The text with its hidden characters spelled out, as `\x1b` or `\u{202e}`. Colours, which are frequent in logs, are
/// removed.
pub fn text(text: &str) -> Cow<'_, str> {
    spelled(text, |rest| COLOUR.find(rest).map(|found| (found.len(), "")))
}

/// The text for a terminal or the log of a CI. Hidden characters are spelled out, except for the styles of zprobe's own
/// texts. No line can act as a command to the program that reads the log.
pub fn terminal(text: &str) -> Cow<'_, str> {
    let styled =
        spelled(text, |rest| OWN_STYLE.find(rest).map(|found| (found.len(), found.as_str())));
    let styled = match COMMAND.replace_all(&styled, r"${1}\x3a:") {
        Cow::Owned(defused) => Cow::Owned(defused),
        Cow::Borrowed(_) => styled,
    };
    match OLD_COMMAND.replace_all(&styled, r"#${1}\x23${2}[") {
        Cow::Owned(defused) => Cow::Owned(defused),
        Cow::Borrowed(_) => styled,
    }
}

/// The text with its hidden characters spelled out. `sequence` gets the rest of the text from an escape character on,
/// and returns the length and the replacement of a known escape sequence at its beginning.
fn spelled<'a>(
    text: &'a str,
    sequence: impl Fn(&'a str) -> Option<(usize, &'a str)>,
) -> Cow<'a, str> {
    let Some(first) = text.find(is_hidden) else { return Cow::Borrowed(text) };
    let mut visible = text[..first].to_owned();
    let mut rest = &text[first..];
    while let Some(c) = rest.chars().next() {
        let known = if c == '\u{1b}' { sequence(rest) } else { None };
        let length = match known {
            Some((length, replacement)) => {
                visible.push_str(replacement);
                length
            }
            None if is_hidden(c) => {
                let code = u32::from(c);
                let _ = if code < 0x80 {
                    write!(visible, "\\x{code:02x}")
                } else {
                    write!(visible, "\\u{{{code:x}}}")
                };
                c.len_utf8()
            }
            None => {
                visible.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    Cow::Owned(visible)
}

/// A value as a JSON document with a line feed at the end. Characters that a terminal or the log of a CI could
/// misinterpret are escaped; the data are the same.
///
/// # Errors
/// If the value cannot be written as JSON.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(escaped(serde_json::to_string_pretty(value)? + "\n"))
}

/// A JSON document in which all characters that a terminal or the log of a CI could misinterpret are escaped.
pub fn escaped(document: String) -> String {
    // A JSON document has hidden characters and `##` only inside of strings, where they can be escaped.
    if !document.contains(is_hidden) && !document.contains("##") {
        return document;
    }
    let mut escaped = String::with_capacity(document.len() + 64);
    let mut before = ' ';
    for c in document.chars() {
        if is_hidden(c) || (before, c) == ('#', '#') {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
            before = ' ';
        } else {
            escaped.push(c);
            before = c;
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_spelled_out_and_everything_else_stays() {
        for (hostile, visible) in [
            ("weights, α ≤ 1 · 日本語 🙂\n\tplain", "weights, α ≤ 1 · 日本語 🙂\n\tplain"),
            ("\u{1b}]52;c;aGk=\u{7}", "\\x1b]52;c;aGk=\\x07"),
            ("\u{1b}[31mred\u{1b}[0m \u{1b}[2J", "red \\x1b[2J"),
            ("\u{1b}\u{1b}[0m[2J", "\\x1b[2J"),
            ("abc\u{202e}def\u{2066}", "abc\\u{202e}def\\u{2066}"),
            ("a\rb\u{0}\u{9b}31m\u{7f}", "a\\x0db\\x00\\u{9b}31m\\x7f"),
            ("zero\u{200b}width\u{e0041}", "zero\\u{200b}width\\u{e0041}"),
        ] {
            assert_eq!(text(hostile), visible);
        }
    }

    #[test]
    fn zprobes_own_styles_reach_the_terminal_and_no_others() {
        let own = "\u{1b}[1m\u{1b}[31mFINDINGS\u{1b}[0m";
        assert_eq!(terminal(own), own);
        assert_eq!(terminal("\u{1b}[8mhidden\u{1b}[2J"), "\\x1b[8mhidden\\x1b[2J");
    }

    #[test]
    fn no_line_is_a_command_of_a_ci() {
        for (line, defused) in [
            ("::error::x", "\\x3a:error::x"),
            ("a\n \u{3000}\t::stop-commands::x", "a\n \u{3000}\t\\x3a:stop-commands::x"),
            ("\u{1b}[1m::notice::", "\u{1b}[1m\\x3a:notice::"),
            ("a ##[error]b ###[group]", "a #\\x23[error]b ##\\x23[group]"),
            ("##vso[task.setvariable variable=x]y", "#\\x23vso[task.setvariable variable=x]y"),
            ("a::b ## c [d]", "a::b ## c [d]"),
        ] {
            assert_eq!(terminal(line), defused);
        }
    }

    #[test]
    fn a_json_document_says_the_same_and_hides_nothing() {
        let value = serde_json::json!({ "a\u{202e}": "\u{9b}2J \u{e0041} ##[error] \u{1b} é" });
        let document = json(&value).unwrap();
        assert!(!document.contains(is_hidden) && !document.contains("##"), "{document}");
        assert_eq!(serde_json::from_str::<Value>(&document).unwrap(), value);
        assert!(matches!(terminal(&document), Cow::Borrowed(_)));
    }

    #[test]
    fn a_visible_copy_has_visible_keys_and_texts_and_the_same_numbers() {
        let value = serde_json::json!({ "k\u{7}": ["a\u{1b}[2Jb", 0.1, null, "\\r is no return"] });
        let visible = Visible::of(&value).unwrap().into_inner();
        let expected =
            serde_json::json!({ "k\\x07": ["a\\x1b[2Jb", 0.1, null, "\\r is no return"] });
        assert_eq!(visible, expected);
    }
}
