//! Directories to install into, and commands in these directories.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::interpreter;

/// The variables that choose an interpreter or configure zprobe; all are removed from the environment of a
/// command.
const UNSET: [&str; 5] =
    ["VIRTUAL_ENV", "CONDA_PREFIX", "ZPROBE_PYTHON", "LIBTORCH", "LD_LIBRARY_PATH"];

/// The directory that `cargo xtask dist` has filled.
pub fn dist() -> PathBuf {
    std::env::var_os("ZPROBE_TEST_DIST")
        .expect("ZPROBE_TEST_DIST names the directory that `cargo xtask dist` prints")
        .into()
}

/// The only file or directory whose name begins and ends with these texts.
pub fn file(dir: &Path, start: &str, end: &str) -> PathBuf {
    let names = fs::read_dir(dir).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
    let found: Vec<_> = names.filter(|it| it.starts_with(start) && it.ends_with(end)).collect();
    assert_eq!(found.len(), 1, "{start}*{end} in {}: {found:?}", dir.display());
    dir.join(&found[0])
}

/// The exit code, standard output and standard error of a command.
pub fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A new directory for a test, on the file system of the environment under test.
pub struct Place(TempDir);

impl Place {
    /// Makes a new directory for a test.
    pub fn new() -> Self {
        let environment = Environment::under_test();
        Self(tempfile::tempdir_in(environment.0.ancestors().nth(2).unwrap()).unwrap())
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A command whose working directory is this one, without an active environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.path()).env("ZPROBE_DEVICE", "cpu");
        for name in UNSET {
            command.env_remove(name);
        }
        command
    }

    /// A new, empty virtual environment below this directory.
    pub fn new_environment(&self, name: &str) -> Environment {
        let path = self.path().join(name);
        let mut uv = self.command("uv");
        let python = interpreter::python();
        let (code, _, said) = output(uv.args(["venv", "--python"]).arg(python).arg(&path));
        assert_eq!(code, Some(0), "{said}");
        Environment(path)
    }

    /// A copy of the environment under test, made of hard links to the same files: an installation never
    /// writes into an existing file.
    pub fn copy_of_the_environment(&self) -> Environment {
        let path = self.path().join("with-torch");
        let mut cp = self.command("cp");
        let from = Environment::under_test();
        let (code, _, said) = output(cp.args(["--archive", "--link"]).arg(from.0).arg(&path));
        assert_eq!(code, Some(0), "{said}");
        Environment(path)
    }
}

/// A virtual environment.
pub struct Environment(PathBuf);

impl Environment {
    /// The environment of the interpreter under test.
    pub fn under_test() -> Self {
        Self(interpreter::python().ancestors().nth(2).unwrap().to_owned())
    }

    /// The path of the environment.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Installs the wheels whose names begin with these texts, and nothing from an index.
    pub fn install(&self, wheels: &[&str]) {
        let mut uv = Command::new("uv");
        uv.args(["pip", "install", "--no-index", "--python"]).arg(&self.0);
        let (code, _, said) =
            output(uv.args(wheels.iter().map(|start| file(&dist(), start, "_x86_64.whl"))));
        assert_eq!(code, Some(0), "{said}");
    }

    /// The command of the zprobe that is installed in this environment.
    pub fn zprobe(&self, place: &Place) -> Command {
        place.command(self.0.join("bin/zprobe"))
    }
}
