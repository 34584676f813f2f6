//! The console: all output of zprobe to standard output, to standard error and to progress lines.
//!
//! Output may contain untrusted text. Therefore hidden characters in all output are made visible, no line of it can act
//! as a command to a CI that keeps the log, and only zprobe's own styles pass. `clippy.toml` forbids all other output.

#![expect(clippy::disallowed_methods, reason = "this is where they are allowed")]

mod links;
mod progress;
mod ranks;
mod states;
mod verbosity;

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;

use anyhow::{Context as _, Result};

use self::links::Stream;
pub use self::progress::ProgressLine;
pub use self::ranks::RankProgress;
pub use self::verbosity::Verbosity;
use zprobe_model::visible;
use zprobe_report::render::WIDTH;

/// Colours of the text on standard output and standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Colour {
    /// Only on a terminal, unless environment variables say otherwise.
    Auto,
    /// Always use colours.
    Always,
    /// Never use colours.
    Never,
}

/// Sets the use of colours in this process. `NO_COLOR` overrides `FORCE_COLOR`, as in Python, and the flag overrides
/// both variables.
pub fn colour(chosen: Colour) {
    let is_set = |name| std::env::var(name).is_ok_and(|value| !value.is_empty() && value != "0");
    let choice = match chosen {
        Colour::Always => anstream::ColorChoice::Always,
        Colour::Never => anstream::ColorChoice::Never,
        Colour::Auto if is_set("FORCE_COLOR") && !is_set("NO_COLOR") => {
            anstream::ColorChoice::Always
        }
        Colour::Auto => anstream::ColorChoice::Auto,
    };
    choice.write_global();
}

/// The width of text on standard output, in columns: the number in `COLUMNS`, or the width of the terminal. At most
/// [`WIDTH`], which reads well, and at least 40, which tables need.
pub fn columns() -> usize {
    let variable = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal =
        || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    variable.or_else(terminal).unwrap_or(WIDTH).clamp(40, WIDTH)
}

/// The width of the terminal on standard output, in columns; `None` if standard output is not a terminal, because a
/// program may read its lines one by one.
pub fn terminal_columns() -> Option<usize> {
    io::stdout().is_terminal().then(columns)
}

/// Writes a document to standard output, with zprobe's own styles if colours are in use.
pub fn print(text: &str) -> Result<()> {
    let text = visible::terminal(text);
    written(anstream::stdout().lock(), &links::addresses(&text, Stream::Stdout))
}

/// Writes a document without styles to standard output; any style in the text is not zprobe's own, and is removed.
pub fn plain(text: &str) -> Result<()> {
    print(&visible::text(text))
}

/// Writes the CI commands of a renderer to standard output.
pub fn commands(text: &str) -> Result<()> {
    written(anstream::stdout().lock(), &visible::text(text))
}

/// Writes an answer to standard output, which another zprobe process reads.
pub fn answer(line: &str) -> Result<()> {
    written(io::stdout().lock(), &format!("{line}\n"))
}

fn written(mut stdout: impl Write, text: &str) -> Result<()> {
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // The reader has closed the pipe (`| head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// Writes to standard error. A failure to write is ignored, because it could not be reported.
fn write_stderr(text: &str) {
    let mut stderr = anstream::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Writes a message that is neither data nor an error to standard error; with `--quiet`, writes nothing.
pub fn say(text: impl Display) {
    if !Verbosity::get().quiet {
        write_stderr(&format!("{}\n", visible::terminal(&visible::text(&text.to_string()))));
    }
}

/// Writes a message to a terminal to which another program writes, too. An unfinished line of that program, such as a
/// progress bar, is cleared, and the program draws it again.
fn say_between(text: &str) {
    write_stderr(&format!("\r\x1b[Kzprobe: {}\n", visible::terminal(&visible::text(text))));
}

/// Writes to standard error in which directory a run is recorded; with `--quiet`, writes nothing.
pub fn say_recorded(dir: &Path) {
    if !Verbosity::get().quiet {
        write_stderr(&format!("recorded in {}\n", links::directory(dir, Stream::Stderr)));
    }
}

/// Writes an error message to standard error.
pub fn error(text: &str) {
    let style = anstyle::AnsiColor::Red.on_default().bold();
    let text = format!("error: {}", visible::text(text));
    let text = visible::terminal(&text).replacen("error:", &format!("{style}error:{style:#}"), 1);
    write_stderr(&format!("{text}\n"));
}

/// Shows clap's help, or clap's error about a command line. Returns true if help was requested and shown.
pub fn usage(error: &clap::Error) -> bool {
    let text = error.render().ansi().to_string();
    let text = visible::terminal(&text);
    if error.use_stderr() {
        write_stderr(&text);
        return false;
    }
    print(&text).is_ok()
}
