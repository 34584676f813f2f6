//! The terminal: everything that zprobe writes to standard output, standard error or a line of progress.
//!
//! Text of strangers may be in it. So it is made visible on the way, and no line of it is a command to the
//! CI that keeps the log; only zprobe's own styles pass. `clippy.toml` forbids every other way out.

#![expect(clippy::disallowed_methods, reason = "this is where they are allowed")]

mod links;
mod progress;
mod ranks;
mod standing;
mod verbosity;

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;

use anyhow::{Context as _, Result};

use self::links::Stream;
pub use self::progress::Line;
pub use self::ranks::RankProgress;
pub use self::verbosity::Verbosity;
use zprobe_model::visible;
use zprobe_report::render::WIDTH;

/// Colours on standard output and standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Colour {
    /// On a terminal, unless variables say otherwise.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Chooses the colours of this process. `NO_COLOR` weighs more than `FORCE_COLOR`, as in Python, and the flag
/// more than both.
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

/// Columns for text on standard output: those of the terminal, or the number in `COLUMNS`, but no more
/// than reads well, and no fewer than tables take.
pub fn columns() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal =
        || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    said.or_else(terminal).unwrap_or(WIDTH).clamp(40, WIDTH)
}

/// Columns of the terminal on standard output; none where there is no terminal, but a program that may look at each
/// line by itself.
pub fn terminal_columns() -> Option<usize> {
    io::stdout().is_terminal().then(columns)
}

/// Writes a document to standard output, with zprobe's own styles where colours are wanted.
pub fn print(text: &str) -> Result<()> {
    let text = visible::terminal(text);
    written(anstream::stdout().lock(), &links::addresses(&text, Stream::Stdout))
}

/// Writes a document without styles to standard output: any style in it is somebody else's.
pub fn plain(text: &str) -> Result<()> {
    print(&visible::text(text))
}

/// Writes a renderer's commands to a CI to standard output.
pub fn commands(text: &str) -> Result<()> {
    written(anstream::stdout().lock(), &visible::text(text))
}

/// Writes an answer to another zprobe, which reads standard output.
pub fn answer(line: &str) -> Result<()> {
    written(io::stdout().lock(), &format!("{line}\n"))
}

fn written(mut stdout: impl Write, text: &str) -> Result<()> {
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // The reader has seen enough (`| head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// Writes to standard error. Where that cannot be written to, nobody is there to be told so.
fn said(text: &str) {
    let mut stderr = anstream::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Tells people on standard error something that is neither data nor an error; nothing with `--quiet`.
pub fn say(text: impl Display) {
    if !Verbosity::get().quiet {
        said(&format!("{}\n", visible::terminal(&visible::text(&text.to_string()))));
    }
}

/// Tells people on a terminal something while another program writes there, too: the line that this one has begun, such
/// as a bar of progress, makes way, and comes again.
fn say_between(text: &str) {
    said(&format!("\r\x1b[Kzprobe: {}\n", visible::terminal(&visible::text(text))));
}

/// Tells people on standard error in which directory something is recorded; nothing with `--quiet`.
pub fn say_recorded(dir: &Path) {
    if !Verbosity::get().quiet {
        said(&format!("recorded in {}\n", links::directory(dir, Stream::Stderr)));
    }
}

/// Tells people on standard error why a command cannot do its work.
pub fn error(text: &str) {
    let style = anstyle::AnsiColor::Red.on_default().bold();
    let text = format!("error: {}", visible::text(text));
    let text = visible::terminal(&text).replacen("error:", &format!("{style}error:{style:#}"), 1);
    said(&format!("{text}\n"));
}

/// Shows clap's help, or clap's complaint about a command line. The result is true if help was wanted and
/// shown.
pub fn usage(error: &clap::Error) -> bool {
    let text = error.render().ansi().to_string();
    let text = visible::terminal(&text);
    if error.use_stderr() {
        said(&text);
        return false;
    }
    print(&text).is_ok()
}
