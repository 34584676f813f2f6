//! The one way out: everything that zprobe writes to standard output, standard error or a line of progress.
//!
//! What goes out here may hold text of strangers. So it is made visible on the way, and no line of it is a
//! command to the CI that keeps it; only zprobe's own styles pass. `clippy.toml` forbids every other way.

#![expect(clippy::disallowed_methods, reason = "this is where they are allowed")]

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;
use zprobe::report::render::WIDTH;
use zprobe::visible;

use super::USAGE;

/// Columns for text on standard output: those of the terminal, or what `COLUMNS` says, but no more
/// than reads well, and no fewer than tables take.
pub fn columns() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal =
        || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    said.or_else(terminal).unwrap_or(WIDTH).clamp(40, WIDTH)
}

/// Writes a document to standard output, with zprobe's own styles where colours are wanted.
pub fn print(text: &str) -> Result<()> {
    written(anstream::stdout().lock(), &visible::terminal(text))
}

/// Writes a document without styles to standard output: what looks like one in it is somebody else's.
pub fn plain(text: &str) -> Result<()> {
    print(&visible::text(text))
}

/// Writes commands of a CI to standard output, which a renderer has made.
pub fn commands(text: &str) -> Result<()> {
    written(anstream::stdout().lock(), &visible::text(text))
}

/// Writes an answer to another zprobe, which reads standard output.
pub fn answer(line: &str) -> Result<()> {
    written(io::stdout().lock(), &format!("{line}\n"))
}

fn written(mut stdout: impl Write, text: &str) -> Result<()> {
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // Whoever reads has seen enough (`| head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// Writes to standard error. Where that cannot be written to, nobody is there to be told so.
fn said(text: &str) {
    let mut stderr = anstream::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Tells people something on standard error.
pub fn note(text: &str) {
    said(&format!("{}\n", visible::terminal(&visible::text(text))));
}

/// Says what keeps a command from its work.
pub fn error(text: &str) {
    let style = anstyle::AnsiColor::Red.on_default().bold();
    let text = format!("error: {}", visible::text(text));
    let text = visible::terminal(&text).replacen("error:", &format!("{style}error:{style:#}"), 1);
    said(&format!("{text}\n"));
}

/// Says what clap has to say, be it help or what is wrong with a command line.
pub fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().ansi().to_string();
    let text = visible::terminal(&text);
    if error.use_stderr() {
        said(&text);
        return USAGE.into();
    }
    match print(&text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => USAGE.into(),
    }
}

/// Shows something in a line of progress.
pub fn message(line: &ProgressBar, text: &str) {
    line.set_message(visible::text(text).replace('\n', " "));
}
