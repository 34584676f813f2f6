//! Why an environment could not be provided.

use std::io;
use std::path::PathBuf;

/// Why an environment could not be provided.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// There is no place for it.
    #[error("no cache directory: {cause}; set ZPROBE_CACHE_DIR to a directory")]
    NoCache {
        /// What the system said.
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
        /// What the system said.
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
        /// What the system said.
        cause: io::Error,
    },
    /// What zprobe knows about releases cannot be read.
    #[error("src/environment/recipe.toml, as built into this program: {0}")]
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
    /// What was to be installed.
    pub packages: String,
    /// What was being done.
    pub step: String,
    /// How the tool ended.
    pub status: String,
    /// The end of what it printed.
    pub tail: String,
    /// What to do.
    pub advice: &'static str,
    /// Where everything it printed stands.
    pub log: PathBuf,
}
