//! Amount of text on standard error, beside errors.

use std::sync::OnceLock;

use clap::builder::BoolishValueParser;

/// Flags of every command.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Verbosity {
    /// Say what every rank does and logs, as plain lines on standard error
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "quiet",
        env = "ZPROBE_VERBOSE",
        value_parser = BoolishValueParser::new()
    )]
    pub verbose: bool,

    /// Say nothing on standard error but errors
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
    /// Makes these the flags of this process, if none are yet.
    pub fn install(self) {
        let _ = FLAGS.set(self);
    }

    /// The flags of this process.
    pub fn get() -> Self {
        FLAGS.get().copied().unwrap_or_default()
    }
}
