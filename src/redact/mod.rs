//! Takes out what must not leave the machine: secrets, names and places.
//!
//! Redaction is done to data, before any form is made of it, so that no form can undo it. It has two
//! extents. [`Redactor::of_secrets`] takes out secrets alone: that is done to every trace when it is
//! recorded and when it is read, so that nothing that zprobe prints, exports or keeps tells one.
//! [`Redactor::of_everything`] takes out names and places as well, for what is handed to others.
//!
//! What is secret is known in three ways. [`Private`] holds what this machine knows of itself. `keys`
//! knows under which names secrets stand, and `assigned` reads them there, in data as in prose. `rules`,
//! `tokens` and `blocks` know what tokens, URLs and keys look like. Whatever was found in one place is
//! looked for in all others, in every form in which a text may hold it: that is [`Known`].
//!
//! Numbers stay, and so do the words that the schemas of the report and of the trace are made of:
//! whoever is called `rank` is not hidden by taking that word out of a report.

mod assigned;
mod blocks;
mod forms;
mod keys;
mod known;
mod literals;
mod places;
mod private;
mod rules;
#[cfg(test)]
mod tests;
mod tokens;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::Value;

use crate::spec::named_enum;
use crate::trace::{Event, Record, Trace};
use keys::Tells;
use literals::Literals;

pub use known::Known;
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
        /// The address of a network card.
        Mac = "mac",
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

/// Fewest characters of a token, which is recognised without a word beside it.
const LEAST_TELLING: usize = 16;

/// Takes private things out of texts and data, and counts them.
pub struct Redactor {
    secrets: Literals,
    /// Places and names; none where these stay.
    others: Option<(Literals, Literals)>,
    counts: RefCell<BTreeMap<Kind, usize>>,
}

impl Redactor {
    /// Takes out secrets: those of this machine, those that are known of the data, and whatever looks
    /// like one.
    pub fn of_secrets(private: &Private, known: &Known) -> Self {
        let mut all = known.clone();
        private.variables.iter().for_each(|(name, value)| all.variable(name, value));
        let secrets = Literals::new(all.secrets().map(|secret| (secret.to_owned(), Kind::Secret)));
        Self { secrets, others: None, counts: RefCell::default() }
    }

    /// Takes out names and places, too.
    pub fn of_everything(private: &Private, known: &Known) -> Self {
        let others = (Literals::new(private.places()), Literals::new(private.names()));
        Self { others: Some(others), ..Self::of_secrets(private, known) }
    }

    /// How often something of each kind was taken out so far.
    pub fn counts(&self) -> BTreeMap<Kind, usize> {
        self.counts.borrow().clone()
    }

    /// A text without what is private.
    pub fn text(&self, text: &str) -> String {
        let secrets = self
            .secrets
            .find(text)
            .into_iter()
            .chain(found(text).into_iter().map(|range| (range, Kind::Secret)));
        let text = self.replaced(text, secrets.collect());
        let Some((places, names)) = &self.others else { return text };
        let text = places::interpreters(&text, &mut |kind| self.count(kind));
        let text = self.replaced(&text, places.find(&text));
        let text = places::places(&text, &mut |kind| self.count(kind));
        let text = self.replaced(&text, names.find(&text));
        places::addresses(&text, &mut |kind| self.count(kind))
    }

    /// A text without the secrets that are known, whatever else looks like one.
    pub fn without_known(&self, text: &str) -> String {
        self.replaced(text, self.secrets.find(text))
    }

    /// The value of a variable or a setting of this name.
    pub fn value_of(&self, name: &str, value: &str) -> String {
        match assigned::is_secret_under(name, value) {
            true => self.placeholder(),
            false => self.text(value),
        }
    }

    /// Takes it out of every string of a JSON value, keys included, and whatever stands under a key that
    /// tells. The elements of buffers stay as they are: see [`crate::trace::Payload`].
    pub fn json(&self, value: &mut Value) {
        self.json_under("", value);
    }

    /// Takes it out of data that is the same in JSON.
    ///
    /// # Errors
    /// When a word that the format is made of was taken out.
    pub fn data<T>(&self, data: &T) -> serde_json::Result<T>
    where
        T: serde::Serialize + serde::de::DeserializeOwned,
    {
        let mut value = serde_json::to_value(data)?;
        self.json(&mut value);
        serde_json::from_value(value)
    }

    /// Takes it out of a record, if it has anything but numbers. Whether anything was.
    ///
    /// # Errors
    /// As [`Redactor::data`].
    pub fn record(&self, record: &mut Record) -> serde_json::Result<bool> {
        if !tells_in_words(&record.event) {
            return Ok(false);
        }
        let event = self.data(&record.event)?;
        let is_other = event != record.event;
        record.event = event;
        Ok(is_other)
    }

    /// Takes it out of a trace and its specification.
    ///
    /// # Errors
    /// As [`Redactor::data`].
    pub fn trace(&self, trace: &mut Trace) -> serde_json::Result<()> {
        for record in &mut trace.records {
            self.record(record)?;
        }
        if let Some(Record { event: Event::RunStarted { spec, .. }, .. }) = trace.records.first() {
            trace.spec = (**spec).clone();
        }
        Ok(())
    }

    /// What stands under a key, or, in a list, behind a flag that tells.
    fn json_under(&self, name: &str, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.value_of(name, text),
            Value::Number(_) if keys::may_be_a_number(name) => *value = self.placeholder().into(),
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

    /// A text with placeholders in these places. What overlaps is one.
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

/// How many secrets were taken out of a trace, now or when it was recorded.
pub fn taken_out(trace: &Trace) -> usize {
    let words = trace.records.iter().filter(|record| tells_in_words(&record.event));
    let placeholder = Kind::Secret.placeholder();
    let count = |record: &Record| {
        let text = serde_json::to_string(&record.event).unwrap_or_default();
        text.matches(&placeholder).count()
    };
    words.map(count).sum()
}

/// Every secret of a text by its looks and by what it is assigned to.
fn found(text: &str) -> Vec<Range<usize>> {
    // Most texts of a trace are words of its own format, and no secret is so short without a name.
    if text.len() < LEAST_TELLING && !text.contains([':', '=', '@', ' ', '"', '/']) {
        return Vec::new();
    }
    let mut found = blocks::find(text);
    found.extend(assigned::find(text));
    found.extend(tokens::find(text));
    found.extend(rules::find(text));
    found
}

/// The name that counts below another one: everything under `credentials` is secret.
fn inherited<'a>(above: &'a str, name: &'a str) -> &'a str {
    let is_secret = |name| keys::tells(name) == Some(Tells::Surely);
    if is_secret(above) && !is_secret(name) { above } else { name }
}

/// The name of a flag whose value stands in the next word.
fn as_flag(item: &Value) -> Option<String> {
    let name = item.as_str()?.strip_prefix('-')?.trim_start_matches('-');
    (!name.contains(['=', ' ']) && keys::tells(name).is_some()).then(|| name.to_owned())
}

/// Whether a member is what a buffer holds, which may read like anything.
fn is_element(key: &str, item: &Value, above: &str) -> bool {
    above == "payload" && item.is_string() && ["digest", "data"].contains(&key)
}

/// Whether an event has words that a machine, an engine or a user chose.
fn tells_in_words(event: &Event) -> bool {
    match event {
        Event::RunStarted { .. }
        | Event::ProtocolViolated { .. }
        | Event::Stderr { .. }
        | Event::RankReady { .. }
        | Event::Model { .. }
        | Event::OptimizerChosen { .. }
        | Event::EngineDescribed { .. }
        | Event::NotObserved { .. }
        | Event::CollectiveEntered { .. }
        | Event::CollectiveMismatch { .. }
        | Event::Failed { .. } => true,
        Event::RankSpawned { .. }
        | Event::RankExited { .. }
        | Event::TimedOut { .. }
        | Event::Interrupted
        | Event::Layout { .. }
        | Event::LossScaled { .. }
        | Event::GradientNorm { .. }
        | Event::PhaseEntered { .. }
        | Event::Loss { .. }
        | Event::GraphWalked { .. }
        | Event::HooksFired { .. }
        | Event::BucketFlushed { .. }
        | Event::Buffer { .. }
        | Event::DigestsGathered { .. }
        | Event::StepTimed { .. }
        | Event::Finished => false,
    }
}
