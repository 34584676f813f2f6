//! Probes: the runs of `zprobe check`, each on one engine or several, with the results that they must have.
//!
//! A probe is a TOML file. The probes of the standard suite are in the folder `probes` and in [`registry`].

pub mod registry;

use schemars::JsonSchema;
use serde::Deserialize;

use zprobe_model::document::{Complaint, Document, Flags};
use zprobe_model::spec::Engine;
use zprobe_zoo::Expectation;

/// The content of a probe file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeFile {
    /// The purpose of the probe, in one sentence.
    description: String,
    /// The engines that the probe is for, each as a case of its own; the native engine if the key is missing.
    #[serde(default = "native")]
    engines: Vec<Engine>,
    /// The result that the run must have: `clean`, the code of the first finding, or `crash`.
    #[serde(default = "clean")]
    expect: String,
    /// A text that the engine's error message must contain; only with `crash`.
    message: Option<String>,
    /// The code that the first finding must have; only with `crash`.
    finding: Option<String>,
    /// The settings of the run: long names of flags of `zprobe run`, with their values.
    #[serde(default)]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    run: Flags,
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
    /// The settings of the run.
    pub run: Flags,
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
        if file.engines.is_empty() {
            return Err(wrong("engines", "is empty; name an engine, or leave the key out"));
        }
        let expect = Expectation::parse(&file.expect, file.message, file.finding)
            .map_err(|(key, problem)| wrong(key, problem))?;
        let name = document.file.rsplit('/').next().unwrap_or_default();
        let name = name.strip_suffix(".toml").unwrap_or(name).to_owned();
        let mut engines = file.engines;
        engines.sort_unstable();
        engines.dedup();
        Ok(Self {
            name,
            description: file.description.trim().to_owned(),
            engines,
            expect,
            run: file.run,
            document,
        })
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
        let keys: Vec<&String> = probe.run.keys().map(toml::Spanned::get_ref).collect();
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
}
