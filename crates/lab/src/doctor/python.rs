//! The facts about a Python interpreter, as `facts.py` collects them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::output_within;
use zprobe_engines::{self as engines, EnginePackage, TORCH};

/// The script that collects the facts; it needs nothing but the interpreter. One of its lines is replaced with the
/// trials of the engines.
const SCRIPT: &str = include_str!("facts.py");

/// The line of the script that is replaced with the trials of the engines.
const TRIALS: &str = "#: engines\n";

/// The problem of every fact that was not tried, because torch does not import.
pub(super) const NOT_TRIED: &str = "torch does not import";

/// Number of lines of standard error that are shown for an interpreter that gave no answer.
const TAIL_LINES: usize = 5;

/// The facts about a Python interpreter and its packages.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PythonFacts {
    /// The path of the interpreter.
    pub executable: String,
    /// The version of the interpreter, for example `3.11.7`.
    pub version: String,
    /// The version of torch.
    pub torch: PythonAttempt<String>,
    /// The backends that `torch.distributed` offers, for example `gloo`.
    #[serde(default)]
    pub backends: PythonAttempt<Vec<String>>,
    /// The names of the GPUs that torch can use.
    #[serde(default)]
    pub gpus: PythonAttempt<Vec<String>>,
    /// The CUDA or ROCm version that torch was built for; the text `none` for a build with neither.
    #[serde(default)]
    pub cuda: PythonAttempt<String>,
    /// The version of NCCL that comes with torch.
    #[serde(default)]
    pub nccl: PythonAttempt<String>,
    /// The facts about the engines, by the name of the fact. A fact with the name of an engine is the engine's
    /// version, or true if a step of the engine works.
    #[serde(flatten)]
    pub about_engines: BTreeMap<String, PythonAttempt<Value>>,
}

/// The outcome of something that was tried in Python: a value or an exception.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PythonAttempt<T> {
    /// The value that the attempt gave.
    Value(T),
    /// The exception that ended the attempt, in Python's words.
    Problem(String),
}

/// The outcome of an attempt that was not made because torch is missing.
impl<T> Default for PythonAttempt<T> {
    fn default() -> Self {
        Self::Problem(NOT_TRIED.to_owned())
    }
}

impl<T> PythonAttempt<T> {
    /// The value of the attempt; `None` if the attempt failed.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Problem(_) => None,
        }
    }
}

/// The reason why an interpreter gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum InterpreterError {
    /// The interpreter does not start.
    #[error("cannot start {python}: {cause}")]
    Start {
        /// The path of the interpreter.
        python: String,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The interpreter did not answer within the time limit.
    #[error("{python} did not answer within {seconds} s")]
    Late {
        /// The path of the interpreter.
        python: String,
        /// The time limit, in seconds.
        seconds: u64,
    },
    /// The interpreter exited without an answer, or its answer cannot be parsed.
    #[error("{python} gave no answer ({status}): {words}")]
    Nothing {
        /// The path of the interpreter.
        python: String,
        /// The exit status of the interpreter.
        status: String,
        /// The last lines of the interpreter's standard error.
        words: String,
    },
}

impl PythonFacts {
    /// Asks an interpreter, and waits for its answer for at most `limit`.
    ///
    /// # Errors
    /// When the interpreter does not start, dies in an import, or hangs.
    pub fn ask(python: &Path, limit: Duration) -> Result<Self, InterpreterError> {
        Self::ask_about(&[], python, limit)
    }

    /// Asks an interpreter only for the version of torch and for the named facts, because trying the other facts
    /// takes time. Without names, asks for all facts.
    ///
    /// # Errors
    /// The errors of [`PythonFacts::ask`].
    pub fn ask_about(
        facts: &[&str],
        python: &Path,
        limit: Duration,
    ) -> Result<Self, InterpreterError> {
        let trials: Vec<&str> = engines::real().filter_map(|(_, python)| python.trial).collect();
        answer(python, &SCRIPT.replace(TRIALS, &trials.join("\n\n")), facts, limit)
    }

    /// The fact about engines with the given name; a fact that is not there counts as not tried.
    pub fn fact(&self, name: &str) -> PythonAttempt<&Value> {
        match self.about_engines.get(name) {
            Some(PythonAttempt::Value(value)) => PythonAttempt::Value(value),
            Some(PythonAttempt::Problem(problem)) => PythonAttempt::Problem(problem.clone()),
            None => PythonAttempt::default(),
        }
    }

    /// The version of a package, if the interpreter was asked for it.
    pub fn version(&self, package: &EnginePackage) -> PythonAttempt<String> {
        if *package == TORCH {
            return self.torch.clone();
        }
        match self.fact(package.module) {
            PythonAttempt::Value(version) => {
                PythonAttempt::Value(version.as_str().unwrap_or_default().to_owned())
            }
            PythonAttempt::Problem(problem) => PythonAttempt::Problem(problem),
        }
    }
}

/// The names in `modules` that an interpreter does not find.
///
/// # Errors
/// The errors of [`found`].
pub fn absent(
    python: &Path,
    modules: &[&str],
    limit: Duration,
) -> Result<Vec<String>, InterpreterError> {
    let found = found(python, modules, limit)?;
    let is_absent = |name: &&&str| found.get(**name).is_some_and(Option::is_none);
    Ok(modules.iter().filter(is_absent).map(|name| (*name).to_owned()).collect())
}

/// The file that an interpreter would import for each module; `None` for a module that the interpreter does not find.
/// Nothing is imported, so the answer takes no longer than the start of the interpreter.
///
/// # Errors
/// When the program does not start, hangs, or is not Python.
pub fn found(
    python: &Path,
    modules: &[&str],
    limit: Duration,
) -> Result<BTreeMap<String, Option<PathBuf>>, InterpreterError> {
    // Ranks do not import from the working directory, so the search leaves it out.
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
) -> Result<T, InterpreterError> {
    let name = || python.display().to_string();
    let start = |cause| InterpreterError::Start { python: name(), cause };
    let mut command = crate::python::command(python);
    command.args(["-c", script]).args(arguments).env("OMP_NUM_THREADS", "1");
    let output = output_within(&mut command, limit)
        .map_err(start)?
        .ok_or_else(|| InterpreterError::Late { python: name(), seconds: limit.as_secs() })?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().collect();
        InterpreterError::Nothing {
            python: name(),
            status: output.status.to_string(),
            words: lines[lines.len().saturating_sub(TAIL_LINES)..].join(" / "),
        }
    })
}
