//! How much is said on standard error, beside errors.

use std::fmt::Display;
use std::sync::OnceLock;

use clap::builder::BoolishValueParser;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};

use super::console;

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

/// Tells people something that is neither data nor an error.
pub fn say(text: impl Display) {
    if !Verbosity::get().quiet {
        console::note(&text.to_string());
    }
}

/// A spinner, which nobody sees where nothing is to be said.
pub fn spinner() -> ProgressBar {
    lines().add(ProgressBar::new_spinner())
}

/// A bar of this length, which nobody sees where nothing is to be said.
pub fn bar(length: u64) -> ProgressBar {
    lines().add(ProgressBar::new(length))
}

/// Lines of progress, which nobody sees where nothing is to be said.
pub fn lines() -> MultiProgress {
    let lines = MultiProgress::new();
    if Verbosity::get().quiet {
        lines.set_draw_target(ProgressDrawTarget::hidden());
    }
    lines
}
