//! Writes reports: to standard output, to files, and to the job summary of GitHub Actions.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueHint;
use clap::builder::BoolishValueParser;
use zprobe_diagnose::rules;
use zprobe_lab::console::{self, Verbosity, columns};
use zprobe_lab::recorded::reported;
use zprobe_lab::{secrets, tensorboard};
use zprobe_model::trace::Trace;
use zprobe_report::document::Surroundings;
use zprobe_report::render::{
    html, render_suite, render_suite_within, render_within, suite_html, tensorboard as events,
    trace_events,
};
use zprobe_report::suite::{Case, Suite};
use zprobe_report::{Exit, Form, OwnWords, Report};

use super::config;
use super::interpreter::Python;

/// The environment variable with the path of the file for the job summary of GitHub Actions.
const SUMMARY: &str = "GITHUB_STEP_SUMMARY";

/// The flags for the form and the files of a run's report.
#[derive(clap::Args)]
pub struct Output {
    /// Form of the report on standard output [default: brief; with --verbose full]
    #[arg(long, value_name = "FORMAT", env = "ZPROBE_OUTPUT_FORMAT")]
    output_format: Option<Form>,

    /// Also write report.json to this file; - is standard output
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_JSON")]
    export_json: Option<PathBuf>,

    /// Also write the report as one HTML page to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_HTML")]
    export_html: Option<PathBuf>,

    /// Also write the times of the run as Chrome trace events, for ui.perfetto.dev, to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_TRACE")]
    export_trace: Option<PathBuf>,

    /// Also write norms, losses and weight matrices as TensorBoard events below this directory
    #[arg(
        long,
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        env = "ZPROBE_EXPORT_TENSORBOARD"
    )]
    export_tensorboard: Option<PathBuf>,

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

    /// Refuses exports that could not be written, before anything runs. `python` has the package for TensorBoard.
    pub fn refuse_unwritable(&self, python: &Python) -> Result<()> {
        refuse_unwritable(self.files())?;
        let Some(dir) = &self.export_tensorboard else { return Ok(()) };
        let flag = "--export-tensorboard";
        let named = || format!("{flag} {}", dir.display());
        ensure!(!is_stdout(dir), "{flag} -: events need a directory, not standard output");
        ensure!(!dir.is_file(), "{}: this is a file; name a directory", named());
        refuse_missing(flag, dir)?;
        python.choose().must_have_package(tensorboard::PACKAGE).with_context(named)
    }

    /// The files of the exports, each with its flag.
    fn files(&self) -> impl Iterator<Item = ExportFile<'_>> {
        let own = [
            ("--export-json", self.export_json.as_deref()),
            ("--export-html", self.export_html.as_deref()),
            ("--export-trace", self.export_trace.as_deref()),
        ];
        own.into_iter().chain(self.exports.files())
    }

    /// Prints the report of the run in `run_dir`, writes the exports, with `python` those for TensorBoard, and returns the exit code for the verdict.
    pub fn hand_out(
        &self,
        report: &Report,
        trace: &Trace,
        run_dir: &Path,
        python: &Python,
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
        let run = run_dir.file_name();
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
        if self.files().any(|(_, path)| path.is_some_and(is_stdout)) {
            console::say(text.trim_end());
        } else {
            print(&text, self.form(), suite)?;
        }
        if let Some(path) = &self.export_json {
            write(path, &report.to_json()?)?;
        }
        if self.exports.any() {
            self.exports.write(&suite()?)?;
        }
        if let Some(path) = &self.export_html {
            write(path, &html(report, trace, &page)?)?;
        }
        if let Some(path) = &self.export_trace {
            write(path, &trace_events(report, trace)?)?;
            if !is_stdout(path) {
                console::say(format_args!(
                    "next: open {} in https://ui.perfetto.dev",
                    path.display()
                ));
            }
        }
        if let Some(dir) = &self.export_tensorboard {
            // TensorBoard shows each directory as a run.
            let own = run.map_or_else(|| dir.clone(), |run| dir.join(run));
            tensorboard::write(&python.choose().path, &events(report, trace)?, &own)?;
            console::say(format_args!("next: tensorboard --logdir {}", dir.display()));
        }
        Ok(if self.exit_zero { Exit::Clean } else { report.exit() })
    }

    /// Prints the report of a recorded check, writes the exports, and returns the exit code of the check.
    pub fn hand_out_suite(&self, suite: &Suite) -> Result<Exit> {
        ensure!(
            self.export_trace.is_none() && self.export_tensorboard.is_none(),
            "--export-trace and --export-tensorboard are about one run; name a run of the check (`zprobe list runs`)"
        );
        print_suite(suite, self.form(), self.files())?;
        let (json, html) = (self.export_json.as_deref(), self.export_html.as_deref());
        export_suite(suite, json, html, &self.exports)?;
        Ok(if self.exit_zero { Exit::Clean } else { suite.exit() })
    }
}

/// Writes the exports of a suite: JSON and the page, if their files are given, JUnit and SARIF.
pub fn export_suite(
    suite: &Suite,
    json: Option<&Path>,
    html: Option<&Path>,
    exports: &Exports,
) -> Result<()> {
    if let Some(path) = json {
        write(path, &suite.to_json()?)?;
    }
    exports.write(suite)?;
    if let Some(path) = html {
        let report = |case: &Case| case.report_dir().map(reported).transpose();
        write(path, &suite_html(suite, report)?)?;
    }
    Ok(())
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

/// The flag of an export, and its file if the flag is given.
pub type ExportFile<'a> = (&'static str, Option<&'a Path>);

impl Exports {
    /// The files of the exports, each with its flag.
    pub fn files(&self) -> [ExportFile<'_>; 2] {
        [
            ("--export-junit", self.export_junit.as_deref()),
            ("--export-sarif", self.export_sarif.as_deref()),
        ]
    }

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

/// True if the path of an export stands for standard output.
pub fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Refuses exports whose directory is missing, exports in place of a directory, and two exports on standard output.
///
/// # Errors
/// When an export could not be written after the run.
pub fn refuse_unwritable<'a>(files: impl IntoIterator<Item = ExportFile<'a>>) -> Result<()> {
    let mut on_stdout = None;
    for (flag, path) in files {
        let Some(path) = path else { continue };
        if is_stdout(path) {
            if let Some(other) = on_stdout.replace(flag) {
                bail!("{other} - and {flag} -: only one export can be written to standard output");
            }
            continue;
        }
        refuse_missing(flag, path)?;
        ensure!(
            !path.is_dir(),
            "{flag} {}: this is a directory; name a file in it",
            path.display()
        );
    }
    Ok(())
}

/// Refuses an export whose directory is missing.
fn refuse_missing(flag: &str, path: &Path) -> Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
        let (path, dir) = (path.display(), dir.display());
        bail!("{flag} {path}: there is no directory {dir}; make it first, or name another one");
    }
    Ok(())
}

/// Writes an export to its file, or to standard output.
pub fn write(path: &Path, text: &str) -> Result<()> {
    if is_stdout(path) {
        return console::commands(text);
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Prints the report of a suite on standard output; on standard error if an export takes standard output.
pub fn print_suite<'a>(
    suite: &Suite,
    form: Form,
    files: impl IntoIterator<Item = ExportFile<'a>>,
) -> Result<()> {
    if files.into_iter().any(|(_, path)| path.is_some_and(is_stdout)) {
        console::say(render_suite_within(suite, form, columns())?.trim_end());
        return Ok(());
    }
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
