//! Takes out what must not leave the machine: secrets, names and places.
//!
//! Redaction is done to data, before any form is made of it, so that no form can undo it. It has
//! two extents. [`Redactor::of_secrets`] takes out secrets alone: that is done to every trace when
//! it is recorded and when it is read, so that nothing that zprobe prints, exports or keeps has one
//! in it. [`Redactor::of_everything`] takes out names and places as well, for what is handed to
//! others.
//!
//! Secrets are known in three ways. [`Private`] holds what this machine knows of itself. `keys`
//! knows under which names secrets stand, and `assigned` reads them there, in data as in prose.
//! `rules`, `tokens` and `blocks` know what tokens, URLs and keys look like. A secret that was
//! found in one place is looked for in all others, in every form in which a text may hold it: see
//! [`Known`].
//!
//! Numbers stay, and so do the words that the schemas of the report and of the trace are made of:
//! the name of a user who is called `rank` is not taken out of a report.

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

use keys::Tells;
use literals::Literals;
use zprobe_model::spec::named_enum;
use zprobe_model::trace::{Event, Record, Trace};

pub use known::Known;
pub use private::Private;

named_enum! {
    /// Kind of text that is taken out.
    pub enum Kind {
        /// A token, a password, a key.
        Secret = "secret",
        /// The directory of a user.
        Home = "home",
        /// The directory from which zprobe was called.
        WorkingDirectory = "cwd",
        /// The directory in which an interpreter was installed.
        Python = "python",
        /// Any other absolute path, except for its last name.
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
    /// Placeholder for a text of this kind.
    pub fn placeholder(self) -> String {
        format!("<{self}>")
    }
}

/// Smallest number of characters of a token, which is recognised without a name beside it.
const LEAST_TELLING: usize = 16;

/// Takes private things out of texts and data, and counts them.
pub struct Redactor {
    secrets: Literals,
    /// Places and names to take out; none if these stay.
    others: Option<(Literals, Literals)>,
    counts: RefCell<BTreeMap<Kind, usize>>,
}

impl Redactor {
    /// A redactor that takes out secrets: those of this machine, those that are known of the data,
    /// and texts that look like one.
    pub fn of_secrets(private: &Private, known: &Known) -> Self {
        let mut all = known.clone();
        private.variables.iter().for_each(|(name, value)| all.variable(name, value));
        let secrets = Literals::new(all.secrets().map(|secret| (secret.to_owned(), Kind::Secret)));
        Self { secrets, others: None, counts: RefCell::default() }
    }

    /// A redactor that takes out secrets, names and places.
    pub fn of_everything(private: &Private, known: &Known) -> Self {
        let others = (Literals::new(private.places()), Literals::new(private.names()));
        Self { others: Some(others), ..Self::of_secrets(private, known) }
    }

    /// Number of texts of each kind that were taken out so far.
    pub fn counts(&self) -> BTreeMap<Kind, usize> {
        self.counts.borrow().clone()
    }

    /// The text with placeholders for its private parts.
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

    /// The text with placeholders for known secrets alone, not for texts that look like one.
    pub fn without_known(&self, text: &str) -> String {
        self.replaced(text, self.secrets.find(text))
    }

    /// The redacted value of a variable or setting of this name.
    pub fn value_of(&self, name: &str, value: &str) -> String {
        match assigned::is_secret_under(name, value) {
            true => self.placeholder(),
            false => self.text(value),
        }
    }

    /// Redacts every string of a JSON value, keys included, and every value under a key that names
    /// a secret. The elements of buffers stay as they are: see [`zprobe_model::trace::Payload`].
    pub fn json(&self, value: &mut Value) {
        self.json_under("", value);
    }

    /// Redacts data that can be written as JSON and read back.
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

    /// Redacts a record, unless its event has nothing but numbers. Returns true if the record was
    /// changed.
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

    /// Redacts a trace and its specification.
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

    /// Redacts the value under a key, or, in a list, behind a flag that names a secret.
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

    /// The text with placeholders in these ranges. Ranges that overlap get one placeholder.
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

/// Number of secrets that were taken out of a trace, now or when it was recorded.
pub fn taken_out(trace: &Trace) -> usize {
    let words = trace.records.iter().filter(|record| tells_in_words(&record.event));
    let placeholder = Kind::Secret.placeholder();
    let count = |record: &Record| {
        let text = serde_json::to_string(&record.event).unwrap_or_default();
        text.matches(&placeholder).count()
    };
    words.map(count).sum()
}

/// Ranges of all secrets of a text, by their looks and by the names that they are assigned to.
fn found(text: &str) -> Vec<Range<usize>> {
    // Most texts of a trace are words of its format, and a secret without a name is never so short.
    if text.len() < LEAST_TELLING && !text.contains([':', '=', '@', ' ', '"', '/']) {
        return Vec::new();
    }
    let mut found = blocks::find(text);
    found.extend(assigned::find(text));
    found.extend(tokens::find(text));
    found.extend(rules::find(text));
    found
}

/// The name that decides about a member of an object with the name `above`: everything under
/// `credentials` is secret.
fn inherited<'a>(above: &'a str, name: &'a str) -> &'a str {
    let is_secret = |name| keys::tells(name) == Some(Tells::Surely);
    if is_secret(above) && !is_secret(name) { above } else { name }
}

/// The name of a flag whose value is the next word.
fn as_flag(item: &Value) -> Option<String> {
    let name = item.as_str()?.strip_prefix('-')?.trim_start_matches('-');
    (!name.contains(['=', ' ']) && keys::tells(name).is_some()).then(|| name.to_owned())
}

/// Returns true if a member is the content of a buffer, which may read like anything.
fn is_element(key: &str, item: &Value, above: &str) -> bool {
    above == "payload" && item.is_string() && ["digest", "data"].contains(&key)
}

/// Returns true if an event has words that a machine, an engine or a user chose.
fn tells_in_words(event: &Event) -> bool {
    match event {
        Event::RunStarted { .. }
        | Event::AgentJoined { .. }
        | Event::AgentLost { .. }
        | Event::ProtocolViolated { .. }
        | Event::Stderr { .. }
        | Event::StackTaken { .. }
        | Event::Importing { .. }
        | Event::RankReady { .. }
        | Event::Model { .. }
        | Event::OptimizerChosen { .. }
        | Event::EngineDescribed { .. }
        | Event::NotObserved { .. }
        | Event::CollectiveEntered { .. }
        | Event::CollectiveMismatch { .. }
        | Event::ScriptRemarked(_)
        | Event::LossWeighed(_)
        | Event::GradientsClipped(_)
        | Event::ClippedInVain(_)
        | Event::OptimizerStepped(_)
        | Event::UpdatesRounded(_)
        | Event::BlocksUnreached { .. }
        | Event::Failed { .. } => true,
        Event::RankSpawned { .. }
        | Event::RankExited { .. }
        | Event::TimedOut { .. }
        | Event::Interrupted
        | Event::CommandEnded { .. }
        | Event::RankStopped { .. }
        | Event::CollectivesIssued { .. }
        | Event::RankJoined { .. }
        | Event::RanksAgreed { .. }
        | Event::BackwardEnded { .. }
        | Event::StepTaken { .. }
        | Event::Layout { .. }
        | Event::LossScaled { .. }
        | Event::OptimizerCalled { .. }
        | Event::ForwardUsed { .. }
        | Event::GradientNorm { .. }
        | Event::PhaseEntered { .. }
        | Event::Loss { .. }
        | Event::GraphWalked { .. }
        | Event::ParametersDigested { .. }
        | Event::GradientsLeft { .. }
        | Event::StepEnded { .. }
        | Event::MicrobatchSetAside { .. }
        | Event::GradientsTransformed { .. }
        | Event::GradientsChanged { .. }
        | Event::WindowGivenUp { .. }
        | Event::HooksFired { .. }
        | Event::BucketFlushed { .. }
        | Event::Buffer { .. }
        | Event::DigestsGathered { .. }
        | Event::StepTimed { .. }
        | Event::Finished => false,
    }
}
