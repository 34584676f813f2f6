//! The secrets that were found in one place, and are searched for in all other places.

use std::collections::BTreeSet;

use serde_json::Value;

use super::private::vocabulary;
use super::{as_flag, inherited, is_element, names, secrets, tells_in_words};
use zprobe_model::trace::{Record, Trace};

/// Common values of settings, which are not secrets.
const COMMON: &str = "true false yes none null default auto";

/// The smallest numbers of characters of a secret: in data under the name of a secret (`LEAST`), and in a text
/// (`LEAST_IN_TEXT`). The lines of a key are at least `LEAST_LINE` characters long.
const LEAST: usize = 4;
const LEAST_IN_TEXT: usize = 8;
const LEAST_LINE: usize = 16;

/// A set of known secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    secrets: BTreeSet<String>,
}

impl Known {
    /// Adds the secrets that are found in a text.
    pub fn text(&mut self, text: &str) {
        for range in secrets::find(text) {
            self.part(&text[range], LEAST_IN_TEXT);
        }
    }

    /// Adds the secrets that are found in JSON data, under the names of secrets and in texts.
    pub fn json(&mut self, value: &Value) {
        self.json_under("", value);
    }

    /// Adds the secrets that are found in the events of a trace.
    pub fn trace(&mut self, trace: &Trace) {
        trace.records.iter().for_each(|record| self.record(record));
    }

    /// Adds the secrets that are found in the event of a record.
    pub fn record(&mut self, record: &Record) {
        if tells_in_words(&record.event)
            && let Ok(event) = serde_json::to_value(&record.event)
        {
            self.json(&event);
        }
    }

    /// Returns true if no secret is known.
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// Adds the secrets that are found in the value of an environment variable, and the value itself if the variable
    /// has the name of a secret.
    pub(super) fn variable(&mut self, name: &str, value: &str) {
        if names::is_secret_variable(name, value) {
            self.part(value.trim(), LEAST);
        }
        for range in secrets::find(value) {
            self.part(&value[range], LEAST);
        }
    }

    /// Adds a value that is private although nothing shows that it is a secret.
    pub(super) fn value(&mut self, value: &str) {
        self.add(value, LEAST_IN_TEXT);
    }

    /// All known secrets.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(String::as_str)
    }

    fn json_under(&mut self, name: &str, value: &Value) {
        match value {
            Value::String(text) => {
                if secrets::is_secret_under(name, text) {
                    self.part(text, LEAST);
                    if names::is_of_a_line(name) {
                        // The credentials of `Bearer x`, and the values of `a=x; b=y`.
                        let parts = text.split([' ', ';', '=', ',']);
                        parts.for_each(|part| self.add(part, LEAST_IN_TEXT));
                    }
                }
                self.text(text);
            }
            Value::Number(number) if names::may_be_a_number(name) => {
                self.add(&number.to_string(), LEAST_IN_TEXT);
            }
            Value::Array(items) => {
                let mut flag = None;
                for item in items {
                    self.json_under(flag.as_deref().unwrap_or(name), item);
                    flag = as_flag(item);
                }
            }
            Value::Object(members) => {
                for (key, item) in members {
                    if !is_element(key, item, name) {
                        self.json_under(inherited(name, key), item);
                    }
                    self.text(key);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Adds a secret, its long lines, its form without escapes, and the password in it.
    fn part(&mut self, secret: &str, least: usize) {
        if secret.contains('\n') || secret.contains(r"\n") {
            let words = secret.split(r"\n").flat_map(str::split_whitespace);
            let lines = words.filter(|it| it.len() >= LEAST_LINE && !it.contains("--"));
            lines.for_each(|line| self.add(line, least));
            return;
        }
        for secret in [Some(secret), secrets::password(secret)].into_iter().flatten() {
            self.add(secret, least);
            for meant in [unescaped(secret), decoded(secret)].into_iter().flatten() {
                self.add(&meant, least);
            }
        }
    }

    /// Adds a secret, unless it has fewer than `least` characters, is a short number, or is a common word.
    fn add(&mut self, secret: &str, least: usize) {
        let number = secret.len() < 6 && secret.bytes().all(|byte| byte.is_ascii_digit());
        let word = secret.to_lowercase();
        let said_often = vocabulary().contains(&word) || names::has(COMMON, &word);
        let is_secret = secrets::is_secret(secret, names::Tells::Surely);
        if secret.chars().count() >= least && !number && !said_often && is_secret {
            self.secrets.insert(secret.to_owned());
        }
    }
}

/// The text without its JSON escapes; `None` if the text has no escapes.
fn unescaped(text: &str) -> Option<String> {
    text.contains('\\').then(|| serde_json::from_str(&format!("\"{text}\"")).ok()).flatten()
}

/// The text without its percent escapes; `None` if the text has no valid escapes.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let byte = rest.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok())?;
        bytes.push(byte);
        rest = &rest[at + 3..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    (rest.len() < text.len()).then(|| String::from_utf8(bytes).ok()).flatten()
}
