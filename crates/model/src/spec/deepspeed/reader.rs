//! Reads single values of a DeepSpeed file, and collects the problems and the notes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::complete::{overrule, remove};
use super::hjson::{python_literal, short};
use super::{ConfigError, DeepSpeedConfig};
use crate::spec::{DeepSpeedFile, SpecRequest};

/// The maximum number of keys that a message names; further keys are only counted.
const MOST_KEYS: usize = 20;

/// The maximum number of problems or notes about a file; further ones are only counted.
const MOST_SHOWN: usize = 40;

/// The largest whole number that is accepted: above 2^53 a float cannot represent every whole number.
const LARGEST_WHOLE: f64 = 9_007_199_254_740_992.0;

/// A message about keys of the file.
struct Remark {
    /// The paths of the keys. Empty for a remark about something that the file lacks.
    keys: BTreeSet<String>,
    text: String,
}

/// A DeepSpeed file while it is read for an engine.
pub(super) struct Reader<'a> {
    config: &'a DeepSpeedConfig,
    /// The use of the file by the engine.
    pub engine_use: DeepSpeedFile,
    problems: Vec<Remark>,
    notes: Vec<Remark>,
    /// The paths of the keys whose value is `"auto"`.
    pub auto: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(config: &'a DeepSpeedConfig, engine_use: DeepSpeedFile) -> Self {
        let mut reader =
            Self { config, engine_use, problems: Vec::new(), notes: Vec::new(), auto: Vec::new() };
        for key in &config.parsed.repeated {
            let text = "DeepSpeed refuses a key that is given twice; remove one of the two";
            reader.problem(&[key], text);
        }
        reader
    }

    /// The whole content of the file.
    pub(super) fn content(&self) -> &'a Value {
        &self.config.parsed.content
    }

    /// True if the native engine runs the file, so that every key is either followed or refused.
    pub(super) fn is_followed(&self) -> bool {
        self.engine_use == DeepSpeedFile::Followed
    }

    /// True if the real DeepSpeed gets the file.
    pub(super) fn is_passed_on(&self) -> bool {
        self.engine_use == DeepSpeedFile::PassedOn
    }

    /// The value of the key at `path`; `None` if the file does not set the key, or sets it to null or `"auto"`.
    pub(super) fn value(&self, path: &str) -> Option<&'a Value> {
        self.content().pointer(path).filter(|value| !value.is_null() && *value != "auto")
    }

    /// True if the key at `path` is `"auto"`.
    pub(super) fn is_auto(&self, path: &str) -> bool {
        self.content().pointer(path).is_some_and(|value| value == "auto")
    }

    /// Reads the key at `path` with `convert`, which returns `None` for values other than the `wanted` ones.
    pub(super) fn read<T>(
        &mut self,
        path: &str,
        wanted: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(path)?;
        let read = convert(value);
        if read.is_none() {
            self.refuse(path, wanted, value);
        }
        read
    }

    pub(super) fn boolean(&mut self, path: &str) -> Option<bool> {
        self.read(path, "true or false", Value::as_bool)
    }

    /// Reads a finite number that is 0 or more.
    pub(super) fn number(&mut self, path: &str) -> Option<f64> {
        let is_fit = |number: &f64| *number >= 0.0 && number.is_finite();
        self.read(path, "a number, 0 or more", |value| value.as_f64().filter(is_fit))
    }

    /// Reads a whole number. `5e8` and `4.0` are whole numbers, as in pydantic.
    pub(super) fn whole(&mut self, path: &str, least: i64) -> Option<i64> {
        let is_fit = |number: &f64| {
            number.fract() == 0.0 && *number >= least as f64 && *number <= LARGEST_WHOLE
        };
        let wanted = format!("a whole number from {least} to 2^53");
        self.read(path, &wanted, |value| Some(value.as_f64().filter(is_fit)? as i64))
    }

    /// Reports that the value of a key is not one of the `wanted` values.
    pub(super) fn refuse(&mut self, path: &str, wanted: &str, value: &Value) {
        let found = match value {
            Value::String(text) => format!("{:?}", short(text)),
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
            scalar => scalar.to_string(),
        };
        let advice = value.as_str().and_then(python_literal);
        let advice = advice.map(|advice| format!("; {advice}")).unwrap_or_default();
        self.problem(&[path], &format!("must be {wanted}, not {found}{advice}"));
    }

    /// Reports a key that the native engine does not support. Other engines do without it, or support it.
    pub(super) fn unsupported(&mut self, path: &str) {
        if self.is_followed() {
            self.problem(
                &[path],
                "zprobe's native engine does not support this value; remove the key in a copy of the file, or use \
                 --engine deepspeed",
            );
        }
    }

    /// Reports a key that DeepSpeed does not have. If the engine gets the file, the engine judges the key.
    pub(super) fn unknown(&mut self, path: &str, text: &str) {
        if self.is_passed_on() { self.note(&[path], text) } else { self.problem(&[path], text) }
    }

    /// Adds a problem with these keys. The list of keys is empty if the file lacks something.
    pub(super) fn problem(&mut self, paths: &[&str], text: &str) {
        add(&mut self.problems, paths, text);
    }

    /// Adds a note on these keys, or on none if the file lacks something.
    pub(super) fn note(&mut self, paths: &[&str], text: &str) {
        add(&mut self.notes, paths, text);
    }

    /// True if there are remarks on more keys than messages show.
    pub(super) fn is_long(&self) -> bool {
        let remarks = self.problems.iter().chain(&self.notes);
        remarks.map(|remark| remark.keys.len()).sum::<usize>() > MOST_SHOWN
    }

    /// The content of the file for the real DeepSpeed, overridden by the flags of `asked`, and without `"auto"`.
    pub(super) fn passed_on(&self, asked: &SpecRequest) -> Value {
        let mut content = self.content().clone();
        if let Value::Object(members) = &mut content {
            self.auto.iter().for_each(|path| remove(members, path.trim_start_matches('/')));
            overrule(members, asked);
        }
        content
    }

    /// Returns the notes, one line each.
    ///
    /// # Errors
    /// Fails with all problems that were found.
    pub(super) fn finish(mut self) -> Result<Vec<String>, ConfigError> {
        let auto = std::mem::take(&mut self.auto);
        if !auto.is_empty() {
            let text = "\"auto\" is left to the calling framework, so it counts as not set: zprobe's defaults \
                        apply, and flags such as --ga and --dtype change them";
            self.notes.push(Remark { keys: auto.into_iter().collect(), text: text.to_owned() });
        }
        if self.problems.is_empty() {
            return Ok(self.lines(&self.notes));
        }
        let problems = self.lines(&self.problems);
        Err(ConfigError::Unusable { file: self.config.document.file.clone(), problems })
    }

    /// Writes remarks in the order of the file; those about something that the file lacks come last.
    fn lines(&self, remarks: &[Remark]) -> Vec<String> {
        let document = &self.config.document;
        let mut placed: Vec<(Vec<(usize, String)>, &str)> = Vec::new();
        for Remark { keys, text } in remarks {
            let at = |key: &String| self.config.parsed.places.get(key).copied().unwrap_or_default();
            let name = |key: &String| key.trim_start_matches('/').replace('/', ".");
            let mut keys: Vec<_> = keys.iter().map(|key| (at(key), name(key))).collect();
            keys.sort();
            placed.push((keys, text));
        }
        placed.sort_by_key(|(keys, _)| keys.first().map_or(usize::MAX, |(at, _)| *at));
        let mut lines = Vec::new();
        for (keys, text) in placed.iter().take(MOST_SHOWN) {
            let Some((first, _)) = keys.first() else {
                lines.push(format!("{}: {text}", document.file));
                continue;
            };
            let named = keys.iter().take(MOST_KEYS).enumerate().map(|(index, (at, name))| {
                let (line, column) = document.place(*at..*at);
                if index == 0 { name.clone() } else { format!("{name} ({line}:{column})") }
            });
            let mut names = named.collect::<Vec<_>>().join(", ");
            if keys.len() > MOST_KEYS {
                names += &format!(" and {} more", keys.len() - MOST_KEYS);
            }
            lines.push(document.complain(*first..*first, format!("{names}: {text}")).to_string());
        }
        if placed.len() > MOST_SHOWN {
            lines.push(format!("and {} more", placed.len() - MOST_SHOWN));
        }
        lines
    }
}

/// Adds a remark, or adds its keys to an earlier remark with the same text.
fn add(remarks: &mut Vec<Remark>, paths: &[&str], text: &str) {
    let keys = paths.iter().map(|path| (*path).to_owned());
    match remarks.iter_mut().find(|remark| remark.text == text) {
        Some(remark) => remark.keys.extend(keys),
        None => remarks.push(Remark { keys: keys.collect(), text: text.to_owned() }),
    }
}
