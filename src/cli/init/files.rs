//! The contents of the files that `zprobe init` writes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use zprobe_lab::check::probe::Probe;
use zprobe_lab::environment::{Plan, Stage};
use zprobe_model::document::Document;
use zprobe_model::spec::Engine;
use zprobe_zoo::Packages;

use crate::cli::config;

/// The file in which most projects list their dependencies.
pub const REQUIREMENTS: &str = "requirements.txt";

/// The path of the workflow for GitHub Actions.
const WORKFLOW: &str = ".github/workflows/zprobe.yml";

/// The files that `zprobe init` always writes.
pub const ALWAYS: [&str; 2] = [config::FILE, WORKFLOW];

/// The path of the configuration file of pre-commit.
pub const HOOK: &str = ".pre-commit-config.yaml";

/// The workflow as a template, with words in capitals as placeholders for the values of a project.
const TEMPLATE: &str = include_str!("workflow.yml");

/// The facts about a project that its generated files depend on.
pub struct Gate {
    /// The engines that the gate checks.
    pub engines: Vec<Engine>,
    /// The installed packages with their versions, which the workflow installs, too.
    pub packages: Packages,
    /// The version of the interpreter, for example `3.11.7`.
    pub python_version: String,
    /// The path of the interpreter; `None` unless `--python` names one inside of the project.
    pub python: Option<String>,
    /// The DeepSpeed files of the project; each becomes a probe.
    pub configurations: Vec<ConfigurationProbe>,
    /// The training script of `--script`, which becomes a probe, too.
    pub script: Option<ScriptProbe>,
    /// True if the project has a `requirements.txt`.
    pub requirements: bool,
}

/// A DeepSpeed file of the user, and the probe that runs it.
pub struct ConfigurationProbe {
    /// The engine that runs the DeepSpeed file.
    pub engine: Engine,
    /// The path of the DeepSpeed file.
    pub file: String,
    /// The path of the probe's TOML file.
    pub probe: String,
}

impl ConfigurationProbe {
    /// Names the probe of a DeepSpeed file after the file, and differently from the probes of the `others`.
    pub fn new(engine: Engine, file: String, others: &[Self]) -> Self {
        let probe = free_path(file.strip_suffix(".json").unwrap_or(&file), others);
        Self { engine, file, probe }
    }

    fn text(&self) -> String {
        let Self { engine, file, .. } = self;
        format!(
            "description = {}\nengines = [\"{engine}\"]\n\n[run]\ndeepspeed-config = {}\n",
            quoted(&format!("Our {file}")),
            quoted(&format!("../{file}")),
        )
    }
}

/// The path of a new probe that is named after `name`, and differently from the probes of the `others`.
fn free_path(name: &str, others: &[ConfigurationProbe]) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let stem: String = name.chars().map(plain).collect();
    let numbered = (2..).map(|number| format!("probes/{stem}-{number}.toml"));
    let mut paths = std::iter::once(format!("probes/{stem}.toml")).chain(numbered);
    let is_free = |path: &String| others.iter().all(|other| other.probe != *path);
    paths.find(is_free).unwrap_or_else(|| unreachable!("numbers do not end"))
}

/// A training script of the user, and the probe that runs it.
pub struct ScriptProbe {
    /// The path of the probe's TOML file.
    path: String,
    /// The content of the probe's TOML file.
    text: String,
}

impl ScriptProbe {
    /// The probe of the script that this command starts, named after the Python file of the command.
    ///
    /// # Errors
    /// Fails if the command cannot be split into words, or if its Python file does not exist.
    pub fn new(command: &str, others: &[ConfigurationProbe]) -> Result<Self> {
        let words = shlex::split(command).unwrap_or_default();
        // A word of a shell's own command, or a flag with a Python file, does not name the script.
        let is_file = |word: &&String| {
            word.ends_with(".py") && !word.starts_with('-') && !word.contains([' ', '='])
        };
        let file = words.iter().find(is_file);
        let name = file.map_or("script", |file| file.trim_end_matches(".py"));
        let path = free_path(name.trim_start_matches("./"), others);
        let text = format!(
            "description = {}\n\n# The command runs where `zprobe check` runs, under `zprobe exec`; its flags are further \
             keys.\n[exec]\ncommand = {}\n",
            quoted(&format!("Our {}", file.map_or("training script", String::as_str))),
            quoted(command),
        );
        Probe::read(Document { file: path.clone(), text: text.clone() })
            .map_err(|complaint| anyhow!("--script: {}", complaint.problem))?;
        if let Some(file) = file.filter(|file| !Path::new(file).is_file()) {
            bail!("--script: there is no file {file}; name the script as seen from this directory");
        }
        Ok(Self { path, text })
    }
}

impl Gate {
    /// All files of the gate but the hook of pre-commit: paths and contents.
    ///
    /// # Errors
    /// Fails if zprobe's recipe for environments is wrong, which a release's recipe never is.
    pub fn files(&self) -> Result<Vec<(String, String)>> {
        let mut files = vec![(config::FILE.to_owned(), self.configuration())];
        files.extend(self.configurations.iter().map(|own| (own.probe.clone(), own.text())));
        files.extend(self.script.iter().map(|own| (own.path.clone(), own.text.clone())));
        files.push((WORKFLOW.to_owned(), self.workflow()?));
        Ok(files)
    }

    fn configuration(&self) -> String {
        let engines = list(self.engines.iter().map(|engine| engine.name().to_owned()));
        let own = self.configurations.iter().map(|own| &own.probe);
        let own: Vec<String> =
            own.chain(self.script.iter().map(|own| &own.path)).cloned().collect();
        let engines = match (&self.configurations[..], &self.script) {
            // The script chooses its engine itself.
            ([], Some(_)) => String::new(),
            _ => format!(
                "# The check fails if one of these engines is not installed.\nengine = {engines}\n"
            ),
        };
        let script = match &self.script {
            Some(_) => "",
            None => {
                "# A probe of your own training script has [exec] (docs/gate-it-in-ci.md, \"Your own script\").\n"
            }
        };
        let probes = match &own[..] {
            [] => "# Your own probes, in place of the standard suite (docs/gate-it-in-ci.md):\n\
                   # probes = [\"probes\"]\n"
                .to_owned(),
            own => format!(
                "# Without this key the standard suite runs.\n\
                 probes = {}\n",
                list(own.iter().cloned())
            ),
        };
        let python = match &self.python {
            Some(path) => format!("python = {}\n", quoted(path)),
            None => "# The default is VIRTUAL_ENV, CONDA_PREFIX, .venv, or python3 on PATH:\n\
                     # python = \".venv\"\n"
                .to_owned(),
        };
        let engine = self.engines.first().map_or("", |engine| engine.name());
        let own = self.configurations.first();
        let own = own
            .map_or_else(String::new, |own| format!("deepspeed-config = {}\n", quoted(&own.file)));
        let same = self.python.as_ref().map_or("", |_| &python);
        format!(
            "# Keys are the long names of flags (`zprobe check --help`, `zprobe run --help`). Flags win.\n\n\
             [check]\n{probes}{script}{engines}{python}\
             # Findings that are accepted until they expire; --write-baseline makes the file.\n\
             # baseline = \"zprobe-baseline.toml\"\n\n[run]\nengine = \"{engine}\"\n{own}{same}"
        )
    }

    fn workflow(&self) -> Result<String> {
        let version = self.python_version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
        let cached = match self.requirements {
            true => format!("'{REQUIREMENTS}', '{WORKFLOW}'"),
            false => format!("'{WORKFLOW}'"),
        };
        let text = TEMPLATE
            .replace("ZPROBE_VERSION", env!("CARGO_PKG_VERSION"))
            .replace("PYTHON_VERSION", &version)
            .replace("CACHED", &cached);
        Ok(text.replace("INSTALL", &self.install()?.join("\n            ")))
    }

    /// The commands that install the engines as `zprobe provision` does; the last one installs `requirements.txt` if
    /// the project has it.
    fn install(&self) -> Result<Vec<String>> {
        let plan = Plan::new(&self.packages).context("the recipe for environments is wrong")?;
        let pip = |from_source: bool, variables: &BTreeMap<String, String>, what: &str| {
            let variables = variables.iter().map(|(name, value)| format!("{name}={value} "));
            let flag = if from_source { " --no-build-isolation" } else { "" };
            format!("{}.venv/bin/pip install{flag} {what}", variables.collect::<String>())
        };
        let named = |stages: &[Stage]| -> Vec<String> {
            let line = |stage: &Stage| {
                pip(stage.from_source, &stage.variables, &stage.requirements.join(" "))
            };
            stages.iter().map(line).collect()
        };
        if !self.requirements {
            return Ok(named(&plan.stages));
        }
        let (built, wheels): (Vec<_>, Vec<_>) =
            plan.stages.into_iter().partition(|stage| stage.from_source);
        let variables = built.iter().flat_map(|stage| stage.variables.clone()).collect();
        let rest = pip(!built.is_empty(), &variables, &format!("-r {REQUIREMENTS}"));
        Ok(named(&wheels).into_iter().chain([rest]).collect())
    }
}

/// The path and the content of a pre-commit configuration, whose hook starts the `zprobe` on `PATH`.
pub fn pre_commit() -> (String, String) {
    let text = "repos:\n  - repo: local\n    hooks:\n      - id: zprobe-check\n        name: zprobe check\n        \
                entry: zprobe check --output-format concise\n        language: system\n        files: \
                (^|/)(zprobe(-baseline)?\\.toml|pyproject\\.toml|requirements.*\\.txt|probes/.*\\.toml)$\n        \
                pass_filenames: false\n        require_serial: true\n";
    (HOOK.to_owned(), text.to_owned())
}

/// A string in TOML syntax.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// An array of strings in TOML syntax.
fn list(words: impl Iterator<Item = String>) -> String {
    toml::Value::from(words.collect::<Vec<_>>()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gate of a project with DeepSpeed and a `requirements.txt`.
    fn sample() -> Gate {
        let packages = [("torch", "2.11.0"), ("deepspeed", "0.19.8")];
        let packages = packages.map(|(name, version)| (name.to_owned(), version.parse().unwrap()));
        Gate {
            engines: vec![Engine::DeepSpeed],
            packages: packages.into_iter().collect(),
            python_version: "3.11.7".to_owned(),
            python: None,
            configurations: Vec::new(),
            script: None,
            requirements: true,
        }
    }

    /// After a change of the template, `ZPROBE_BLESS=1 cargo test --bin zprobe` updates the sample.
    #[test]
    fn the_sample_workflow_is_one_that_init_writes() {
        let sample = sample().workflow().unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/ci/github-actions.yml");
        if std::env::var_os("ZPROBE_BLESS").is_some() {
            std::fs::write(path, &sample).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), sample, "{path} is out of date");
    }

    #[test]
    fn files_with_similar_names_have_probes_of_their_own() {
        let mut own: Vec<ConfigurationProbe> = Vec::new();
        for file in ["conf/a.json", "conf-a.json", "conf a.json", "b.json"] {
            own.push(ConfigurationProbe::new(Engine::DeepSpeed, file.to_owned(), &own));
        }
        let probes: Vec<&str> = own.iter().map(|own| own.probe.as_str()).collect();
        let expected =
            ["probes/conf-a.toml", "probes/conf-a-2.toml", "probes/conf-a-3.toml", "probes/b.toml"];
        assert_eq!(probes, expected);
    }

    #[test]
    fn the_hook_that_init_writes_runs_when_that_of_the_repository_does() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/.pre-commit-hooks.yaml");
        let hooks = std::fs::read_to_string(path).unwrap();
        let (_, own) = pre_commit();
        for key in ["id: ", "entry: ", "files: ", "pass_filenames: ", "require_serial: "] {
            let line = |text: &str| {
                let line = text.lines().find_map(|line| line.split_once(key));
                line.map(|(_, value)| value.to_owned())
            };
            assert_eq!(line(&own), line(&hooks), "{key}");
            assert!(line(&own).is_some(), "{key}");
        }
    }
}
