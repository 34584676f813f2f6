//! The progress line of a task with many parts.

use std::fmt::Display;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::{Verbosity, error, say};
use zprobe_model::visible;

/// The time between two frames of a spinner.
const TICK: Duration = Duration::from_millis(100);

/// The time between two updates of a line that counts seconds.
const SECOND: Duration = Duration::from_secs(1);

/// The progress lines on standard error; hidden if standard error is not a terminal, and with `--quiet`.
pub(super) fn lines() -> MultiProgress {
    let lines = MultiProgress::new();
    if Verbosity::get().quiet {
        lines.set_draw_target(ProgressDrawTarget::hidden());
    }
    lines
}

/// Adds a progress line with this template after the other lines.
pub(super) fn line(lines: &MultiProgress, length: usize, template: &str) -> ProgressBar {
    let line = lines.add(ProgressBar::new(length as u64));
    if let Ok(style) = ProgressStyle::with_template(template) {
        line.set_style(style.progress_chars("=> ").with_key("since", since));
    }
    line
}

/// Writes the whole seconds that a line has been shown, right-aligned in five columns, enough for a day; writes blanks
/// before the first second is over.
fn since(state: &ProgressState, to: &mut dyn std::fmt::Write) {
    let _ = match state.elapsed().as_secs() {
        0 => write!(to, "{:7}", ""),
        seconds => write!(to, "{seconds:5} s"),
    };
}

/// Updates the seconds of a line regularly.
pub(super) fn tick(line: &ProgressBar) {
    line.enable_steady_tick(SECOND);
}

/// Turns the spinner of a line regularly.
pub(super) fn turn(line: &ProgressBar) {
    line.enable_steady_tick(TICK);
}

/// Shows text in a progress line, without hidden characters and line feeds.
pub(super) fn message(line: &ProgressBar, text: &str) {
    line.set_message(visible::text(text).replace('\n', " "));
}

/// A progress line on a terminal, which is cleared when this value is dropped.
#[derive(Debug)]
pub struct ProgressLine(ProgressBar);

impl ProgressLine {
    /// A line that counts up to this number of parts.
    pub fn counter(parts: usize) -> Self {
        Self::new(parts, "{spinner} {since} [{pos}/{len}] {wide_msg}")
    }

    /// A line for an unknown number of steps.
    pub fn steps() -> Self {
        Self::new(0, "{spinner} {since} {wide_msg}")
    }

    /// A line for long steps, with the seconds since the current step began.
    pub fn timed() -> Self {
        Self::new(0, "{spinner} {msg} {elapsed}")
    }

    /// A line that is never shown.
    pub fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    fn new(length: usize, template: &str) -> Self {
        let line = line(&lines(), length, template);
        turn(&line);
        Self(line)
    }

    /// Shows the current part on a terminal.
    pub fn show(&self, text: &str) {
        message(&self.0, text);
    }

    /// Shows a step that begins now, and restarts the count of its seconds.
    pub fn begin(&self, text: &str) {
        self.0.reset_elapsed();
        self.show(text);
    }

    /// Shows the current step: in this line on a terminal, or as a message in a log.
    pub fn step(&self, text: &str) {
        if self.is_hidden() { say(text) } else { self.show(text) }
    }

    /// True if the line is not shown.
    pub fn is_hidden(&self) -> bool {
        self.0.is_hidden()
    }

    /// Counts one more part as done.
    pub fn advance(&self) {
        self.0.inc(1);
    }

    /// Writes a message above the line.
    pub fn say(&self, text: impl Display) {
        self.0.suspend(|| say(text));
    }

    /// Writes an error message above the line.
    pub fn error(&self, text: &str) {
        self.0.suspend(|| error(text));
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
