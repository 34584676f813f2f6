//! Probes: the runs of `zprobe check`, each on one engine or several, with the results that they must have.
//!
//! A probe is a TOML file. The probes of the standard suite are in the folder `probes` and in [`registry`].

pub mod registry;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use toml::{Spanned, Value};

use zprobe_model::document::{Complaint, Document, Flags};
use zprobe_model::spec::Engine;
use zprobe_zoo::Expectation;

/// The content of a probe file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeFile {
    /// The purpose of the probe, in one sentence.
    description: String,
    /// The engines that the probe is for, each as a case of its own; the native engine if the key is missing. A probe
    /// with `exec` has no engines.
    #[schemars(with = "Vec<Engine>", default = "native")]
    engines: Option<Vec<Engine>>,
    /// The result that the run must have: `clean`, the code of the first finding, or `crash`.
    #[serde(default = "clean")]
    expect: String,
    /// A text that the engine's error message must contain; only with `crash`.
    message: Option<String>,
    /// The code that the first finding must have; only with `crash`.
    finding: Option<String>,
    /// The settings of the run: long names of flags of `zprobe run`, with their values.
    #[serde(default)]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>", transform = without_default)]
    run: Option<Flags>,
    /// The training script of a probe without `run`: the command that starts it, and long names of flags of `zprobe
    /// exec`, with their values.
    #[serde(default)]
    #[schemars(schema_with = "exec_schema", transform = without_default)]
    exec: Option<Spanned<Flags>>,
}

/// The key, in the section `exec`, of the command that starts the training.
const COMMAND: &str = "command";

/// Removes the default value of a section, which is absent and not null.
fn without_default(schema: &mut Schema) {
    schema.remove("default");
}

fn exec_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            COMMAND: {
                "description": "The command that starts the training, as text in the quoting of a shell or word by \
                                word. No shell reads it.",
                "type": ["string", "array"],
                "items": { "type": "string" },
                "minItems": 1,
                "minLength": 1,
            },
        },
        "required": [COMMAND],
        "additionalProperties": true,
    })
}

/// A probe of `zprobe check`.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The name of the probe, which is the name of its file without the ending.
    pub name: String,
    /// The file of the probe.
    pub document: Document,
    /// The purpose of the probe, in one sentence.
    pub description: String,
    /// The engines that the probe is for.
    pub engines: Vec<Engine>,
    /// The result that the run must have.
    pub expect: Expectation,
    /// The settings of the run: flags of `zprobe run`, or of `zprobe exec` for a script.
    pub settings: Flags,
    /// The words of the command that starts the user's training script; empty for a probe of engines.
    pub command: Vec<String>,
}

fn native() -> Vec<Engine> {
    vec![Engine::default()]
}

fn clean() -> String {
    "clean".to_owned()
}

impl Probe {
    /// Reads a probe. The keys in `run` are not checked here, but by the command line, which knows the flags.
    ///
    /// # Errors
    /// If the text is not TOML, a key is unknown or missing, or a value is not allowed.
    pub fn read(document: Document) -> Result<Self, Complaint> {
        let file: ProbeFile = document.read()?;
        // Only the errors of the TOML parser have a position; for other errors, the key is searched for by its name.
        let wrong = |key: &str, problem: &str| {
            let start = document.text.lines().position(|line| line.trim_start().starts_with(key));
            let offset = start.map_or(0, |line| {
                document.text.split_inclusive('\n').take(line).map(str::len).sum::<usize>()
            });
            document.complain(offset..offset, format!("{key}: {problem}"))
        };
        if file.description.trim().is_empty() {
            return Err(wrong("description", "is empty; say what the probe tries"));
        }
        if file.engines.as_ref().is_some_and(Vec::is_empty) {
            return Err(wrong("engines", "is empty; name an engine, or leave the key out"));
        }
        let expect = Expectation::parse(&file.expect, file.message, file.finding)
            .map_err(|(key, problem)| wrong(key, problem))?;
        let name = document.file.rsplit('/').next().unwrap_or_default();
        let name = name.strip_suffix(".toml").unwrap_or(name).to_owned();
        let (mut engines, settings, command) = match file.exec {
            None => (file.engines.unwrap_or_else(native), file.run.unwrap_or_default(), vec![]),
            Some(section) => {
                if file.run.is_some() {
                    let problem = "a probe has either [run], for an engine, or [exec], for a script; remove one of \
                                   them, or write two probes";
                    return Err(document.complain(section.span(), problem));
                }
                if file.engines.is_some() {
                    let problem = "the script of [exec] chooses its engine; remove this key";
                    return Err(wrong("engines", problem));
                }
                let place = section.span();
                let mut settings = section.into_inner();
                let Some(command) = settings.remove(COMMAND) else {
                    let problem =
                        "[exec] has no command; add one, like command = \"torchrun train.py\"";
                    return Err(document.complain(place, problem));
                };
                let command = words(command.get_ref()).map_err(|problem| {
                    document.complain(command.span(), format!("{COMMAND}: {problem}"))
                })?;
                (vec![Engine::Script], settings, command)
            }
        };
        engines.sort_unstable();
        engines.dedup();
        Ok(Self {
            name,
            description: file.description.trim().to_owned(),
            engines,
            expect,
            settings,
            command,
            document,
        })
    }
}

/// The words of a command: a list of words, or a text that is split like a command line of a shell.
///
/// # Errors
/// The problem in words, with the correction.
fn words(command: &Value) -> Result<Vec<String>, String> {
    let words = match command {
        Value::String(text) => {
            let words = shlex::split(text).ok_or("a quote does not end, or a backslash is last")?;
            let is_of_shell = |word: &str| {
                ["&&", "||", "|", ";", "&", "2>&1"].contains(&word)
                    || word.starts_with(['$', '>', '<', '~'])
                    || word.ends_with(';')
            };
            let is_assignment = |word: &str| {
                let name = word.split_once('=').map_or("", |(name, _)| name);
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            };
            if let Some(word) = words.iter().find(|word| is_of_shell(word)) {
                return Err(format!(
                    "`{word}` needs a shell, and no shell reads the command; put it into a script, or write \
                     [\"bash\", \"-c\", \"…\"]. If it is an argument, write the command as a list of words"
                ));
            }
            if let Some(word) = words.first().filter(|word| is_assignment(word)) {
                return Err(format!(
                    "no shell reads the command, so `{word}` would be a program; write `env {text}`"
                ));
            }
            words
        }
        Value::Array(words) => words
            .iter()
            .map(|word| match word {
                Value::String(word) => Ok(word.clone()),
                other => Err(format!("{other} is not a string; write \"{other}\"")),
            })
            .collect::<Result<_, _>>()?,
        _ => return Err("takes a string or a list of strings".to_owned()),
    };
    match words.first() {
        Some(program) if !program.is_empty() => Ok(words),
        _ => Err("is empty; write the command that starts the training".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: &str = r#"
description = "A leak, on two engines"
engines = ["deepspeed", "native"]
expect = "ZP101"

[run]
stage = 1
inject = "boundary-leak"
"#;

    fn read(text: &str) -> Result<Probe, Complaint> {
        Probe::read(Document { file: "ci/leak.toml".to_owned(), text: text.to_owned() })
    }

    #[test]
    fn a_probe_says_what_to_run_where_and_what_to_expect() {
        let probe = read(PROBE).unwrap();
        assert_eq!((probe.name.as_str(), probe.engines.len()), ("leak", 2));
        assert_eq!(probe.expect, Expectation::parse("ZP101", None, None).unwrap());
        let keys: Vec<&String> = probe.settings.keys().map(Spanned::get_ref).collect();
        assert_eq!(keys, ["inject", "stage"]);
    }

    #[test]
    fn what_a_probe_does_not_say_is_native_and_clean() {
        let probe = read("description = 'Nothing unusual'").unwrap();
        assert_eq!((probe.engines, probe.expect), (vec![Engine::Native], Expectation::Clean));
    }

    #[test]
    fn complaints_name_the_place_and_the_key() {
        let complaints = [
            ("description", "descripton"),
            ("\"A leak, on two engines\"", "\" \""),
            ("[\"deepspeed\", \"native\"]", "[\"deepsped\"]"),
            ("[\"deepspeed\", \"native\"]", "[]"),
            ("\"ZP101\"", "\"fine\""),
            ("expect = \"ZP101\"", "expect = \"crash\""),
            ("expect", "message = \"IndexError\"\nexpect"),
            ("stage = 1", "stage = "),
        ]
        .map(|(from, to)| {
            assert!(PROBE.contains(from), "{from}");
            read(&PROBE.replacen(from, to, 1)).unwrap_err().to_string()
        });
        insta::assert_snapshot!(complaints.join("\n"));
    }

    #[test]
    fn a_probe_of_a_script_has_its_command_in_words() {
        let probe = |command: &str| {
            read(&format!("description = 'Ours'\n[exec]\ncommand = {command}\nobserve = 3\n"))
        };
        for command in
            [r#""torchrun 'our train.py' --lr 1""#, r#"["torchrun", "our train.py", "--lr", "1"]"#]
        {
            let probe = probe(command).unwrap();
            assert_eq!(probe.engines, [Engine::Script]);
            assert_eq!(probe.command, ["torchrun", "our train.py", "--lr", "1"]);
            let keys: Vec<&String> = probe.settings.keys().map(Spanned::get_ref).collect();
            assert_eq!(keys, ["observe"], "the command is not a flag");
        }
        let in_shell = probe(r#"["bash", "-c", "cd src && torchrun train.py"]"#).unwrap();
        assert_eq!(in_shell.command.len(), 3, "a word of a list may be anything");
        let wrong = [
            r#""""#,
            r#""   ""#,
            "[]",
            r#"["", "train.py"]"#,
            r#""torchrun 'train.py""#,
            r#""cd src && torchrun train.py""#,
            r#""OMP_NUM_THREADS=1 torchrun train.py""#,
            r#"["torchrun", 2]"#,
            "3",
        ];
        let mut complaints = wrong.map(|command| probe(command).unwrap_err().to_string()).to_vec();
        let section = "[exec]\ncommand = 'torchrun train.py'\n";
        for text in [
            format!("description = 'Ours'\n[run]\nstage = 1\n{section}"),
            format!("description = 'Ours'\nengines = ['ddp']\n{section}"),
            "description = 'Ours'\n[exec]\nobserve = 3\n".to_owned(),
        ] {
            complaints.push(read(&text).unwrap_err().to_string());
        }
        insta::assert_snapshot!(complaints.join("\n"));
    }
}
