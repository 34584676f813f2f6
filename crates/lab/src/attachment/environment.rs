//! The facts about the machine that a maintainer asks for: system, versions, devices, environment variables.
//!
//! [`crate::doctor`] examines the machine and the interpreter when the attachment is made. The versions of the run
//! itself are in the report.

use std::path::Path;
use std::time::Duration;

use super::own_text::LEFT_OUT;
use crate::answer::output_within;
use crate::doctor::{MachineFacts, PythonAttempt, PythonFacts};
use zprobe_engines::{self as engines, EnginePackage, Project};
use zprobe_redact::{Private, Redactor};
use zprobe_report::Report;

/// The prefixes of environment variables that may affect engines. The attachment has no other variables.
const RELEVANT: &[&str] = &[
    "ACCELERATE_",
    "CUDA_",
    "DEEPSPEED_",
    "DS_",
    "FI_",
    "GLOO_",
    "KMP_",
    "LOCAL_",
    "MASTER_",
    "MKL_",
    "NCCL_",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_",
    "PYTORCH_",
    "RANK",
    "TORCH",
    "TP_SOCKET_",
    "UCX_",
    "WORLD_SIZE",
    "ZPROBE_",
];

/// The interpreter's arguments for torch's and DeepSpeed's scripts that describe their installation.
const COLLECT_ENV: &[&str] = &["-m", "torch.utils.collect_env"];
const DS_REPORT: &[&str] = &["-c", "from deepspeed.env_report import cli_main; cli_main()"];

/// The program that calls the command `env` of a package, whose name the interpreter gets as an argument. Older releases
/// of transformers call their program `transformers-cli`.
const TRAINER_ENV: &str = "import sys; from importlib.metadata import distribution; name = sys.argv[1]; \
                           programs = {it.name: it for it in distribution(name).entry_points}; \
                           program = programs.get(name) or programs[name + '-cli']; \
                           sys.argv[1:] = ['env']; program.load()()";

/// The facts about the machine and the interpreter.
pub struct Environment {
    /// The names and values of the facts, in the order of display.
    pub facts: Vec<(String, String)>,
    /// The names and values of environment variables that may affect engines, sorted.
    pub variables: Vec<(String, String)>,
    /// True if zprobe runs in a container.
    pub container: bool,
    /// The names of the GPUs, or the reason why they are unknown.
    pub gpus: Result<Vec<String>, String>,
    /// The output of `python -m torch.utils.collect_env`; `None` if no interpreter was named.
    pub collect_env: Option<String>,
    /// The output of `ds_report`; `None` if no interpreter was named, or if the interpreter has no DeepSpeed.
    pub ds_report: Option<String>,
    /// The output of `transformers env` or `accelerate env`; `None` if no interpreter was named, or if the issue is for
    /// another project.
    pub trainer_env: Option<String>,
}

impl Environment {
    /// Collects the facts about the machine, and about the interpreter if one was named.
    pub fn new(
        machine: &MachineFacts,
        python: Option<&PythonFacts>,
        report: &Report,
        private: &Private,
    ) -> Self {
        let say = |value: &Option<String>| value.clone().unwrap_or_else(|| "not known".to_owned());
        let gpus = match &machine.driver {
            Ok(gpus) if gpus.is_empty() => "none".to_owned(),
            Ok(gpus) => gpus.join(", "),
            Err(problem) => problem.clone(),
        };
        let mut facts = Vec::from(named([
            ("system", say(&machine.system)),
            ("kernel", say(&machine.kernel)),
            ("container", if machine.container { "yes" } else { "no" }.to_owned()),
            ("cores", say(&machine.cores.map(|cores| cores.to_string()))),
            ("GPUs", gpus),
            ("GPU driver", machine.driver_version.clone().unwrap_or_else(|| "none".to_owned())),
        ]));
        if let Some(python) = python {
            facts.push(("interpreter".to_owned(), python.version.clone()));
            let now = engines::packages().map(|package| {
                (format!("{}, now", package.title), said(&python.version(&package)))
            });
            facts.extend(now);
            facts.extend(named([
                ("CUDA of torch", said(&python.cuda)),
                ("NCCL of torch", said(&python.nccl)),
                ("backends", said_list(&python.backends)),
                ("GPUs that torch can use", said_list(&python.gpus)),
            ]));
            facts.extend(another(python, report).map(|other| ("note".to_owned(), other)));
        }
        // The directory of zprobe's environments has no effect on a run.
        let is_relevant = |name: &str| {
            name != "ZPROBE_CACHE_DIR" && RELEVANT.iter().any(|begin| name.starts_with(begin))
        };
        let relevant = |(name, _): &&(String, String)| is_relevant(name);
        let mut variables: Vec<_> = private.variables.iter().filter(relevant).cloned().collect();
        variables.sort();
        Self {
            facts,
            variables,
            container: machine.container,
            gpus: machine.driver.clone(),
            collect_env: None,
            ds_report: None,
            trainer_env: None,
        }
    }

    /// Runs `collect_env`, `ds_report` if DeepSpeed is installed, and the command `env` of the `project`'s package if the
    /// project asks for it, each for at most `limit`.
    pub fn ask_engines(
        &mut self,
        interpreter: &Path,
        python: &PythonFacts,
        project: Project,
        limit: Duration,
    ) {
        self.collect_env = Some(output(interpreter, COLLECT_ENV, limit));
        if python.fact("deepspeed").value().is_some() {
            self.ds_report = Some(output(interpreter, DS_REPORT, limit));
        }
        if let Project::Transformers | Project::Accelerate = project {
            let arguments = ["-c", TRAINER_ENV, &project.to_string()];
            self.trainer_env = Some(output(interpreter, &arguments, limit));
        }
    }

    /// The environment without private text. The values of variables stay only if `with_values` is true.
    #[must_use]
    pub fn redacted(&self, redactor: &Redactor, with_values: bool) -> Self {
        let text = |text: &String| redactor.text(text);
        Self {
            facts: self.facts.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
            variables: self
                .variables
                .iter()
                .map(|(name, value)| match with_values {
                    true => (name.clone(), redactor.value_of(name, value)),
                    false => (name.clone(), LEFT_OUT.to_owned()),
                })
                .collect(),
            container: self.container,
            gpus: self.gpus.as_ref().map(|all| all.iter().map(text).collect()).map_err(text),
            collect_env: self.collect_env.as_ref().map(text),
            ds_report: self.ds_report.as_ref().map(text),
            trainer_env: self.trainer_env.as_ref().map(text),
        }
    }

    /// All facts and variables, one per line, followed by the outputs of the engines' own scripts.
    pub fn text(&self) -> String {
        let facts = self.facts.iter().map(|(name, value)| format!("{name}: {value}\n"));
        let variables = self.variables.iter().map(|(name, value)| format!("{name}={value}\n"));
        let mut text: String = facts.chain(variables).collect();
        for (title, output) in [
            ("python -m torch.utils.collect_env", &self.collect_env),
            ("ds_report", &self.ds_report),
            ("env of the trainer", &self.trainer_env),
        ] {
            if let Some(output) = output {
                text += &format!("\n{title}\n{}\n{}\n", "-".repeat(title.len()), output.trim_end());
            }
        }
        text
    }
}

/// Converts the names of facts to owned strings.
fn named<const N: usize>(facts: [(&str, String); N]) -> [(String, String); N] {
    facts.map(|(name, value)| (name.to_owned(), value))
}

fn said(fact: &PythonAttempt<String>) -> String {
    match fact {
        PythonAttempt::Value(value) => value.clone(),
        PythonAttempt::Problem(problem) => format!("no ({problem})"),
    }
}

fn said_list(fact: &PythonAttempt<Vec<String>>) -> String {
    match fact {
        PythonAttempt::Value(values) if values.is_empty() => "none".to_owned(),
        PythonAttempt::Value(values) => values.join(", "),
        PythonAttempt::Problem(problem) => format!("no ({problem})"),
    }
}

/// A note if the interpreter has other versions of the packages than the ranks had; `None` if the versions agree.
fn another(python: &PythonFacts, report: &Report) -> Option<String> {
    let differs = |package: &EnginePackage| {
        let then = report.run.versions.get(package.module);
        then.is_some_and(|then| python.version(package).value() != Some(then))
    };
    let other: Vec<&str> =
        engines::packages().filter(differs).map(|package| package.module).collect();
    (!other.is_empty())
        .then(|| format!("this interpreter's {} differs from that of the run", other.join(" and ")))
}

/// The standard output of an interpreter, or the reason why there is none.
fn output(interpreter: &Path, arguments: &[&str], limit: Duration) -> String {
    let mut command = crate::python::command(interpreter);
    command
        .args(arguments)
        // Without this variable DeepSpeed first looks for a compiler on a machine without a GPU.
        .env("DS_ACCELERATOR", std::env::var("DS_ACCELERATOR").unwrap_or("cpu".to_owned()))
        .env("NO_COLOR", "1");
    match output_within(&mut command, limit) {
        Ok(Some(output)) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            anstream::adapter::strip_str(&text).to_string()
        }
        Ok(Some(output)) => {
            let words = String::from_utf8_lossy(&output.stderr);
            format!("failed: {}", words.lines().last().unwrap_or("no error message"))
        }
        Ok(None) => format!("no answer within {} s", limit.as_secs()),
        Err(cause) => format!("does not start: {cause}"),
    }
}
