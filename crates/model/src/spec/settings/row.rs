//! The definition of a setting: a [`SettingRow`] of the table, and a [`Setting`], which is a row without the type of its
//! value.

use clap::{Arg, ArgMatches};
use serde_json::{Map, Value as Json};

use super::SpecRequest;
use super::value::{Slot, Value as _};
use crate::spec::deepspeed::put;
use crate::spec::{DeepSpeedFile, Engine, Invalid, RunSpec};

/// A row of the table. `S` is the type of the field in [`SpecRequest`].
pub struct SettingRow<S: Slot> {
    /// The flag, with its dashes.
    pub(super) flag: &'static str,
    /// The help text of the flag.
    pub(super) help: &'static str,
    /// Returns the field of a request.
    pub(super) slot: fn(&SpecRequest) -> &S,
    /// Returns the field of a request, mutably.
    pub(super) slot_mut: fn(&mut SpecRequest) -> &mut S,
    /// Another long name of the flag; empty for none.
    pub(super) alias: &'static str,
    /// The section of the help that lists the flag.
    pub(super) heading: &'static str,
    /// The placeholder of the value in the help; empty for the flag's name.
    pub(super) placeholder: &'static str,
    /// The engines that have the setting.
    pub(super) engines: &'static [Engine],
    /// The advice for engines without the setting; empty for the advice to choose an engine that has the setting.
    pub(super) advice: &'static str,
    /// Returns true for values that every engine accepts.
    pub(super) harmless: fn(&S::Item) -> bool,
    /// The default, if it depends only on the engine.
    pub(super) default: Option<fn(Engine) -> S::Item>,
    /// The default in words, if no single value expresses it.
    pub(super) default_words: &'static str,
    /// Refuses values that are invalid for every engine.
    pub(super) check: fn(&'static str, &S::Item) -> Result<(), Invalid>,
    /// Reads the words of the command line, if some of them are not values.
    pub(super) words: Option<Words>,
    /// The place of the setting in a DeepSpeed file.
    pub(super) key: ConfigKey<S::Item>,
    /// Returns the value in a complete specification. A specification for DeepSpeed holds the value in the
    /// DeepSpeed configuration instead, if that has a key for the setting.
    pub(super) said: fn(&RunSpec) -> S,
    /// True if the command that repeats a run states the setting even if it has its default.
    pub(super) always_said: bool,
    /// The treatment of the setting by the search for the smallest configuration.
    pub(super) reduction: Reduction,
    /// The subject of the setting: the content of a run, or its execution.
    pub(super) about: About,
}

/// Reads a word of the command line into a request.
pub(super) type Words = fn(&str, &mut SpecRequest) -> Result<(), String>;

/// Writes a value into a DeepSpeed file.
pub(super) type Write<T> = fn(&mut Map<String, Json>, &T);

/// The place of a setting in a DeepSpeed file.
pub(super) enum ConfigKey<T> {
    /// No place, because DeepSpeed has no key for the setting.
    None,
    /// The dotted path from which a run of DeepSpeed takes the value.
    At(&'static str),
    /// A dotted path; the specification has the value only if a flag asked for it.
    AskedAt(&'static str),
    /// A dotted path in every file that DeepSpeed gets, whether or not a flag asked for the value.
    AlwaysAt(&'static str),
    /// The dotted path that the value itself names.
    Anywhere(Write<T>),
    /// Several dotted paths: their names, and the function that writes the value to them.
    Written(&'static str, Write<T>),
}

/// The treatment of a setting by the search for the smallest configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The search tries to leave out the setting.
    LeaveOut,
    /// The setting stays, because without it the configuration would be a different one rather than a smaller one.
    Keep,
    /// The setting stays even if it has its default, because the default depends on the machine.
    KeepAlways,
}

/// The subject of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The content of a run.
    What,
    /// The execution of a run, or its engine: a probe states these elsewhere, or leaves them to the command that
    /// runs the probe.
    How,
}

impl<S: Slot> SettingRow<S> {
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
            key: ConfigKey::None,
            said: |_| S::default(),
            always_said: false,
            reduction: Reduction::LeaveOut,
            about: About::What,
        }
    }

    /// The default in words: that of the native engine, and the defaults of other engines if they differ.
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
                    "use --engine {names}; `zprobe run --engine {engine} --help` lists the settings of {engine}"
                )
            }
            (advice, _) => advice.to_owned(),
        };
        Invalid::NotOfThisEngine { flag: self.flag, engine, advice }
    }
}

/// The description of a setting for help, for documentation, and for code that treats all settings alike.
#[derive(Debug)]
pub struct Description {
    /// The flag, with its dashes.
    pub flag: &'static str,
    /// The environment variable of the setting.
    pub variable: String,
    /// The help text of the flag.
    pub help: &'static str,
    /// The default in words, if there is one.
    pub default: Option<String>,
    /// The engines that have the setting.
    pub engines: &'static [Engine],
    /// The dotted paths of the setting in a DeepSpeed file, if there are any.
    pub key: Option<&'static str>,
    /// True if the command that repeats a run states the setting even if it has its default.
    pub always_said: bool,
    /// The treatment of the setting by the search for the smallest configuration.
    pub reduction: Reduction,
    /// The subject of the setting: the content of a run, or its execution.
    pub about: About,
}

/// A setting, without the type of its value.
pub trait Setting: Sync {
    /// The flag of the setting, with its dashes.
    fn flag(&self) -> &'static str;

    /// The identifier of the flag's argument in clap.
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
    /// Fails if the word has no meaning.
    fn take(&self, matches: &ArgMatches, request: &mut SpecRequest) -> Result<(), String>;

    /// The value as words of a command line; `None` if it is not set or no word expresses it.
    fn text(&self, request: &SpecRequest) -> Option<String>;

    /// True if the request sets the setting.
    fn is_set(&self, request: &SpecRequest) -> bool;

    /// Removes the setting from a request.
    fn clear(&self, request: &mut SpecRequest);

    /// The reason why the request for this setting is invalid regardless of the other settings: the engine lacks
    /// the setting, or does not support this value.
    fn refusal(&self, request: &SpecRequest, engine: Engine) -> Option<Invalid>;

    /// Checks the value of the setting in a specification.
    ///
    /// # Errors
    /// Fails if the value is out of range.
    fn check(&self, spec: &RunSpec) -> Result<(), Invalid>;

    /// Sets `request` to the value in a specification, if a flag of the specification's engine can express the value.
    fn ask(&self, spec: &RunSpec, request: &mut SpecRequest);

    /// Sets `request` as [`Setting::ask`] does, except for settings that come from the DeepSpeed file that is given
    /// along with the flags.
    fn ask_beside_file(&self, spec: &RunSpec, request: &mut SpecRequest);

    /// Writes the requested value into a DeepSpeed file.
    fn write(&self, request: &SpecRequest, file: &mut Map<String, Json>);

    /// Writes the value of a specification into the file that DeepSpeed gets, if that file always has the setting.
    fn complete(&self, spec: &RunSpec, file: &mut Map<String, Json>);

    /// The last part of the path in a DeepSpeed file, and the value, if a flag asked for the value.
    fn asked_of_deepspeed(&self, spec: &RunSpec) -> Option<(&'static str, String)>;
}

impl<S: Slot> Setting for SettingRow<S> {
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
                ConfigKey::None | ConfigKey::Anywhere(_) => None,
                ConfigKey::At(path) | ConfigKey::AskedAt(path) | ConfigKey::AlwaysAt(path) => {
                    Some(path)
                }
                ConfigKey::Written(keys, _) => Some(keys),
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
        if self.words.is_some() {
            return arg;
        }
        let zero = S::Item::of_json(&0.into());
        S::arg(arg, zero.is_some_and(|zero| (self.check)(self.flag, &zero).is_err()))
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
            ConfigKey::At(path) | ConfigKey::AskedAt(path) if is_passed_on(spec) => {
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
            ConfigKey::None | ConfigKey::AlwaysAt(_) => true,
            ConfigKey::AskedAt(_) | ConfigKey::Anywhere(_) => {
                !(self.said)(spec).values().is_empty()
            }
            ConfigKey::At(_) | ConfigKey::Written(..) => false,
        };
        if by_flag {
            self.ask(spec, request);
        }
    }

    fn write(&self, request: &SpecRequest, file: &mut Map<String, Json>) {
        for value in (self.slot)(request).values() {
            match self.key {
                ConfigKey::None | ConfigKey::AlwaysAt(_) => {}
                ConfigKey::At(path) | ConfigKey::AskedAt(path) => put(file, path, value.json()),
                ConfigKey::Anywhere(write) | ConfigKey::Written(_, write) => write(file, value),
            }
        }
    }

    fn complete(&self, spec: &RunSpec, file: &mut Map<String, Json>) {
        let ConfigKey::AlwaysAt(path) = self.key else { return };
        (self.said)(spec).values().iter().for_each(|value| put(file, path, value.json()));
    }

    fn asked_of_deepspeed(&self, spec: &RunSpec) -> Option<(&'static str, String)> {
        let ConfigKey::AskedAt(path) = self.key else { return None };
        let name = path.rsplit('.').next()?;
        Some((name, (self.said)(spec).values().first()?.word()?))
    }
}

/// True if the engine gets a DeepSpeed configuration, which holds the requested settings.
pub(super) fn is_passed_on(spec: &RunSpec) -> bool {
    spec.engine().traits().deepspeed_file == DeepSpeedFile::PassedOn
}

/// The value at a dotted path of the configuration that DeepSpeed gets.
pub(in crate::spec) fn configured<'a>(spec: &'a RunSpec, path: &str) -> Option<&'a Json> {
    let pointer = format!("/{}", path.replace('.', "/"));
    spec.deepspeed_config()?.pointer(&pointer)
}
