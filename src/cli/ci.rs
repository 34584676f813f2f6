//! Reports for a CI: suites as files, and the summary of a job.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use zprobe::report::render::suite::{SuiteFormat, render, render_within};
use zprobe::report::suite::Suite;

use super::console;

/// Where GitHub Actions takes the summary of a job from.
const SUMMARY: &str = "GITHUB_STEP_SUMMARY";

/// Files to write beside what goes to standard output.
#[derive(Debug, clap::Args)]
pub struct Exports {
    /// Also write JUnit XML to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_JUNIT")]
    export_junit: Option<PathBuf>,

    /// Also write SARIF 2.1.0 to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_SARIF")]
    export_sarif: Option<PathBuf>,
}

impl Exports {
    /// Whether there is anything to write.
    pub fn any(&self) -> bool {
        self.export_junit.is_some() || self.export_sarif.is_some()
    }

    /// Writes them.
    pub fn write(&self, suite: &Suite) -> Result<()> {
        for (path, format) in
            [(&self.export_junit, SuiteFormat::Junit), (&self.export_sarif, SuiteFormat::Sarif)]
        {
            if let Some(path) = path {
                write(path, &render(suite, format)?)?;
            }
        }
        Ok(())
    }
}

/// Writes a file, into a directory that is made if it is not there.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    dir.map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Prints a suite. Annotations of GitHub Actions go with a summary of the job, where it wants one.
pub fn print(suite: &Suite, format: SuiteFormat) -> Result<()> {
    let text = render_within(suite, format, super::columns())?;
    match format {
        SuiteFormat::Github => console::commands(&text)?,
        _ => console::print(&text)?,
    }
    if let (SuiteFormat::Github, Some(path)) = (format, std::env::var_os(SUMMARY)) {
        let path = PathBuf::from(path);
        let summary = render(suite, SuiteFormat::Markdown)?;
        let file = OpenOptions::new().append(true).create(true).open(&path);
        file.and_then(|mut file| file.write_all(summary.as_bytes()))
            .with_context(|| format!("{SUMMARY}: cannot write {}", path.display()))?;
    }
    Ok(())
}
