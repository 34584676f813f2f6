//! The tools that make environments: venv and pip, or uv in place of both if it is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::recipe::Stage;

/// The tool that makes virtual environments and installs packages into them.
///
/// uv takes the same requirements as pip. It shares the files of a package between environments, and fetches an
/// interpreter if no installed one fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installer {
    /// The path of uv; `None` for the standard library's venv and the pip that venv installs.
    pub uv: Option<PathBuf>,
}

impl Installer {
    /// Chooses uv if it is on `PATH`, and pip otherwise.
    pub fn find() -> Self {
        Self { uv: which::which("uv").ok() }
    }

    /// The command that makes an empty environment at `dir` with one of the versions `pythons`; `None` if this
    /// machine has none of them and the tool cannot fetch an interpreter.
    pub fn create(&self, dir: &Path, pythons: &[String]) -> Option<Command> {
        let installed = pythons.iter().find_map(|version| interpreter(version));
        // In place of a path, uv also takes a version, whose interpreter it fetches.
        let version = self.uv.as_ref().and_then(|_| pythons.first());
        let python = installed.or_else(|| version.map(PathBuf::from))?;
        Some(self.create_with(dir, &python))
    }

    /// The command that makes an empty environment at `dir` with the interpreter `python`.
    pub fn create_with(&self, dir: &Path, python: &Path) -> Command {
        let mut command = self.command(&["venv"], python);
        // Without the flag, uv reads the project file of a directory above the cache.
        command.args(self.uv.as_ref().map(|_| "--no-project")).arg(dir);
        command
    }

    /// The command that lists the releases of a package, with its pre-releases if `pre`, as `pip index
    /// versions` does.
    pub fn list(&self, package: &str, pre: bool) -> Command {
        let (program, pip) = match &self.uv {
            Some(uv) => (uv.as_path(), ["tool", "run", "pip"].as_slice()),
            None => (Path::new("python3"), ["-m", "pip"].as_slice()),
        };
        let mut command = Command::new(program);
        command.args(pip).args(["index", "versions", package]).args(pre.then_some("--pre"));
        command
    }

    /// The command that installs a stage into the environment whose interpreter is `python`.
    pub fn install(&self, python: &Path, stage: &Stage) -> Command {
        let mut command = self.command(&["pip", "install"], python);
        command.args(stage.from_source.then_some("--no-build-isolation")).args(&stage.requirements);
        // As pip does by itself, uv must compile: without bytecode every start of an interpreter that imports torch
        // takes twice as long, and containers often set PYTHONDONTWRITEBYTECODE.
        command.env("UV_COMPILE_BYTECODE", "1").env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        command.envs(&stage.variables);
        command
    }

    /// A command of uv for the interpreter `python`, or the module of `python` with the same name and arguments.
    fn command(&self, words: &[&str], python: &Path) -> Command {
        let mut command = Command::new(self.uv.as_deref().unwrap_or(python));
        match &self.uv {
            Some(_) => command.args(words).arg("--python").arg(python),
            None => command.arg("-m").args(words),
        };
        command
    }
}

/// An interpreter of the given version (`3.11`) on `PATH` that starts: a version manager also puts shims on `PATH`
/// for versions that are not installed.
fn interpreter(version: &str) -> Option<PathBuf> {
    let names = [format!("python{version}"), "python3".to_owned()];
    names.iter().filter_map(|name| which::which(name).ok()).find(|program| {
        let asked = Command::new(program)
            .args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
            .stdin(Stdio::null())
            .output();
        asked.is_ok_and(|output| {
            output.status.success() && String::from_utf8_lossy(&output.stdout).trim() == version
        })
    })
}
