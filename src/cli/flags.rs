//! TOML tables whose keys are the long names of flags: the settings of a probe, and the sections of a
//! configuration file. clap checks each value as if it were given on the command line.

use std::any::TypeId;
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, ValueHint};
use toml::Value;
use zprobe_model::document::{Complaint, Document, Flags, no_such};

/// A flag with the values that a TOML table gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The id of the flag in clap.
    pub id: String,
    /// The long name of the flag; `None` for a positional argument.
    pub long: Option<String>,
    /// The values as on the command line; `true` or `false` for a flag that takes no value.
    pub values: Vec<String>,
    /// True if the flag takes no value.
    switch: bool,
    /// True if the flag and its value are one word, as in `--observe=3`.
    joined: bool,
}

impl Given {
    /// The words of a command line that give the flag its values.
    pub fn arguments(&self) -> Vec<String> {
        let long = self.long.as_deref().unwrap_or_default();
        if self.switch {
            let on = self.values.iter().any(|value| value == "true");
            return if on { vec![format!("--{long}")] } else { vec![] };
        }
        if self.joined {
            return self.values.iter().map(|value| format!("--{long}={value}")).collect();
        }
        self.values.iter().flat_map(|value| [format!("--{long}"), value.clone()]).collect()
    }
}

/// Reads a table of `document` as the flags of `command` for which `wanted` is true. Paths in the table are
/// relative to the directory `base`.
///
/// # Errors
/// Fails at the first key that names no wanted flag, or whose value the flag rejects.
pub fn read(
    command: &Command,
    table: &Flags,
    document: &Document,
    base: &Path,
    wanted: impl Fn(&Arg) -> bool,
) -> Result<Vec<Given>, Complaint> {
    let arguments: Vec<&Arg> = command.get_arguments().filter(|arg| wanted(arg)).collect();
    let mut all = Vec::new();
    for (key, value) in table {
        let name = key.get_ref().replace('_', "-");
        let Some(arg) = arguments.iter().find(|arg| is_called(arg, &name)) else {
            let problem = no_such("key", key.get_ref(), arguments.iter().copied().map(called));
            return Err(document.complain(key.span(), problem));
        };
        let wrong = |problem: String| {
            document.complain(value.span(), format!("{}: {problem}", key.get_ref()))
        };
        let mut given = Given {
            id: arg.get_id().to_string(),
            long: arg.get_long().map(str::to_owned),
            values: texts(arg, value.get_ref()).map_err(wrong)?,
            switch: matches!(arg.get_action(), ArgAction::SetTrue),
            joined: arg.is_require_equals_set(),
        };
        for text in &mut given.values {
            *text = located(arg, text, base);
        }
        check(command, &given).map_err(wrong)?;
        all.push(given);
    }
    Ok(all)
}

/// The key of an argument in a table: its long name, or its id if it has none.
fn called(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_else(|| arg.get_id().as_str())
}

fn is_called(arg: &Arg, name: &str) -> bool {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    called(arg) == name || aliases.contains(&name)
}

/// The value of a key as words of a command line.
fn texts(arg: &Arg, value: &Value) -> Result<Vec<String>, String> {
    let switch = matches!(arg.get_action(), ArgAction::SetTrue);
    let many = matches!(arg.get_action(), ArgAction::Append);
    match value {
        Value::Boolean(flag) => Ok(vec![flag.to_string()]),
        _ if switch => Err("takes true or false".to_owned()),
        Value::Array(values) if many => values.iter().map(text).collect(),
        Value::Array(_) => Err("takes one value, and not a list".to_owned()),
        value => Ok(vec![text(value)?]),
    }
}

fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Ok(value.to_string()),
        Value::Datetime(date) => Ok(date.to_string()),
        Value::Array(_) | Value::Table(_) => {
            Err(format!("takes no {}; write a string, a number, true or false", value.type_str()))
        }
    }
}

/// A path value joined to `base`; other values as they are. A program without a slash is looked up in `PATH`
/// unless a directory of that name exists; a value that may be a name or a path is a path if the file exists.
fn located(arg: &Arg, text: &str, base: &Path) -> String {
    let is_path = arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    let meant = match arg.get_value_hint() {
        ValueHint::ExecutablePath => text.contains('/') || base.join(text).is_dir(),
        ValueHint::AnyPath if !is_path => text.contains('/') || base.join(text).exists(),
        _ => is_path,
    };
    if meant { base.join(text).display().to_string() } else { text.to_owned() }
}

/// Checks the values with clap, whose error message is returned.
fn check(command: &Command, given: &Given) -> Result<(), String> {
    let words: Vec<String> = match &given.long {
        Some(_) if given.switch => given.arguments(),
        // With `=` a value that begins with a dash is not taken for a flag.
        Some(long) => given.values.iter().map(|value| format!("--{long}={value}")).collect(),
        None => given.values.clone(),
    };
    let command = command.clone().no_binary_name(true);
    let command = command.mut_args(|arg| arg.env(Resettable::Reset));
    let Err(error) = command.try_get_matches_from(words) else { return Ok(()) };
    match error.kind() {
        // Required and conflicting flags depend on the rest of the command line.
        ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict => Ok(()),
        _ => {
            let text = error.to_string();
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let own = lines
                .take_while(|line| !line.starts_with("For more") && !line.starts_with("Usage"));
            let own: Vec<&str> = own.map(|line| line.trim_start_matches("error: ")).collect();
            Err(own.join("; "))
        }
    }
}
