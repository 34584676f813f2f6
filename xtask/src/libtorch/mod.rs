//! The libtorch to build against, either the user's or a private one, and the environment that gives it to
//! cargo.

mod external;
pub mod layout;
mod version;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::host::{Compiler, Host};
use crate::provision;
use crate::workspace;

/// The release that the crate `tch` is made for, and that is provisioned.
pub const VERSION: &str = "2.11.0";

/// The variables that torch-sys reads. If a value differs from that of the last build, torch-sys is compiled
/// again, which takes minutes.
const TORCH_SYS_VARIABLES: [&str; 7] = [
    "LIBTORCH",
    "LIBTORCH_BYPASS_VERSION_CHECK",
    "LIBTORCH_CXX11_ABI",
    "LIBTORCH_INCLUDE",
    "LIBTORCH_LIB",
    "LIBTORCH_STATIC",
    "LIBTORCH_USE_PYTORCH",
];

/// A checked libtorch to build against, and the compiler for the build.
pub struct Libtorch {
    dir: PathBuf,
    cxx: Option<OsString>,
}

impl Libtorch {
    /// Finds the user's own libtorch if the environment names one; otherwise makes the private one ready.
    pub fn locate(host: &Host) -> Result<Self> {
        let compiler = Compiler::find(host)?;
        let dir = match external::named(host)? {
            Some(dir) => dir,
            None => provision::ensure(host, &compiler, &workspace::target_dir()?)?,
        };
        Ok(Self { dir, cxx: compiler.cxx() })
    }

    /// The directory that holds `lib` and `include`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes a cargo command build against this libtorch, always with the same environment.
    pub fn apply(&self, mut command: Command) -> Command {
        for name in TORCH_SYS_VARIABLES {
            command.env_remove(name);
        }
        command.env("LIBTORCH", &self.dir);
        if let Some(cxx) = &self.cxx {
            command.env("CXX", cxx);
        }
        command
    }
}
