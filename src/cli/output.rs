//! Writes reports: to standard output, to files, and to the job summary of GitHub Actions.

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
use zprobe_report::{Exit, Form, OwnWords, Report};

use super::config;

/// The environment variable with the path of the file for the job summary of GitHub Actions.
const SUMMARY: &str = "GITHUB_STEP_SUMMARY";

/// The flags for the form and the files of a run's report.
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

    /// Exit with 0 whatever the verdict; if nothing could run, the exit code is still 2
    #[arg(long, env = "ZPROBE_EXIT_ZERO", value_parser = BoolishValueParser::new())]
    exit_zero: bool,
}

/// The hints in a report at further commands.
#[derive(Default)]
pub struct Hints {
    /// The sentence with the command that runs the user's own engine; only after a run of zprobe's engine.
    pub own_engine: Option<String>,
    /// The command that repeats the run on this machine; if `None`, the report's own command is shown.
    pub again: Option<String>,
}

impl Output {
    /// The form of the report on standard output: full with `--verbose`, else brief, unless a flag names a form.
    fn form(&self) -> Form {
        let usual = if Verbosity::get().verbose { Form::Full } else { Form::Brief };
        self.output_format.unwrap_or(usual)
    }

    /// True if the report is in the brief form, which shows hints.
    pub fn has_hints(&self) -> bool {
        self.form() == Form::Brief
    }

    /// Prints the report of the run in `run_dir`, writes the exports, and returns the exit code for the verdict.
    pub fn hand_out(
        &self,
        report: &Report,
        trace: &Trace,
        run_dir: &Path,
        hints: &Hints,
    ) -> Result<Exit> {
        let again = hints.again.as_deref();
        let suite = || {
            // Invalid Unicode in a word is shown as replacement characters.
            let words = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned());
            let command = ["zprobe".to_owned()].into_iter().chain(words).collect::<Vec<_>>();
            let typed = || shlex::try_join(command.iter().map(String::as_str)).unwrap_or_default();
            let command = again.or(report.run.command.as_deref()).map_or_else(typed, str::to_owned);
            secrets::without(Suite::of_run(report, command, config::FILE.to_owned(), page))
        };
        let run_dir = run_dir.display().to_string();
        let words = OwnWords::of(trace);
        let around = Surroundings {
            run_dir: Some(&run_dir),
            own_engine: hints.own_engine.as_deref(),
            again,
            page: Some(page),
            words: Some(&words),
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

/// The documentation page of a rule, by the code of the rule.
pub fn page(code: &str) -> Option<&'static str> {
    rules::find(code).map(|rule| rule.doc)
}

/// The flags for JUnit and SARIF files, written in addition to the report on standard output.
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
    /// True if a JUnit or SARIF file is asked for.
    fn any(&self) -> bool {
        self.export_junit.is_some() || self.export_sarif.is_some()
    }

    /// Writes the JUnit and SARIF files that are asked for.
    pub fn write(&self, suite: &Suite) -> Result<()> {
        for (path, form) in [(&self.export_junit, Form::Junit), (&self.export_sarif, Form::Sarif)] {
            if let Some(path) = path {
                write(path, &render_suite(suite, form)?)?;
            }
        }
        Ok(())
    }
}

/// Writes a file, and creates its directory if that is missing.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    dir.map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Prints the report of a suite on standard output.
pub fn print_suite(suite: &Suite, form: Form) -> Result<()> {
    print(&render_suite_within(suite, form, columns())?, form, || Ok(suite.clone()))
}

/// Prints a rendered document. With GitHub annotations, a Markdown summary is appended to the job summary file
/// if `GITHUB_STEP_SUMMARY` is set.
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
