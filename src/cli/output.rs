//! Reports handed out: on standard output, as files, and as the summary of a CI's job.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::builder::BoolishValueParser;
use zprobe_diagnose::rules;
use zprobe_lab::console::{self, Verbosity, columns};
use zprobe_lab::secrets;
use zprobe_model::trace::Trace;
use zprobe_report::document::Surroundings;
use zprobe_report::render::{html, render_suite, render_suite_within, render_within};
use zprobe_report::suite::Suite;
use zprobe_report::{Exit, Form, Report};

use super::config;

/// The variable that names the file of GitHub Actions for the summary of a job.
const SUMMARY: &str = "GITHUB_STEP_SUMMARY";

/// Flags that say how to hand out the report on a run.
#[derive(clap::Args)]
pub struct Output {
    /// Form of the report on standard output [default: brief; with --verbose full]
    #[arg(long, value_name = "FORMAT", env = "ZPROBE_OUTPUT_FORMAT")]
    output_format: Option<Form>,

    /// Also write report.json to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_JSON")]
    export_json: Option<PathBuf>,

    /// Also write the report as one HTML page to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_HTML")]
    export_html: Option<PathBuf>,

    #[command(flatten)]
    exports: Exports,

    /// Exit with 0 whatever the verdict; errors that kept anything from running still exit with 2
    #[arg(long, env = "ZPROBE_EXIT_ZERO", value_parser = BoolishValueParser::new())]
    exit_zero: bool,
}

/// Hints beside a report at what else can be run.
#[derive(Default)]
pub struct Hints {
    /// A hint at an engine of the user's.
    pub own_engine: Option<String>,
    /// The command that makes the run again here; otherwise the one that the report has.
    pub again: Option<String>,
}

impl Output {
    /// Form of the report on standard output.
    fn form(&self) -> Form {
        let usual = if Verbosity::get().verbose { Form::Full } else { Form::Brief };
        self.output_format.unwrap_or(usual)
    }

    /// True if the report is a screen for reading, which has room for hints.
    pub fn has_hints(&self) -> bool {
        self.form() == Form::Brief
    }

    /// Prints the report on the run that is recorded in a directory, exports it, and turns its verdict into an
    /// exit code.
    pub fn hand_out(
        &self,
        report: &Report,
        trace: &Trace,
        run_dir: &Path,
        hints: &Hints,
    ) -> Result<Exit> {
        let again = hints.again.as_deref();
        let suite = || {
            // A word that is no Unicode is shown as well as it can be.
            let words = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned());
            let command = ["zprobe".to_owned()].into_iter().chain(words).collect::<Vec<_>>();
            let typed = || shlex::try_join(command.iter().map(String::as_str)).unwrap_or_default();
            let command = again.or(report.run.command.as_deref()).map_or_else(typed, str::to_owned);
            secrets::without(Suite::of_run(report, command, config::FILE.to_owned(), page))
        };
        let run_dir = run_dir.display().to_string();
        let around = Surroundings {
            run_dir: Some(&run_dir),
            own_engine: hints.own_engine.as_deref(),
            again,
            page: Some(page),
        };
        let text = render_within(report, self.form(), columns(), &around, suite)?;
        print(&text, self.form(), suite)?;
        if let Some(path) = &self.export_json {
            write(path, &report.to_json()?)?;
        }
        if self.exports.any() {
            self.exports.write(&suite()?)?;
        }
        if let Some(path) = &self.export_html {
            fs::write(path, html(report, trace, &page)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(if self.exit_zero { Exit::Clean } else { report.exit() })
    }
}

/// The documentation of a rule.
pub fn page(code: &str) -> Option<&'static str> {
    rules::find(code).map(|rule| rule.doc)
}

/// Files to write beside the report on standard output.
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
    /// True if there is a file to write.
    fn any(&self) -> bool {
        self.export_junit.is_some() || self.export_sarif.is_some()
    }

    /// Writes the files.
    pub fn write(&self, suite: &Suite) -> Result<()> {
        for (path, form) in [(&self.export_junit, Form::Junit), (&self.export_sarif, Form::Sarif)] {
            if let Some(path) = path {
                write(path, &render_suite(suite, form)?)?;
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

/// Prints a suite.
pub fn print_suite(suite: &Suite, form: Form) -> Result<()> {
    print(&render_suite_within(suite, form, columns())?, form, || Ok(suite.clone()))
}

/// Prints a document in this form. Annotations of GitHub Actions go with a summary of the job, where it wants
/// one.
fn print(text: &str, form: Form, suite: impl FnOnce() -> Result<Suite>) -> Result<()> {
    if form != Form::Github {
        return console::print(text);
    }
    console::commands(text)?;
    if let Some(path) = std::env::var_os(SUMMARY).map(PathBuf::from) {
        let summary = render_suite(&suite()?, Form::Markdown)?;
        let file = OpenOptions::new().append(true).create(true).open(&path);
        file.and_then(|mut file| file.write_all(summary.as_bytes()))
            .with_context(|| format!("{SUMMARY}: cannot write {}", path.display()))?;
    }
    Ok(())
}
