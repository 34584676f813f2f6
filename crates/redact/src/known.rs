//! The secrets that were found in one place and are searched for in all others.

use std::collections::BTreeSet;

use serde_json::Value;

use super::private::vocabulary;
use super::{as_flag, assigned, blocks, found, inherited, is_element, keys, tokens};
use zprobe_model::trace::{Record, Trace};

/// Values that are common under many names, and are not secrets.
const COMMON: &[&str] = &["true", "false", "yes", "none", "null", "default", "auto"];

/// The smallest numbers of characters of a secret: in data under the name of a secret (`LEAST`), and in a text
/// (`LEAST_IN_TEXT`).
const LEAST: usize = 4;
const LEAST_IN_TEXT: usize = 8;

/// A set of known secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    secrets: BTreeSet<String>,
}

impl Known {
    /// Adds the secrets that are found in a text.
    pub fn text(&mut self, text: &str) {
        for range in found(text) {
            let secret = &text[range];
            blocks::lines(secret).for_each(|line| self.add(line, LEAST_IN_TEXT));
            if !secret.contains('\n') {
                self.part(secret, LEAST_IN_TEXT);
            }
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
        if super::tells_in_words(&record.event)
            && let Ok(event) = serde_json::to_value(&record.event)
        {
            self.json(&event);
        }
    }

    /// Returns true if no secret is known.
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// Adds the secrets that are found in the value of an environment variable. If the name is that of a secret, adds
    /// the value and each long line of it, too.
    pub(super) fn variable(&mut self, name: &str, value: &str) {
        if keys::is_secret_variable(name, value) {
            let lines = value.lines().filter(|line| line.len() >= 16);
            [value].into_iter().chain(lines).for_each(|text| self.add(text.trim(), LEAST));
        }
        for range in found(value) {
            self.part(&value[range], LEAST);
        }
    }

    /// All known secrets.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(String::as_str)
    }

    fn json_under(&mut self, name: &str, value: &Value) {
        match value {
            Value::String(text) => {
                if assigned::is_secret_under(name, text) {
                    self.part(text, LEAST);
                    if keys::is_header(name) {
                        self.parts_of_header(text);
                    }
                }
                self.text(text);
            }
            Value::Number(number) if keys::may_be_a_number(name) => {
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

    /// Adds a secret, its form without escapes, and the password in it.
    fn part(&mut self, secret: &str, least: usize) {
        self.add(secret, least);
        for meant in [unescaped(secret), decoded(secret)].into_iter().flatten() {
            self.add(&meant, least);
        }
        if let Some(password) = tokens::password(secret) {
            self.add(password, least);
            decoded(password).iter().for_each(|meant| self.add(meant, least));
        }
    }

    /// Adds the credentials of `Bearer x` and the values of `a=x; b=y`.
    fn parts_of_header(&mut self, value: &str) {
        let parts = value.split([' ', ';', '=', ',']);
        parts.for_each(|part| self.add(part, LEAST_IN_TEXT));
    }

    /// Adds a secret, unless it has fewer than `least` characters, is a short number, or is a common word.
    fn add(&mut self, secret: &str, least: usize) {
        let number = secret.len() < 6 && secret.bytes().all(|byte| byte.is_ascii_digit());
        let word = secret.to_lowercase();
        let said_often = vocabulary().contains(&word) || COMMON.contains(&word.as_str());
        let is_secret = assigned::is_secret(secret, keys::Tells::Surely);
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
