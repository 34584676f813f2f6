//! The user's machine: its programs, and the environment variables of the set-up.

pub mod apt;
mod compiler;
#[cfg(test)]
pub mod fake;

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

pub use compiler::Compiler;

/// The environment variables that decide the set-up.
pub struct Host {
    /// The value of `PATH`.
    path: OsString,
    /// The value of `CXX`.
    cxx: Option<OsString>,
    /// The value of `LIBTORCH`.
    pub libtorch: Option<OsString>,
    /// True if `LIBTORCH_USE_PYTORCH` is set, and not to `0`.
    pub libtorch_use_pytorch: bool,
    /// The value of `ZPROBE_TEST_CHROMIUM`.
    pub chromium: Option<OsString>,
}

impl Host {
    /// Reads the host from the environment of this process.
    pub fn from_env() -> Self {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        Self {
            path: env::var_os("PATH").unwrap_or_default(),
            cxx: set("CXX"),
            libtorch: set("LIBTORCH"),
            libtorch_use_pytorch: set("LIBTORCH_USE_PYTORCH").is_some_and(|value| value != "0"),
            chromium: set("ZPROBE_TEST_CHROMIUM"),
        }
    }

    /// A command for a program of this machine.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        // The program itself is looked up in this `PATH`, too.
        command.env("PATH", &self.path);
        command
    }

    /// Returns true if this machine has a program of this name.
    pub fn has(&self, program: impl AsRef<OsStr>) -> bool {
        // As in a shell, a name with a slash is a path.
        let program = Path::new(program.as_ref());
        if program.components().count() > 1 {
            return is_executable(program);
        }
        env::split_paths(&self.path).any(|dir| is_executable(&dir.join(program)))
    }
}

/// Returns true if the path is a file that may be executed.
fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
