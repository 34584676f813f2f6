//! Errors of providing a Python environment.

use std::io;
use std::path::PathBuf;

/// An error that prevented an environment from being provided.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// No directory for the cache of environments is known.
    #[error("no cache directory: {cause}; set ZPROBE_CACHE_DIR to a directory")]
    NoCache {
        /// The reason, in words.
        cause: String,
    },
    /// A file or directory of the cache cannot be used.
    #[error(
        "cannot write {path}: {cause}; set ZPROBE_CACHE_DIR to a directory with room for some \
         gigabytes"
    )]
    Cache {
        /// The path of the file or directory.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// No installed Python fits, and there is no uv to fetch one.
    #[error(
        "no Python {versions} on PATH, which these packages need; install one of them, or uv \
         (`pip install uv`), which fetches one"
    )]
    NoPython {
        /// The versions of Python that the packages accept, in words.
        versions: String,
    },
    /// A tool, such as pip or uv, cannot be started.
    #[error("cannot start {program}: {cause}")]
    NoTool {
        /// The name or path of the tool.
        program: String,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The package index listed no releases of a package.
    #[error("cannot list the releases of {package}: {reason}; check the name and the network")]
    NoReleases {
        /// The name of the package.
        package: String,
        /// The last error that the tool printed.
        reason: String,
    },
    /// The recipe cannot be parsed; it holds the facts about releases.
    #[error("crates/lab/src/environment/recipe.toml, as built into this program: {0}")]
    Recipe(Box<toml::de::Error>),
    /// A tool, such as pip or uv, exited with a failure.
    #[error(transparent)]
    Failed(Box<ToolFailure>),
}

/// The failure of a tool (an interpreter, pip or uv) that was to make an environment.
#[derive(Debug, thiserror::Error)]
#[error(
    "{packages}: {step} failed ({status}). It ended with:\n{tail}\n{advice} All of its output is \
     in {log}"
)]
pub struct ToolFailure {
    /// The packages that were to be installed.
    pub packages: String,
    /// The step that failed, for example `importing torch`.
    pub step: String,
    /// The exit status of the tool.
    pub status: String,
    /// The last lines of the tool's output.
    pub tail: String,
    /// The advice to the user.
    pub advice: &'static str,
    /// The path of the log with all of the tool's output.
    pub log: PathBuf,
}
