//! The amount of text on standard error, in addition to errors.

use std::sync::OnceLock;

use clap::builder::BoolishValueParser;

/// The flags `--verbose` and `--quiet`, which every command has.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Verbosity {
    /// Show everything: full reports, whole lists, and the logs of the ranks
    ///
    /// The actions and logs of every rank are printed as plain lines on standard error.
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "quiet",
        env = "ZPROBE_VERBOSE",
        value_parser = BoolishValueParser::new()
    )]
    pub verbose: bool,

    /// Print only errors on standard error
    #[arg(
        short,
        long,
        global = true,
        env = "ZPROBE_QUIET",
        value_parser = BoolishValueParser::new()
    )]
    pub quiet: bool,
}

/// The flags of this process.
static FLAGS: OnceLock<Verbosity> = OnceLock::new();

impl Verbosity {
    /// Makes these the flags of this process, if no flags are installed yet.
    pub fn install(self) {
        let _ = FLAGS.set(self);
    }

    /// The flags of this process.
    pub fn get() -> Self {
        FLAGS.get().copied().unwrap_or_default()
    }
}
