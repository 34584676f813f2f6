//! What an interpreter says about itself: the answer of `facts.py`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use process_control::{ChildExt as _, Control as _};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::engines::{self, Package, TORCH};

/// The script; it needs nothing but the interpreter. Trials of engines stand in place of a line.
const SCRIPT: &str = include_str!("facts.py");

/// The line that trials of engines take the place of.
const TRIALS: &str = "#: engines\n";

/// Why something was not tried.
pub(super) const NOT_TRIED: &str = "torch does not import";

/// How much of a silent interpreter's standard error is shown.
const TAIL_LINES: usize = 5;

/// What an interpreter says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Python {
    /// Its path.
    pub executable: String,
    /// Its version.
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
    /// Facts that say what engines can do, by name. That with the name of an engine is its version, or
    /// that a step of it works.
    #[serde(flatten)]
    pub about_engines: BTreeMap<String, Attempt<Value>>,
}

/// Something that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attempt<T> {
    /// It worked.
    Value(T),
    /// It did not: the exception, in Python's words.
    Problem(String),
}

/// Not tried, because torch is missing.
impl<T> Default for Attempt<T> {
    fn default() -> Self {
        Self::Problem(NOT_TRIED.to_owned())
    }
}

impl<T> Attempt<T> {
    /// What it gave, if it worked.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Problem(_) => None,
        }
    }
}

/// Why an interpreter gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// It does not start.
    #[error("cannot start {python}: {cause}")]
    Start {
        /// The interpreter.
        python: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// It took too long.
    #[error("{python} did not answer within {seconds} s")]
    Late {
        /// The interpreter.
        python: String,
        /// The limit.
        seconds: u64,
    },
    /// It ended without an answer, or with another.
    #[error("{python} gave no answer ({status}): {words}")]
    Nothing {
        /// The interpreter.
        python: String,
        /// How it ended.
        status: String,
        /// The end of its standard error.
        words: String,
    },
}

impl Python {
    /// Asks an interpreter, and waits for its answer for at most `limit`.
    ///
    /// # Errors
    /// If there is no answer: it does not start, dies of an import, or hangs.
    pub fn ask(python: &Path, limit: Duration) -> Result<Self, NoAnswer> {
        Self::ask_about(&[], python, limit)
    }

    /// The same about these facts and the version of torch alone, by their names in this struct:
    /// trying the others takes time. Without names, about all.
    ///
    /// # Errors
    /// As [`Python::ask`].
    pub fn ask_about(facts: &[&str], python: &Path, limit: Duration) -> Result<Self, NoAnswer> {
        let trials: Vec<&str> = engines::real().map(|(_, python)| python.trial).collect();
        answer(python, &SCRIPT.replace(TRIALS, &trials.join("\n\n")), facts, limit)
    }

    /// A fact about engines, which counts as not tried if there is none of this name.
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

/// Those of `modules` that an interpreter does not find. Nothing is imported, so that it takes no
/// longer than the interpreter does to start.
///
/// # Errors
/// If there is no answer: it does not start, or hangs, or is no Python.
pub fn absent(python: &Path, modules: &[&str], limit: Duration) -> Result<Vec<String>, NoAnswer> {
    // What lies in the working directory is not what ranks import.
    let script = "import sys\n\
                  sys.path[:] = [path for path in sys.path if path]\n\
                  import importlib.util, json\n\
                  find = importlib.util.find_spec\n\
                  print(json.dumps([name for name in sys.argv[1:] if find(name) is None]))";
    answer(python, script, modules, limit)
}

/// What a script of an interpreter prints, as JSON.
fn answer<T: DeserializeOwned>(
    python: &Path,
    script: &str,
    arguments: &[&str],
    limit: Duration,
) -> Result<T, NoAnswer> {
    let name = || python.display().to_string();
    let start = |cause| NoAnswer::Start { python: name(), cause };
    let output = crate::python::command(python)
        .args(["-c", script])
        .args(arguments)
        .env("OMP_NUM_THREADS", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?
        .controlled_with_output()
        .time_limit(limit)
        .terminate_for_timeout()
        .wait()
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
