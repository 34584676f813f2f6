//! Progress of work that has many parts, in one line.

use std::fmt::Display;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::{Verbosity, error, say};
use zprobe_model::visible;

/// Time between two pictures of a spinner.
const TICK: Duration = Duration::from_millis(100);

/// Time between two pictures of a line that counts seconds.
const SECOND: Duration = Duration::from_secs(1);

/// Lines of progress on standard error; hidden where that is no terminal, and with `--quiet`.
pub(super) fn lines() -> MultiProgress {
    let lines = MultiProgress::new();
    if Verbosity::get().quiet {
        lines.set_draw_target(ProgressDrawTarget::hidden());
    }
    lines
}

/// A line of progress of this style, at the end of the others.
pub(super) fn line(lines: &MultiProgress, length: usize, template: &str) -> ProgressBar {
    let line = lines.add(ProgressBar::new(length as u64));
    if let Ok(style) = ProgressStyle::with_template(template) {
        line.set_style(style.progress_chars("=> ").with_key("since", since));
    }
    line
}

/// Writes the whole seconds of a line: as many columns as a day has digits, and nothing for less than one.
fn since(state: &ProgressState, to: &mut dyn std::fmt::Write) {
    let _ = match state.elapsed().as_secs() {
        0 => write!(to, "{:7}", ""),
        seconds => write!(to, "{seconds:5} s"),
    };
}

/// Has the seconds of a line go on.
pub(super) fn tick(line: &ProgressBar) {
    line.enable_steady_tick(SECOND);
}

/// Has the spinner of a line turn.
pub(super) fn turn(line: &ProgressBar) {
    line.enable_steady_tick(TICK);
}

/// Shows text in a line of progress.
pub(super) fn message(line: &ProgressBar, text: &str) {
    line.set_message(visible::text(text).replace('\n', " "));
}

/// A line of progress on a terminal, which is gone when this is.
#[derive(Debug)]
pub struct Line(ProgressBar);

impl Line {
    /// A line that counts so many parts.
    pub fn counter(parts: usize) -> Self {
        Self::new(parts, "{spinner} {since} [{pos}/{len}] {wide_msg}")
    }

    /// A line for steps that nobody counts.
    pub fn steps() -> Self {
        Self::new(0, "{spinner} {since} {wide_msg}")
    }

    /// A line for steps that take long, with the seconds since the last one began.
    pub fn timed() -> Self {
        Self::new(0, "{spinner} {msg} {elapsed}")
    }

    /// A line that nobody sees.
    pub fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    fn new(length: usize, template: &str) -> Self {
        let line = line(&lines(), length, template);
        turn(&line);
        Self(line)
    }

    /// Shows the present part on a terminal.
    pub fn show(&self, text: &str) {
        message(&self.0, text);
    }

    /// Shows a step on a terminal that begins now.
    pub fn begin(&self, text: &str) {
        self.0.reset_elapsed();
        self.show(text);
    }

    /// Shows the present step on a terminal, and says it in a log.
    pub fn step(&self, text: &str) {
        if self.is_hidden() { say(text) } else { self.show(text) }
    }

    /// True where nobody sees the line.
    pub fn is_hidden(&self) -> bool {
        self.0.is_hidden()
    }

    /// Counts a part that is done.
    pub fn advance(&self) {
        self.0.inc(1);
    }

    /// Says something above the line.
    pub fn say(&self, text: impl Display) {
        self.0.suspend(|| say(text));
    }

    /// Says an error above the line.
    pub fn error(&self, text: &str) {
        self.0.suspend(|| error(text));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
