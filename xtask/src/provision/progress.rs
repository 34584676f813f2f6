//! Lines, bars and spinners that show progress.
//!
//! Lines are printed everywhere; bars and spinners are shown only on terminals, which indicatif recognises.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The time between two updates of the display.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// A bar for this number of bytes.
pub fn bytes(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec}")
        .expect("the template is valid");
    ProgressBar::new(total).with_style(style)
}

/// A spinner for work of unknown length.
pub fn spinner(message: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message);
    spinner.enable_steady_tick(INTERVAL);
    spinner
}
