//! The attachment of a bug report: everything about a run that a maintainer needs, and nothing private.
//!
//! [`Attachment::new`] makes the entries from a run directory, its report and the facts about the machine. One
//! [`Redactor`] learns the private texts from all of these sources before any entry is made. [`archive`] packs the
//! entries into a zip.

pub mod archive;
mod entries;
mod environment;
mod history;
mod issue;
pub mod logs;
mod own_text;
pub mod repro;
mod title;
mod trace;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};

pub use entries::kinds;
pub use environment::Environment;
pub use history::{Bisection, History};

use zprobe_engines as engines;
pub use zprobe_engines::Project;
use zprobe_model::spec::Command;
use zprobe_model::visible::Visible;
use zprobe_redact::{Kind, Known, Private, Redactor};
use zprobe_report::{CONFIG_FILE, Repeats, Report};

/// The maximum number of characters that GitHub accepts as the text of an issue.
pub const MOST_BODY: usize = 65_536;

/// The maximum number of bytes that GitHub accepts as an attachment.
pub const MOST_ATTACHMENT: usize = 25_000_000;

/// The name of the script that shows the bug without zprobe.
pub const SCRIPT_FILE: &str = "repro.py";

/// The error when redaction breaks the format of the data, so that they cannot be parsed again.
const TOO_COMMON: &str = "a word that the report's format needs is also a user name, a host name or a secret on this machine";

/// The sources from which an attachment is made.
pub struct AttachmentSource<'a> {
    /// The directory of the run.
    pub run_dir: &'a Path,
    /// The report on the run.
    pub report: &'a Report,
    /// The facts about the machine and the interpreter.
    pub environment: &'a Environment,
    /// The private names and values, which must not be in the attachment.
    pub private: &'a Private,
    /// The project whose headings the bug report has; `None` for the trainer's or the engine's own project.
    pub project: Option<Project>,
    /// The releases that have the bug, as far as they are known.
    pub history: &'a History,
    /// The maximum size of the trace in bytes, before compression.
    pub max_trace_size: u64,
    /// True if the attachment also has the user's own text: the logs, the ranks' words, free text of the configuration,
    /// and the values of environment variables.
    pub with_logs: bool,
    /// The documentation of a rule, in Markdown, by its code.
    pub explain: fn(&str) -> Option<&'static str>,
}

/// A file of the attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentEntry {
    /// The path of the file inside the zip.
    pub path: String,
    /// The description of the file for the manifest.
    pub about: String,
    /// The content of the file.
    pub text: String,
}

/// The files of a bug report, and the title and the text of its issue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The title of the issue.
    pub title: String,
    /// The text of the issue, in Markdown.
    pub body: String,
    /// The project that the issue is for.
    pub project: Project,
    /// True if the attachment has a script that shows the bug without zprobe.
    pub has_script: bool,
    /// The files of the attachment, the manifest first.
    pub entries: Vec<AttachmentEntry>,
    /// The number of redactions, by kind.
    pub redacted: BTreeMap<Kind, usize>,
    /// The user's own texts that the attachment does not have; empty if it has all of them.
    pub left_out: Vec<String>,
}

/// The redacted data from which all entries are made.
struct Material {
    report: Report,
    /// A copy of the report for people, in which control characters are visible.
    shown: Visible<Report>,
    project: Project,
    history: History,
    title: String,
    command: Option<Command>,
    script: Result<String, String>,
    environment: Environment,
    trace: trace::Cut,
    explain: fn(&str) -> Option<&'static str>,
    logs: Vec<logs::Tail>,
    left_out: Vec<String>,
}

impl Attachment {
    /// Redacts all sources and makes the entries of the attachment.
    ///
    /// # Errors
    /// Fails if the trace or a log cannot be read, or if redaction breaks the report's format.
    pub fn new(source: &AttachmentSource<'_>) -> Result<Self> {
        let run_dir = source.run_dir;
        let unreadable = || format!("cannot read all of {}", run_dir.display());
        let logs = logs::tails(run_dir).with_context(unreadable)?;
        let mut known = Known::default();
        let mut has_words = false;
        trace::each_record(run_dir, |record| {
            known.record(record);
            has_words |= own_text::has_words(&record.event);
        })
        .with_context(unreadable)?;
        known.json(&serde_json::to_value(source.report)?);
        known.text(&source.environment.text());
        logs.iter().for_each(|tail| known.text(&tail.text));
        known.json(&serde_json::to_value(source.history)?);

        let redactor = Redactor::of_everything(source.private, &known);
        let mut report = serde_json::to_value(source.report)?;
        let mut left_out = Vec::new();
        if !source.with_logs {
            let spec = report.pointer_mut("/run/spec");
            let has_texts = spec.is_some_and(own_text::leave_out_of_specification);
            left_out = texts(source, &logs, has_words, has_texts);
        }
        redactor.json(&mut report);
        let report: Report = serde_json::from_value(report).context(TOO_COMMON)?;
        let project = own_project(&report, source.project);
        let history = redactor.data(source.history).context(TOO_COMMON)?;
        let shown = Visible::of(&report)?;
        let title = title::title(&shown, project, &history);
        let material = Material {
            command: report.command(),
            script: repro::script(&report, &title),
            shown,
            project,
            history,
            title,
            environment: source.environment.redacted(&redactor, source.with_logs),
            trace: trace::cut(run_dir, source.max_trace_size, &redactor, source.with_logs)
                .with_context(unreadable)?,
            explain: source.explain,
            logs: logs
                .into_iter()
                .filter(|_| source.with_logs)
                .map(|tail| tail.redacted(&redactor))
                .collect(),
            left_out,
            report,
        };
        let redacted = redactor.counts();
        let body = issue::text(&material)?;
        let mut entries = entries::all(&material, &body)?;
        entries.insert(0, entries::manifest(&entries, &redacted, &material));
        Ok(Self {
            has_script: material.script.is_ok(),
            title: material.title,
            body,
            project,
            entries,
            redacted,
            left_out: material.left_out,
        })
    }
}

/// The project that an issue is for: the `chosen` one, otherwise that of the trainer of a script, otherwise the engine's.
pub fn own_project(report: &Report, chosen: Option<Project>) -> Project {
    let spec = &report.run.spec;
    let trainer = || spec.script().and_then(|_| Project::of_trainer(&report.run.versions));
    chosen.or_else(trainer).unwrap_or(engines::of(spec.engine()).project)
}

/// The user's own texts that an attachment without logs does not have.
fn texts(
    source: &AttachmentSource<'_>,
    logs: &[logs::Tail],
    has_words: bool,
    has_texts: bool,
) -> Vec<String> {
    let words = has_words.then(|| "messages of the ranks in the trace".to_owned());
    let config = has_texts.then(|| "texts in the configuration of DeepSpeed".to_owned());
    let logs = logs.iter().map(|tail| format!("run/{}", tail.name));
    let variables = source.environment.variables.iter();
    let names: Vec<&str> = variables.map(|(name, _)| name.as_str()).collect();
    let values = (!names.is_empty()).then(|| format!("the values of {}", names.join(", ")));
    logs.chain(words).chain(config).chain(values).collect()
}

/// The sentence that says which repeat of a run the attachment has.
fn only_one(repeats: &Repeats) -> String {
    format!(
        "Of {} repeats, the zip has only number {}; report.json says how they differ, and the command makes \
         them again.",
        repeats.verdicts.len(),
        repeats.shown,
    )
}
