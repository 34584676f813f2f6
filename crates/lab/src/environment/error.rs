//! Errors of providing an environment.

use std::io;
use std::path::PathBuf;

/// Error that prevented an environment from being provided.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// There is no directory for the cache.
    #[error("no cache directory: {cause}; set ZPROBE_CACHE_DIR to a directory")]
    NoCache {
        /// Reason, in words.
        cause: String,
    },
    /// A file or directory of the cache cannot be used.
    #[error(
        "cannot write {path}: {cause}; set ZPROBE_CACHE_DIR to a directory with room for some \
         gigabytes"
    )]
    Cache {
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// No interpreter fits, and there is no uv to fetch one.
    #[error(
        "no Python {versions} on PATH, which these packages need; install one of them, or uv \
         (`pip install uv`), which fetches one"
    )]
    NoPython {
        /// The versions that would do.
        versions: String,
    },
    /// A tool cannot be started.
    #[error("cannot start {program}: {cause}")]
    NoTool {
        /// The program.
        program: String,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The package index does not say which releases there are.
    #[error("no releases of {package} are known: {said}; check the name and the network")]
    NoReleases {
        /// The package.
        package: String,
        /// Last error of the tool.
        said: String,
    },
    /// The recipe, which holds the facts about releases, cannot be read.
    #[error("crates/lab/src/environment/recipe.toml, as built into this program: {0}")]
    Recipe(Box<toml::de::Error>),
    /// A tool failed.
    #[error(transparent)]
    Failed(Box<Failure>),
}

/// A tool that failed.
#[derive(Debug, thiserror::Error)]
#[error(
    "{packages}: {step} failed ({status}). It ended with:\n{tail}\n{advice} All of its output is \
     in {log}"
)]
pub struct Failure {
    /// Packages that were to be installed.
    pub packages: String,
    /// Step that failed.
    pub step: String,
    /// Exit status of the tool.
    pub status: String,
    /// Last lines of the tool's output.
    pub tail: String,
    /// Advice for the user.
    pub advice: &'static str,
    /// Log with all of the tool's output.
    pub log: PathBuf,
}
