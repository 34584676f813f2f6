//! Removes private data that must not leave the machine: secrets, names and places.
//!
//! Redaction is applied to data before they are rendered, so that no renderer can undo it. [`Redactor::of_secrets`]
//! removes only secrets. This redactor is applied to every trace when the trace is recorded and when it is read, so
//! that zprobe prints, exports and keeps no secrets. [`Redactor::of_everything`] also removes names and places. This
//! redactor is applied to data that are handed to others.
//!
//! Secrets are recognised in three ways. [`Private`] has the variables, directories and names of this machine. `names`
//! knows the names to which secrets are assigned. `secrets` finds such assignments in a text, a few known forms, and
//! tokens that look random. A secret that was found in one place is also searched for in all other places, in every
//! form in which a text may contain the secret: see [`Known`].
//!
//! Numbers stay unchanged, and so do the words of the schemas of the report and of the trace. For example, the name of
//! a user called `rank` is not removed from a report.

mod forms;
mod known;
mod names;
mod places;
mod private;
mod secrets;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::Value;

use forms::Search;
use names::Tells;
use zprobe_model::spec::named_enum;
use zprobe_model::trace::{Event, Record, Trace};

pub use known::Known;
pub use private::Private;

named_enum! {
    /// The kind of a text that is removed.
    pub enum Kind {
        /// A secret: a token, a password or a key.
        Secret = "secret",
        /// The home directory of a user.
        Home = "home",
        /// The directory in which zprobe was started.
        WorkingDirectory = "cwd",
        /// The directory in which a Python interpreter is installed.
        Python = "python",
        /// Any other absolute path, without its last component.
        Path = "path",
        /// The name of a user.
        User = "user",
        /// The name of a machine.
        Host = "host",
        /// An IP address.
        Ip = "ip",
        /// The MAC address of a network card.
        Mac = "mac",
        /// An e-mail address.
        Email = "email",
    }
}

impl Kind {
    /// The placeholder for a text of this kind: `<secret>`.
    pub fn placeholder(self) -> String {
        format!("<{self}>")
    }
}

/// Removes private parts from texts and data, and counts these parts.
pub struct Redactor {
    secrets: Search,
    /// The places and the names to remove; `None` if only secrets are removed.
    others: Option<(Search, Search)>,
    counts: RefCell<BTreeMap<Kind, usize>>,
}

impl Redactor {
    /// Creates a redactor that removes secrets: the secrets of this machine, the secrets that are known from the data,
    /// and texts that look like a secret.
    pub fn of_secrets(private: &Private, known: &Known) -> Self {
        let mut all = known.clone();
        private.secrets(&mut all);
        let secrets = Search::new(all.secrets().map(|secret| (secret.to_owned(), Kind::Secret)));
        Self { secrets, others: None, counts: RefCell::default() }
    }

    /// Creates a redactor that removes secrets, names and places, and the values of all environment variables that are
    /// not known to be harmless.
    pub fn of_everything(private: &Private, known: &Known) -> Self {
        let mut all = known.clone();
        private.values(&mut all);
        let others = (Search::new(private.places()), Search::new(private.names()));
        Self { others: Some(others), ..Self::of_secrets(private, &all) }
    }

    /// The number of texts that were removed so far, by kind.
    pub fn counts(&self) -> BTreeMap<Kind, usize> {
        self.counts.borrow().clone()
    }

    /// The text with placeholders in place of all private parts.
    pub fn text(&self, text: &str) -> String {
        let secrets = self
            .secrets
            .find(text)
            .into_iter()
            .chain(secrets::find(text).into_iter().map(|range| (range, Kind::Secret)));
        let text = self.replaced(text, secrets.collect());
        let Some((places, names)) = &self.others else { return text };
        let text = places::interpreters(&text, &mut |kind| self.count(kind));
        let text = self.replaced(&text, places.find(&text));
        let text = places::paths(&text, &mut |kind| self.count(kind));
        let text = self.replaced(&text, names.find(&text));
        places::addresses(&text, &mut |kind| self.count(kind))
    }

    /// The text with placeholders in place of known secrets, but not of texts that only look like a secret.
    pub fn without_known(&self, text: &str) -> String {
        self.replaced(text, self.secrets.find(text))
    }

    /// The redacted value of a variable or a setting with this name.
    pub fn value_of(&self, name: &str, value: &str) -> String {
        match secrets::is_secret_under(name, value) {
            true => self.placeholder(),
            false => self.text(value),
        }
    }

    /// Redacts every string of a JSON value, keys included, and every value under a key that names a secret. The
    /// elements of buffers stay unchanged: see [`zprobe_model::trace::Payload`].
    pub fn json(&self, value: &mut Value) {
        self.json_under("", value);
    }

    /// Redacts data of a type that can be written as JSON and read back.
    ///
    /// # Errors
    /// If redaction removed a word of the data format itself, so that the data cannot be read back.
    pub fn data<T>(&self, data: &T) -> serde_json::Result<T>
    where
        T: serde::Serialize + serde::de::DeserializeOwned,
    {
        let mut value = serde_json::to_value(data)?;
        self.json(&mut value);
        serde_json::from_value(value)
    }

    /// Redacts a record, unless its event contains only numbers. Returns true if the record was changed.
    ///
    /// # Errors
    /// The errors of [`Redactor::data`].
    pub fn record(&self, record: &mut Record) -> serde_json::Result<bool> {
        if !tells_in_words(&record.event) {
            return Ok(false);
        }
        let event = self.data(&record.event)?;
        let is_other = event != record.event;
        record.event = event;
        Ok(is_other)
    }

    /// Redacts a trace and its specification.
    ///
    /// # Errors
    /// The errors of [`Redactor::data`].
    pub fn trace(&self, trace: &mut Trace) -> serde_json::Result<()> {
        for record in &mut trace.records {
            self.record(record)?;
        }
        if let Some(Record { event: Event::RunStarted { spec, .. }, .. }) = trace.records.first() {
            trace.spec = (**spec).clone();
        }
        Ok(())
    }

    /// Redacts the value under a key. In a list, the item after a flag that names a secret is redacted as the flag's
    /// value.
    fn json_under(&self, name: &str, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.value_of(name, text),
            Value::Number(_) if names::may_be_a_number(name) => *value = self.placeholder().into(),
            Value::Array(items) => {
                let mut flag = None;
                for item in items {
                    let next = as_flag(item);
                    self.json_under(flag.as_deref().unwrap_or(name), item);
                    flag = next;
                }
            }
            Value::Object(members) => {
                for (key, mut item) in std::mem::take(members) {
                    if !is_element(&key, &item, name) {
                        self.json_under(inherited(name, &key), &mut item);
                    }
                    members.insert(self.text(&key), item);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The text with placeholders in place of these ranges. Overlapping ranges get a single placeholder.
    fn replaced(&self, text: &str, mut found: Vec<(Range<usize>, Kind)>) -> String {
        if found.is_empty() {
            return text.to_owned();
        }
        found.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
        let mut result = String::with_capacity(text.len());
        let mut written = 0;
        for (range, kind) in found {
            if range.start >= written {
                result.push_str(&text[written..range.start]);
                result.push_str(&kind.placeholder());
                self.count(kind);
            }
            written = written.max(range.end);
        }
        result.push_str(&text[written..]);
        result
    }

    fn placeholder(&self) -> String {
        self.count(Kind::Secret);
        Kind::Secret.placeholder()
    }

    fn count(&self, kind: Kind) {
        *self.counts.borrow_mut().entry(kind).or_default() += 1;
    }
}

/// The number of secrets that were removed from a trace, now or when the trace was recorded.
pub fn taken_out(trace: &Trace) -> usize {
    let words = trace.records.iter().filter(|record| tells_in_words(&record.event));
    let placeholder = Kind::Secret.placeholder();
    let count = |record: &Record| {
        let text = serde_json::to_string(&record.event).unwrap_or_default();
        text.matches(&placeholder).count()
    };
    words.map(count).sum()
}

/// The name that decides whether a member of an object is secret: the member's own name, or the object's name `above`
/// if only the object has the name of a secret. For example, everything under `credentials` is secret.
fn inherited<'a>(above: &'a str, name: &'a str) -> &'a str {
    let is_secret = |name| names::tells(name) == Some(Tells::Surely);
    if is_secret(above) && !is_secret(name) { above } else { name }
}

/// The name of a flag whose value is the next item of a list; `None` for an item that is not a flag with the name of a
/// secret.
fn as_flag(item: &Value) -> Option<String> {
    let name = item.as_str()?.strip_prefix('-')?.trim_start_matches('-');
    (!name.contains(['=', ' ']) && names::tells(name).is_some()).then(|| name.to_owned())
}

/// Returns true if a member is the content of a buffer, which may look like a secret by chance.
fn is_element(key: &str, item: &Value, above: &str) -> bool {
    above == "payload" && item.is_string() && ["digest", "data"].contains(&key)
}

/// Returns true if an event may contain words that come from a machine, an engine or a user. The other events have only
/// numbers and words of the trace's format.
fn tells_in_words(event: &Event) -> bool {
    !matches!(
        event,
        Event::RankSpawned { .. }
            | Event::RankExited { .. }
            | Event::RankJoined { .. }
            | Event::BackwardEnded { .. }
            | Event::StepTaken { .. }
            | Event::Layout { .. }
            | Event::LossScaled { .. }
            | Event::OptimizerCalled { .. }
            | Event::ForwardUsed { .. }
            | Event::BackwardUsed { .. }
            | Event::ParametersMultiplied { .. }
            | Event::ParametersUnmoved { .. }
            | Event::GradientNorm { .. }
            | Event::PhaseEntered { .. }
            | Event::Loss { .. }
            | Event::GraphWalked { .. }
            | Event::ParametersDigested { .. }
            | Event::StepEnded { .. }
            | Event::HooksFired { .. }
            | Event::BucketFlushed { .. }
            | Event::Buffer { .. }
            | Event::DigestsGathered { .. }
            | Event::StepTimed { .. }
    )
}
