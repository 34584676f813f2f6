//! What a setting is: a [`Row`] of the table, and the same without its type, a [`Setting`].

use clap::{Arg, ArgMatches};
use serde_json::{Map, Value as Json};

use super::SpecRequest;
use super::value::{Slot, Value as _};
use crate::spec::deepspeed::put;
use crate::spec::{Engine, Invalid, RunSpec};

/// A row of the table. `S` is the field of [`SpecRequest`].
pub struct Row<S: Slot> {
    flag: &'static str,
    help: &'static str,
    slot: fn(&SpecRequest) -> &S,
    slot_mut: fn(&mut SpecRequest) -> &mut S,
    alias: Option<&'static str>,
    heading: &'static str,
    placeholder: Option<&'static str>,
    engines: &'static [Engine],
    advice: Option<&'static str>,
    harmless: fn(&S::Item) -> bool,
    default: Option<fn(Engine) -> S::Item>,
    default_words: Option<&'static str>,
    check: fn(&'static str, &S::Item) -> Result<(), Invalid>,
    words: Option<Words>,
    key: Key<S::Item>,
    said: fn(&RunSpec) -> S,
    is_always_said: bool,
    reduction: Reduction,
    is_about: About,
}

/// Reads a word of the command line into a request.
type Words = fn(&str, &mut SpecRequest) -> Result<(), String>;

/// Puts a value into a DeepSpeed file.
type Write<T> = fn(&mut Map<String, Json>, &T);

/// Where a DeepSpeed file has a setting.
enum Key<T> {
    /// Nowhere.
    None,
    /// At this dotted path.
    At(&'static str),
    /// At this dotted path; what a flag says of it stands in the specification, too.
    AskedAt(&'static str),
    /// At this path, always: whoever asks for the rest of a file asks for this.
    AlwaysAt(&'static str),
    /// In several places with these names, which this sets.
    Written(&'static str, Write<T>),
}

/// What becomes of a setting in the search for the smallest configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// It is left out.
    LeaveOut,
    /// It stays: without it the configuration is another one rather than a smaller one.
    Keep,
    /// It stays even where it is the default: that depends on the machine.
    KeepAlways,
}

/// What a setting is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// What is run.
    What,
    /// How a run is made, or on which engine: a probe says that elsewhere, or leaves it to whoever
    /// runs it.
    How,
}

impl<S: Slot> Row<S> {
    /// A setting that every engine has, without a default.
    pub(super) const fn new(
        flag: &'static str,
        help: &'static str,
        slot: fn(&SpecRequest) -> &S,
        slot_mut: fn(&mut SpecRequest) -> &mut S,
    ) -> Self {
        Self {
            flag,
            help,
            slot,
            slot_mut,
            alias: None,
            heading: "Run",
            placeholder: None,
            engines: Engine::ALL,
            advice: None,
            harmless: |_| false,
            default: None,
            default_words: None,
            check: |_, _| Ok(()),
            words: None,
            key: Key::None,
            said: |_| S::default(),
            is_always_said: false,
            reduction: Reduction::LeaveOut,
            is_about: About::What,
        }
    }

    /// Its other flag.
    pub(super) const fn alias(self, flag: &'static str) -> Self {
        Self { alias: Some(flag), ..self }
    }

    /// The section of the help in which it stands.
    pub(super) const fn heading(self, heading: &'static str) -> Self {
        Self { heading, ..self }
    }

    /// What stands for its value in the help, if not its name.
    pub(super) const fn placeholder(self, placeholder: &'static str) -> Self {
        Self { placeholder: Some(placeholder), ..self }
    }

    /// The engines that have it.
    pub(super) const fn engines(self, engines: &'static [Engine]) -> Self {
        Self { engines, ..self }
    }

    /// What to do instead where the engine does not have it, if not to choose another engine.
    pub(super) const fn advice(self, advice: &'static str) -> Self {
        Self { advice: Some(advice), ..self }
    }

    /// Values that every engine takes.
    pub(super) const fn harmless(self, harmless: fn(&S::Item) -> bool) -> Self {
        Self { harmless, ..self }
    }

    /// The default, engine by engine.
    pub(super) const fn default(self, default: fn(Engine) -> S::Item) -> Self {
        Self { default: Some(default), ..self }
    }

    /// The default in words, where it depends on more than the engine.
    pub(super) const fn default_words(self, words: &'static str) -> Self {
        Self { default_words: Some(words), ..self }
    }

    /// Refuses values that no engine takes.
    pub(super) const fn check(
        self,
        check: fn(&'static str, &S::Item) -> Result<(), Invalid>,
    ) -> Self {
        Self { check, ..self }
    }

    /// Reads a word of the command line, where not every word is a value.
    pub(super) const fn words(self, words: Words) -> Self {
        Self { words: Some(words), ..self }
    }

    /// Its dotted path in a DeepSpeed file.
    pub(super) const fn key(self, path: &'static str) -> Self {
        Self { key: Key::At(path), ..self }
    }

    /// Its dotted path in a DeepSpeed file; the specification has it only if a flag asked for it.
    pub(super) const fn asked_key(self, path: &'static str) -> Self {
        Self { key: Key::AskedAt(path), ..self }
    }

    /// Its path in a DeepSpeed file, in which it always stands.
    pub(super) const fn constant_key(self, path: &'static str) -> Self {
        Self { key: Key::AlwaysAt(path), ..self }
    }

    /// What puts it into a DeepSpeed file where that takes more than one key, and those.
    pub(super) const fn written(self, (keys, write): (&'static str, Write<S::Item>)) -> Self {
        Self { key: Key::Written(keys, write), ..self }
    }

    /// Its value in a complete specification.
    pub(super) const fn said(self, said: fn(&RunSpec) -> S) -> Self {
        Self { said, ..self }
    }

    /// The command that repeats a run says it even where it is the default.
    pub(super) const fn always_said(self) -> Self {
        Self { is_always_said: true, ..self }
    }

    /// What becomes of it in the search for the smallest configuration.
    pub(super) const fn reduction(self, reduction: Reduction) -> Self {
        Self { reduction, ..self }
    }

    /// It is about how a run is made.
    pub(super) const fn how(self) -> Self {
        Self { is_about: About::How, ..self }
    }

    /// The default in words: those of the engine that most have, and of others what differs.
    fn default_in_words(&self) -> Option<String> {
        if let Some(words) = self.default_words {
            return Some(words.to_owned());
        }
        let default = self.default?;
        let word = |engine: Engine| default(engine).word();
        let native = word(Engine::Native)?;
        let real: Vec<(Engine, String)> = Engine::ALL
            .iter()
            .filter(|engine| **engine != Engine::Native)
            .filter_map(|engine| Some((*engine, word(*engine)?)))
            .collect();
        let mut words = native.clone();
        if let [(_, first), others @ ..] = real.as_slice()
            && *first != native
            && others.iter().all(|(_, other)| other == first)
        {
            words += &format!("; real engines: {first}");
        } else {
            for (engine, other) in real.iter().filter(|(_, other)| *other != native) {
                words += &format!("; {engine}: {other}");
            }
        }
        Some(words)
    }

    fn refuses(&self, engine: Engine) -> Invalid {
        let advice = match (self.advice, self.engines) {
            (Some(advice), _) => advice.to_owned(),
            (None, [only]) => format!("use --engine {only}"),
            (None, _) => "choose another with --engine".to_owned(),
        };
        Invalid::NotOfThisEngine { flag: self.flag, engine, advice }
    }
}

/// A setting in words.
#[derive(Debug)]
pub struct Description {
    /// Its flag, with the dashes.
    pub flag: &'static str,
    /// Its environment variable.
    pub variable: String,
    /// A sentence about it.
    pub help: &'static str,
    /// Its default, if it has one.
    pub default: Option<String>,
    /// The engines that have it.
    pub engines: &'static [Engine],
    /// Where a DeepSpeed file has it.
    pub key: Option<&'static str>,
}

/// A setting, whatever the type of its value.
pub trait Setting: Sync {
    /// Its flag, with the dashes.
    fn flag(&self) -> &'static str;

    /// The name of its argument, by which clap knows it.
    fn id(&self) -> String {
        self.flag().trim_start_matches('-').replace('-', "_")
    }

    /// The setting in words.
    fn describe(&self) -> Description;

    /// Its flag as an argument of a command.
    fn arg(&self) -> Arg;

    /// Takes what a command line says into a request.
    ///
    /// # Errors
    /// When the word stands for nothing.
    fn take(&self, matches: &ArgMatches, request: &mut SpecRequest) -> Result<(), String>;

    /// What is said of it on a command line; none where it is left open, or no word says it.
    fn text(&self, request: &SpecRequest) -> Option<String>;

    /// Whether it is asked for.
    fn is_set(&self, request: &SpecRequest) -> bool;

    /// Leaves it open.
    fn clear(&self, request: &mut SpecRequest);

    /// Why it cannot be had as it is asked for, whatever else is: the engine does not have it, or not
    /// with this value.
    fn refusal(&self, request: &SpecRequest, engine: Engine) -> Option<Invalid>;

    /// Why its value in a specification cannot be.
    ///
    /// # Errors
    /// When it is out of range.
    fn check(&self, spec: &RunSpec) -> Result<(), Invalid>;

    /// Asks in `request` for what a specification has, if a flag of its engine can.
    fn ask(&self, spec: &RunSpec, request: &mut SpecRequest);

    /// The same, where a DeepSpeed file stands beside the flags and says what it can.
    fn ask_beside_file(&self, spec: &RunSpec, request: &mut SpecRequest);

    /// Puts what is asked for into a DeepSpeed file.
    fn write(&self, request: &SpecRequest, file: &mut Map<String, Json>);

    /// Puts what a specification has into the file that DeepSpeed is given, if that always has it.
    fn complete(&self, spec: &RunSpec, file: &mut Map<String, Json>);

    /// Its last name in a DeepSpeed file, and its value where a flag asked for it there.
    fn asked_of_deepspeed(&self, spec: &RunSpec) -> Option<(&'static str, String)>;

    /// Whether the command that repeats a run says it even where it is the default.
    fn is_always_said(&self) -> bool;

    /// What becomes of it in the search for the smallest configuration.
    fn reduction(&self) -> Reduction;

    /// What it is about.
    fn is_about(&self) -> About;
}

impl<S: Slot> Setting for Row<S> {
    fn flag(&self) -> &'static str {
        self.flag
    }

    fn describe(&self) -> Description {
        Description {
            flag: self.flag,
            variable: format!("ZPROBE_{}", self.id().to_uppercase()),
            help: self.help.trim(),
            default: self.default_in_words(),
            engines: self.engines,
            key: match self.key {
                Key::None => None,
                Key::At(path) | Key::AskedAt(path) | Key::AlwaysAt(path) => Some(path),
                Key::Written(keys, _) => Some(keys),
            },
        }
    }

    fn arg(&self) -> Arg {
        let Description { variable, help, default, .. } = self.describe();
        let default = default.map(|words| format!(" [default: {words}]")).unwrap_or_default();
        let placeholder = self.placeholder.map_or_else(|| self.id().to_uppercase(), str::to_owned);
        let arg = Arg::new(self.id())
            .long(self.flag.trim_start_matches('-'))
            .value_name(placeholder)
            .help(format!("{help}{default}"))
            .env(variable)
            .help_heading(self.heading);
        let arg = match self.alias {
            Some(alias) => arg.visible_alias(alias),
            None => arg,
        };
        if self.words.is_some() { arg } else { S::arg(arg) }
    }

    fn take(&self, matches: &ArgMatches, request: &mut SpecRequest) -> Result<(), String> {
        let id = self.id();
        let Some(words) = self.words else {
            *(self.slot_mut)(request) = S::of(matches, &id);
            return Ok(());
        };
        matches.get_one::<String>(&id).map_or(Ok(()), |word| words(word, request))
    }

    fn text(&self, request: &SpecRequest) -> Option<String> {
        let values = (self.slot)(request).values();
        let words: Option<Vec<String>> = values.iter().map(S::Item::word).collect();
        words.filter(|words| !words.is_empty()).map(|words| words.join(","))
    }

    fn is_set(&self, request: &SpecRequest) -> bool {
        !(self.slot)(request).values().is_empty()
    }

    fn clear(&self, request: &mut SpecRequest) {
        *(self.slot_mut)(request) = S::default();
    }

    fn refusal(&self, request: &SpecRequest, engine: Engine) -> Option<Invalid> {
        let values = (self.slot)(request).values();
        if !self.engines.contains(&engine) && !values.iter().all(self.harmless) {
            return Some(self.refuses(engine));
        }
        values.iter().find_map(|value| (self.check)(self.flag, value).err())
    }

    fn check(&self, spec: &RunSpec) -> Result<(), Invalid> {
        (self.said)(spec).values().iter().try_for_each(|value| (self.check)(self.flag, value))
    }

    fn ask(&self, spec: &RunSpec, request: &mut SpecRequest) {
        let is_there = match self.key {
            Key::At(path) | Key::AskedAt(path) if spec.engine == Engine::DeepSpeed => {
                configured(spec, path).is_some()
            }
            _ => true,
        };
        if self.engines.contains(&spec.engine) && is_there {
            *(self.slot_mut)(request) = (self.said)(spec);
        }
        if self.text(request).is_none() {
            self.clear(request);
        }
    }

    fn ask_beside_file(&self, spec: &RunSpec, request: &mut SpecRequest) {
        if !matches!(self.key, Key::At(_) | Key::Written(..)) {
            self.ask(spec, request);
        }
    }

    fn write(&self, request: &SpecRequest, file: &mut Map<String, Json>) {
        for value in (self.slot)(request).values() {
            match self.key {
                Key::None | Key::AlwaysAt(_) => {}
                Key::At(path) | Key::AskedAt(path) => put(file, path, value.json()),
                Key::Written(_, write) => write(file, value),
            }
        }
    }

    fn complete(&self, spec: &RunSpec, file: &mut Map<String, Json>) {
        let Key::AlwaysAt(path) = self.key else { return };
        (self.said)(spec).values().iter().for_each(|value| put(file, path, value.json()));
    }

    fn asked_of_deepspeed(&self, spec: &RunSpec) -> Option<(&'static str, String)> {
        let Key::AskedAt(path) = self.key else { return None };
        let name = path.rsplit('.').next()?;
        Some((name, (self.said)(spec).values().first()?.word()?))
    }

    fn is_always_said(&self) -> bool {
        self.is_always_said
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn is_about(&self) -> About {
        self.is_about
    }
}

/// The value at a dotted path of the configuration that DeepSpeed is given.
pub(super) fn configured<'a>(spec: &'a RunSpec, path: &str) -> Option<&'a Json> {
    let pointer = format!("/{}", path.replace('.', "/"));
    spec.deepspeed_config.as_ref()?.pointer(&pointer)
}
