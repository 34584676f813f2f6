//! Definition of a setting: a [`Row`] of the table, and the same without its type, a [`Setting`].

use clap::{Arg, ArgMatches};
use serde_json::{Map, Value as Json};

use super::SpecRequest;
use super::value::{Slot, Value as _};
use crate::spec::deepspeed::put;
use crate::spec::{DeepSpeedFile, Engine, Invalid, RunSpec};

/// A row of the table. `S` is the field of [`SpecRequest`].
pub struct Row<S: Slot> {
    /// The flag, with the dashes.
    pub(super) flag: &'static str,
    /// The line of the help.
    pub(super) help: &'static str,
    /// The field of a request.
    pub(super) slot: fn(&SpecRequest) -> &S,
    /// The field of a request, mutably.
    pub(super) slot_mut: fn(&mut SpecRequest) -> &mut S,
    /// Another long name of the flag; empty for none.
    pub(super) alias: &'static str,
    /// The section of the help.
    pub(super) heading: &'static str,
    /// Placeholder of the value in the help; empty for the flag's name.
    pub(super) placeholder: &'static str,
    /// The engines that have the setting.
    pub(super) engines: &'static [Engine],
    /// Advice for engines without the setting; empty for the advice to choose an engine that has
    /// it.
    pub(super) advice: &'static str,
    /// Returns true for values that every engine accepts.
    pub(super) harmless: fn(&S::Item) -> bool,
    /// The default, where it depends on nothing but the engine.
    pub(super) default: Option<fn(Engine) -> S::Item>,
    /// The default in words, where no single value expresses it.
    pub(super) default_words: &'static str,
    /// Refuses values that are invalid for every engine.
    pub(super) check: fn(&'static str, &S::Item) -> Result<(), Invalid>,
    /// Reader of the words of the command line, where not all of them are values.
    pub(super) words: Option<Words>,
    /// The place in a DeepSpeed file.
    pub(super) key: Key<S::Item>,
    /// The value in a complete specification. A specification for DeepSpeed holds it in the
    /// DeepSpeed configuration instead, where that has a key for it.
    pub(super) said: fn(&RunSpec) -> S,
    /// True if the command that repeats a run names the setting even where it has its default.
    pub(super) always_said: bool,
    /// Treatment of the setting by the search for the smallest configuration.
    pub(super) reduction: Reduction,
    /// Subject of the setting.
    pub(super) about: About,
}

/// Reads a word of the command line into a request.
pub(super) type Words = fn(&str, &mut SpecRequest) -> Result<(), String>;

/// Puts a value into a DeepSpeed file.
pub(super) type Write<T> = fn(&mut Map<String, Json>, &T);

/// The place of a setting in a DeepSpeed file.
pub(super) enum Key<T> {
    /// No place: DeepSpeed has no key for the setting.
    None,
    /// At this dotted path, from which a run of DeepSpeed takes the value.
    At(&'static str),
    /// At this dotted path; the specification has it only if a flag asked for it.
    AskedAt(&'static str),
    /// At this dotted path of every file that DeepSpeed is given, whether or not a flag asked for
    /// it.
    AlwaysAt(&'static str),
    /// At the dotted path that the value itself names.
    Anywhere(Write<T>),
    /// At several dotted paths, with their names and the function that sets them.
    Written(&'static str, Write<T>),
}

/// Treatment of a setting by the search for the smallest configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The setting is left out.
    LeaveOut,
    /// The setting stays: without it the configuration is another one rather than a smaller one.
    Keep,
    /// The setting stays even where it has its default, because the default depends on the machine.
    KeepAlways,
}

/// Subject of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The content of a run.
    What,
    /// The execution of a run, or its engine: a probe states that elsewhere, or leaves it to the
    /// command that runs it.
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
            alias: "",
            heading: "Run",
            placeholder: "",
            engines: Engine::CHOICES,
            advice: "",
            harmless: |_| false,
            default: None,
            default_words: "",
            check: |_, _| Ok(()),
            words: None,
            key: Key::None,
            said: |_| S::default(),
            always_said: false,
            reduction: Reduction::LeaveOut,
            about: About::What,
        }
    }

    /// The default in words: that of the native engine, and defaults of other engines that differ.
    fn default_in_words(&self) -> Option<String> {
        if !self.default_words.is_empty() {
            return Some(self.default_words.to_owned());
        }
        let default = self.default?;
        let word = |engine: Engine| default(engine).word();
        let native = word(Engine::default())?;
        let real: Vec<(Engine, String)> = self
            .engines
            .iter()
            .filter(|engine| **engine != Engine::default())
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
            ("", [only]) => format!("use --engine {only}"),
            ("", several) => {
                let names: Vec<&str> = several.iter().map(|it| it.name()).collect();
                let names = names.join(" or ");
                format!(
                    "use --engine {names}; `zprobe run --engine {engine} --help` shows what {engine} has"
                )
            }
            (advice, _) => advice.to_owned(),
        };
        Invalid::NotOfThisEngine { flag: self.flag, engine, advice }
    }
}

/// Description of a setting for help and documentation, and for code that treats all settings
/// alike.
#[derive(Debug)]
pub struct Description {
    /// The flag, with the dashes.
    pub flag: &'static str,
    /// The environment variable.
    pub variable: String,
    /// The line of the help.
    pub help: &'static str,
    /// The default in words, if there is one.
    pub default: Option<String>,
    /// The engines that have the setting.
    pub engines: &'static [Engine],
    /// Dotted paths in a DeepSpeed file, if it has the setting.
    pub key: Option<&'static str>,
    /// True if the command that repeats a run names the setting even where it has its default.
    pub always_said: bool,
    /// Treatment of the setting by the search for the smallest configuration.
    pub reduction: Reduction,
    /// Subject of the setting.
    pub about: About,
}

/// A setting, whatever the type of its value.
pub trait Setting: Sync {
    /// The flag of the setting, with the dashes.
    fn flag(&self) -> &'static str;

    /// Identifier of the argument in clap.
    fn id(&self) -> String {
        self.flag().trim_start_matches('-').replace('-', "_")
    }

    /// Describes the setting.
    fn describe(&self) -> Description;

    /// The flag as an argument of a command.
    fn arg(&self) -> Arg;

    /// Copies the value from a command line to a request.
    ///
    /// # Errors
    /// When the word has no meaning.
    fn take(&self, matches: &ArgMatches, request: &mut SpecRequest) -> Result<(), String>;

    /// The value as words of a command line; none where it is left open or no word expresses it.
    fn text(&self, request: &SpecRequest) -> Option<String>;

    /// True if the request sets the setting.
    fn is_set(&self, request: &SpecRequest) -> bool;

    /// Removes the setting from a request.
    fn clear(&self, request: &mut SpecRequest);

    /// Reason why the request for this setting is invalid regardless of the other settings: the
    /// engine lacks the setting or this value of it.
    fn refusal(&self, request: &SpecRequest, engine: Engine) -> Option<Invalid>;

    /// Checks the value of the setting in a specification.
    ///
    /// # Errors
    /// When the value is out of range.
    fn check(&self, spec: &RunSpec) -> Result<(), Invalid>;

    /// Sets `request` to the value in a specification, if a flag of its engine can express it.
    fn ask(&self, spec: &RunSpec, request: &mut SpecRequest);

    /// Sets `request` as [`Setting::ask`] does, except for settings that a DeepSpeed file beside
    /// the flags gives.
    fn ask_beside_file(&self, spec: &RunSpec, request: &mut SpecRequest);

    /// Writes the requested value into a DeepSpeed file.
    fn write(&self, request: &SpecRequest, file: &mut Map<String, Json>);

    /// Writes the value of a specification into the file that DeepSpeed is given, if that file
    /// always has the setting.
    fn complete(&self, spec: &RunSpec, file: &mut Map<String, Json>);

    /// Last part of the path in a DeepSpeed file, and the value, where a flag asked for it there.
    fn asked_of_deepspeed(&self, spec: &RunSpec) -> Option<(&'static str, String)>;
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
                Key::None | Key::Anywhere(_) => None,
                Key::At(path) | Key::AskedAt(path) | Key::AlwaysAt(path) => Some(path),
                Key::Written(keys, _) => Some(keys),
            },
            always_said: self.always_said,
            reduction: self.reduction,
            about: self.about,
        }
    }

    fn arg(&self) -> Arg {
        let Description { variable, help, default, .. } = self.describe();
        let default = default.map(|words| format!(" [default: {words}]")).unwrap_or_default();
        let arg = Arg::new(self.id())
            .long(self.flag.trim_start_matches('-'))
            .visible_aliases(Some(self.alias).filter(|alias| !alias.is_empty()))
            .value_name(match self.placeholder {
                "" => self.id().to_uppercase(),
                placeholder => placeholder.to_owned(),
            })
            .help(format!("{help}{default}"))
            .env(variable)
            .help_heading(self.heading);
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
        let value = match self.key {
            _ if !self.engines.contains(&spec.engine()) => S::default(),
            Key::At(path) | Key::AskedAt(path) if is_passed_on(spec) => {
                configured(spec, path).map_or_else(S::default, S::of_json)
            }
            _ => (self.said)(spec),
        };
        *(self.slot_mut)(request) = value;
        if self.text(request).is_none() {
            self.clear(request);
        }
    }

    fn ask_beside_file(&self, spec: &RunSpec, request: &mut SpecRequest) {
        let by_flag = match self.key {
            Key::None | Key::AlwaysAt(_) => true,
            Key::AskedAt(_) | Key::Anywhere(_) => !(self.said)(spec).values().is_empty(),
            Key::At(_) | Key::Written(..) => false,
        };
        if by_flag {
            self.ask(spec, request);
        }
    }

    fn write(&self, request: &SpecRequest, file: &mut Map<String, Json>) {
        for value in (self.slot)(request).values() {
            match self.key {
                Key::None | Key::AlwaysAt(_) => {}
                Key::At(path) | Key::AskedAt(path) => put(file, path, value.json()),
                Key::Anywhere(write) | Key::Written(_, write) => write(file, value),
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
}

/// True if the engine is given a DeepSpeed configuration, which holds the settings that were asked
/// for.
pub(super) fn is_passed_on(spec: &RunSpec) -> bool {
    spec.engine().traits().deepspeed_file == DeepSpeedFile::PassedOn
}

/// The value at a dotted path of the configuration that DeepSpeed is given.
pub(super) fn configured<'a>(spec: &'a RunSpec, path: &str) -> Option<&'a Json> {
    let pointer = format!("/{}", path.replace('.', "/"));
    spec.deepspeed_config()?.pointer(&pointer)
}
