//! The tools that make environments: uv where there is one, otherwise venv and pip.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::recipe::Stage;

/// A tool that makes virtual environments and installs packages into them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installer {
    /// uv, which is fast and fetches an interpreter where no installed one fits.
    Uv {
        /// The path of uv.
        program: PathBuf,
    },
    /// The standard library's venv, and the pip that venv installs.
    Pip,
}

impl Installer {
    /// Chooses uv if it is on `PATH`, and pip otherwise.
    pub fn find() -> Self {
        match which::which("uv") {
            Ok(program) => Self::Uv { program },
            Err(_) => Self::Pip,
        }
    }

    /// The name of the tool.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Uv { .. } => "uv",
            Self::Pip => "pip",
        }
    }

    /// The command that makes an empty environment at `dir` with one of the versions `pythons`; `None` if this
    /// machine has none of them and the tool cannot fetch an interpreter.
    pub fn create(&self, dir: &Path, pythons: &[String]) -> Option<Command> {
        match (pythons.iter().find_map(|version| interpreter(version)), self) {
            (Some(python), _) => Some(self.create_with(dir, &python)),
            (None, Self::Uv { program }) => {
                let mut command = Command::new(program);
                command.args(["venv", "--no-project", "--python"]).args(pythons.first()).arg(dir);
                Some(command)
            }
            (None, Self::Pip) => None,
        }
    }

    /// The command that makes an empty environment at `dir` with the interpreter `python`.
    pub fn create_with(&self, dir: &Path, python: &Path) -> Command {
        match self {
            Self::Uv { program } => {
                let mut command = Command::new(program);
                command.args(["venv", "--no-project", "--python"]).arg(python).arg(dir);
                command
            }
            Self::Pip => {
                let mut command = Command::new(python);
                command.args(["-m", "venv"]).arg(dir);
                command
            }
        }
    }

    /// The command that lists the releases of a package, with its pre-releases if `pre`, as `pip index
    /// versions` does.
    pub fn list(&self, package: &str, pre: bool) -> Command {
        let mut command = match self {
            Self::Uv { program } => {
                let mut command = Command::new(program);
                command.args(["tool", "run", "pip"]);
                command
            }
            Self::Pip => {
                let mut command = Command::new("python3");
                command.args(["-m", "pip"]);
                command
            }
        };
        command.args(["index", "versions", package]).args(pre.then_some("--pre"));
        command
    }

    /// The command that installs a stage into the environment whose interpreter is `python`.
    pub fn install(&self, python: &Path, stage: &Stage) -> Command {
        let mut command = match self {
            Self::Uv { program } => {
                let mut command = Command::new(program);
                // Containers often set PYTHONDONTWRITEBYTECODE: without bytecode every start of an interpreter that
                // imports torch takes twice as long.
                command.args(["pip", "install", "--compile-bytecode", "--python"]).arg(python);
                command
            }
            Self::Pip => {
                let mut command = Command::new(python);
                command.args(["-m", "pip", "install", "--disable-pip-version-check"]);
                command
            }
        };
        if stage.from_source {
            command.arg("--no-build-isolation");
        }
        command.args(&stage.requirements).envs(&stage.variables);
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
