//! Provides the environments of all cases, with progress on standard error.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar};
use zprobe::environment::{Cache, Installer, Packages};

use super::rows::Case;
use crate::cli::{console, verbosity};

/// The interpreter of each environment, or why there is none.
pub type Environments<'a> = BTreeMap<&'a Packages, Result<PathBuf, String>>;

/// Provides them one after the other: the network and the disk are the limit, not the processor.
/// One that cannot be made is a failure of its cases only.
pub fn provide<'a>(
    cache: &Cache,
    cases: &[Case<'a>],
    progress: &MultiProgress,
) -> Environments<'a> {
    let installer = Installer::find();
    let mut environments = Environments::new();
    for case in cases {
        let packages = &case.release.packages;
        if packages.is_empty() || environments.contains_key(packages) {
            continue;
        }
        let line = progress.add(ProgressBar::new_spinner());
        line.enable_steady_tick(Duration::from_millis(100));
        let python = cache.provide(packages, &installer, &mut |step| {
            say(progress, &line, &format!("{packages}: {step}"));
        });
        line.finish_and_clear();
        let python = python.map_err(|error| {
            progress.suspend(|| console::error(&error.to_string()));
            error.to_string()
        });
        environments.insert(packages, python);
    }
    environments
}

/// Shows a step: in the line where there is a terminal, as a line of its own where there is none.
pub fn say(progress: &MultiProgress, line: &ProgressBar, text: &str) {
    if progress.is_hidden() {
        verbosity::say(text);
    } else {
        console::message(line, text);
    }
}
