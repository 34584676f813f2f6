//! Takes out what must not leave the machine: names, places and secrets.
//!
//! What is private is known in two ways. [`Private`] holds what this machine knows of itself: its
//! user, host, directories, and the values of variables whose names sound like a secret; they are
//! looked for word by word, in every form in which a text may hold them. `patterns` know
//! what tokens, addresses and paths look like, wherever they come from.
//!
//! Numbers stay, and so do the words that the schemas of the report and of the trace are made of:
//! whoever is called `rank` is not hidden by taking that word out of a report.

mod forms;
mod patterns;
mod private;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

use crate::spec::named_enum;

pub use private::Private;

named_enum! {
    /// What was taken out.
    pub enum Kind {
        /// A token, a password, a key.
        Secret = "secret",
        /// The directory of a user.
        Home = "home",
        /// The directory from which zprobe was called.
        WorkingDirectory = "cwd",
        /// Where an interpreter was installed.
        Python = "python",
        /// Any other absolute path, but for its last name.
        Path = "path",
        /// The name of a user.
        User = "user",
        /// The name of a machine.
        Host = "host",
        /// An address of the internet protocol.
        Ip = "ip",
        /// An e-mail address.
        Email = "email",
    }
}

impl Kind {
    /// What stands in its place.
    pub fn placeholder(self) -> String {
        format!("<{self}>")
    }
}

/// Texts that stand for something private, as one pattern: the longest wins.
struct Literals {
    pattern: Option<Regex>,
    kinds: BTreeMap<String, Kind>,
}

/// Takes private things out of texts, and counts them.
pub struct Redactor {
    secrets: Literals,
    places: Literals,
    names: Literals,
    counts: RefCell<BTreeMap<Kind, usize>>,
}

impl Redactor {
    /// A redactor for what is private here.
    pub fn new(private: &Private) -> Self {
        Self {
            secrets: Literals::new(private.secrets()),
            places: Literals::new(private.places()),
            names: Literals::new(private.names()),
            counts: RefCell::default(),
        }
    }

    /// How often something of each kind was taken out so far.
    pub fn counts(&self) -> BTreeMap<Kind, usize> {
        self.counts.borrow().clone()
    }

    /// A text without what is private.
    pub fn text(&self, text: &str) -> String {
        let mut text = self.secrets.replace(text, anywhere, &mut |kind| self.count(kind));
        text = patterns::secrets(&text, &mut |kind| self.count(kind));
        text = patterns::interpreters(&text, &mut |kind| self.count(kind));
        text = self.places.replace(&text, as_path, &mut |kind| self.count(kind));
        text = patterns::places(&text, &mut |kind| self.count(kind));
        text = self.names.replace(&text, as_word, &mut |kind| self.count(kind));
        patterns::addresses(&text, &mut |kind| self.count(kind))
    }

    /// Takes it out of every string of a JSON value, keys included. The elements of buffers stay as
    /// they are: see [`crate::trace::Payload`].
    pub fn json(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            Value::Object(members) => {
                let is_payload = members.contains_key("digest") && members.contains_key("data");
                for (key, mut item) in std::mem::take(members) {
                    if !(is_payload && ["digest", "data"].contains(&key.as_str())) {
                        self.json(&mut item);
                    }
                    members.insert(self.text(&key), item);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The same for a text that was made of redacted parts, in which what looks like a path may belong
    /// to its form: only what is known to be private here, and what looks like a secret.
    pub fn last_look(&self, text: &str) -> String {
        let text = self.secrets.replace(text, anywhere, &mut |kind| self.count(kind));
        let text = patterns::secrets(&text, &mut |kind| self.count(kind));
        let text = self.places.replace(&text, as_path, &mut |kind| self.count(kind));
        self.names.replace(&text, as_word, &mut |kind| self.count(kind))
    }

    fn count(&self, kind: Kind) {
        *self.counts.borrow_mut().entry(kind).or_default() += 1;
    }
}

impl Literals {
    fn new(literals: Vec<(String, Kind)>) -> Self {
        let mut kinds = BTreeMap::new();
        for (text, kind) in literals {
            for form in forms::of(&text, kind) {
                kinds.entry(form.to_ascii_lowercase()).or_insert(kind);
            }
        }
        let mut texts: Vec<&String> = kinds.keys().collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        let alternatives: Vec<String> = texts.iter().map(|text| regex::escape(text)).collect();
        let pattern = regex::RegexBuilder::new(&alternatives.join("|"))
            .case_insensitive(true)
            .size_limit(1 << 28)
            .build()
            .ok()
            .filter(|_| !alternatives.is_empty());
        Self { pattern, kinds }
    }

    /// Replaces what is found where `fits` says that it is the thing itself.
    fn replace(
        &self,
        text: &str,
        fits: fn(&str, &str) -> bool,
        count: &mut dyn FnMut(Kind),
    ) -> String {
        let Some(pattern) = &self.pattern else { return text.to_owned() };
        let mut result = String::with_capacity(text.len());
        let mut written = 0;
        for found in pattern.find_iter(text) {
            let kind = self.kinds.get(&found.as_str().to_ascii_lowercase());
            let around = (&text[..found.start()], &text[found.end()..]);
            let Some(kind) = kind.filter(|_| fits(around.0, around.1)) else { continue };
            result.push_str(&text[written..found.start()]);
            result.push_str(&kind.placeholder());
            written = found.end();
            count(*kind);
        }
        result.push_str(&text[written..]);
        result
    }
}

/// A secret is one wherever it stands.
fn anywhere(_: &str, _: &str) -> bool {
    true
}

/// A directory ends where its name does: `/home/al` is not in `/home/alice`.
fn as_path(before: &str, after: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    !before.ends_with(|c: char| c.is_alphanumeric()) && !after.starts_with(in_name)
}

/// A name is a word of its own: `al` is not in `total`.
fn as_word(before: &str, after: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric();
    // The end of a percent escape or of a JSON escape is a letter or a digit, and no part of a word.
    let escaped = before.len() >= 3
        && before.is_char_boundary(before.len() - 3)
        && before[before.len() - 3..].starts_with('%');
    (escaped || !before.ends_with(in_word)) && !after.starts_with(in_word)
}
