//! Facts about an interpreter: the answer of `facts.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::output_within;
use zprobe_engines::{self as engines, Package, TORCH};

/// The script that collects the facts; it needs nothing but the interpreter. One of its lines is
/// replaced with the trials of engines.
const SCRIPT: &str = include_str!("facts.py");

/// The line of the script that is replaced with the trials of engines.
const TRIALS: &str = "#: engines\n";

/// Problem of everything that was not tried.
pub(super) const NOT_TRIED: &str = "torch does not import";

/// Lines shown of the standard error of an interpreter that gave no answer.
const TAIL_LINES: usize = 5;

/// Facts about an interpreter.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Python {
    /// Path of the interpreter.
    pub executable: String,
    /// Version of the interpreter.
    pub version: String,
    /// Version of torch.
    pub torch: Attempt<String>,
    /// Backends of `torch.distributed`.
    #[serde(default)]
    pub backends: Attempt<Vec<String>>,
    /// Names of the GPUs that torch can use.
    #[serde(default)]
    pub gpus: Attempt<Vec<String>>,
    /// Version of CUDA that torch was built for; `none` for a build without.
    #[serde(default)]
    pub cuda: Attempt<String>,
    /// Version of NCCL that torch brings.
    #[serde(default)]
    pub nccl: Attempt<String>,
    /// Facts about the abilities of engines, by name. The fact with the name of an engine is its
    /// version, or true if a step of it works.
    #[serde(flatten)]
    pub about_engines: BTreeMap<String, Attempt<Value>>,
}

/// Outcome of something that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attempt<T> {
    /// The value that it gave.
    Value(T),
    /// The exception with which it failed, in Python's words.
    Problem(String),
}

/// The outcome of something that was not tried because torch is missing.
impl<T> Default for Attempt<T> {
    fn default() -> Self {
        Self::Problem(NOT_TRIED.to_owned())
    }
}

impl<T> Attempt<T> {
    /// The value, if the attempt succeeded.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Problem(_) => None,
        }
    }
}

/// Reason why an interpreter gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// The interpreter does not start.
    #[error("cannot start {python}: {cause}")]
    Start {
        /// The interpreter.
        python: String,
        /// Error of the operating system.
        cause: std::io::Error,
    },
    /// The interpreter took too long.
    #[error("{python} did not answer within {seconds} s")]
    Late {
        /// The interpreter.
        python: String,
        /// The limit.
        seconds: u64,
    },
    /// The interpreter ended without an answer, or with one that cannot be read.
    #[error("{python} gave no answer ({status}): {words}")]
    Nothing {
        /// The interpreter.
        python: String,
        /// Exit status of the interpreter.
        status: String,
        /// The end of its standard error.
        words: String,
    },
}

impl Python {
    /// Asks an interpreter, and waits for its answer for at most `limit`.
    ///
    /// # Errors
    /// If there is no answer: the interpreter does not start, dies in an import, or hangs.
    pub fn ask(python: &Path, limit: Duration) -> Result<Self, NoAnswer> {
        Self::ask_about(&[], python, limit)
    }

    /// Asks as [`Python::ask`] does, but only for the version of torch and for the facts of these
    /// names, because trying the others takes time. Without names, asks for all facts.
    ///
    /// # Errors
    /// As [`Python::ask`].
    pub fn ask_about(facts: &[&str], python: &Path, limit: Duration) -> Result<Self, NoAnswer> {
        let trials: Vec<&str> = engines::real().filter_map(|(_, python)| python.trial).collect();
        answer(python, &SCRIPT.replace(TRIALS, &trials.join("\n\n")), facts, limit)
    }

    /// The fact about engines of this name; not tried if there is none.
    pub fn fact(&self, name: &str) -> Attempt<&Value> {
        match self.about_engines.get(name) {
            Some(Attempt::Value(value)) => Attempt::Value(value),
            Some(Attempt::Problem(problem)) => Attempt::Problem(problem.clone()),
            None => Attempt::default(),
        }
    }

    /// The version of a package, as far as it was asked for.
    pub fn version(&self, package: &Package) -> Attempt<String> {
        if *package == TORCH {
            return self.torch.clone();
        }
        match self.fact(package.module) {
            Attempt::Value(version) => {
                Attempt::Value(version.as_str().unwrap_or_default().to_owned())
            }
            Attempt::Problem(problem) => Attempt::Problem(problem),
        }
    }
}

/// The names in `modules` that an interpreter does not find.
///
/// # Errors
/// Those of [`found`].
pub fn absent(python: &Path, modules: &[&str], limit: Duration) -> Result<Vec<String>, NoAnswer> {
    let found = found(python, modules, limit)?;
    let is_absent = |name: &&&str| found.get(**name).is_some_and(Option::is_none);
    Ok(modules.iter().filter(is_absent).map(|name| (*name).to_owned()).collect())
}

/// The file of each of these modules that an interpreter would import; none of those that it does not find.
/// Nothing is imported, so the answer takes no longer than the start of the interpreter.
///
/// # Errors
/// If there is no answer: the program does not start, hangs, or is not Python.
pub fn found(
    python: &Path,
    modules: &[&str],
    limit: Duration,
) -> Result<BTreeMap<String, Option<PathBuf>>, NoAnswer> {
    // Ranks do not import from the working directory.
    let script = "import sys\n\
                  sys.path[:] = [path for path in sys.path if path]\n\
                  import importlib.util, json\n\
                  specs = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}\n\
                  files = {name: spec and (spec.origin or '') for name, spec in specs.items()}\n\
                  print(json.dumps(files))";
    answer(python, script, modules, limit)
}

/// Runs a script in an interpreter and parses its output as JSON.
fn answer<T: DeserializeOwned>(
    python: &Path,
    script: &str,
    arguments: &[&str],
    limit: Duration,
) -> Result<T, NoAnswer> {
    let name = || python.display().to_string();
    let start = |cause| NoAnswer::Start { python: name(), cause };
    let mut command = crate::python::command(python);
    command.args(["-c", script]).args(arguments).env("OMP_NUM_THREADS", "1");
    let output = output_within(&mut command, limit)
        .map_err(start)?
        .ok_or_else(|| NoAnswer::Late { python: name(), seconds: limit.as_secs() })?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().collect();
        NoAnswer::Nothing {
            python: name(),
            status: output.status.to_string(),
            words: lines[lines.len().saturating_sub(TAIL_LINES)..].join(" / "),
        }
    })
}
