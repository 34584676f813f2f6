//! The list of the files of an attachment.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::{AttachmentEntry, CONFIG_FILE, Material, SCRIPT_FILE, TOO_COMMON, issue};
use zprobe_model::trace::Trace;
use zprobe_redact::Kind;
use zprobe_report::render;

/// A possible file of an attachment: the path, the description, and the function that makes the content. The function
/// returns `None` if the attachment does not need the file.
type Maker = (&'static str, &'static str, fn(&Material) -> Result<Option<String>>);

/// All files but the text of the issue, the logs and the manifest. A new file is a new entry here.
const MAKERS: &[Maker] = &[
    ("title.txt", "the title of the issue", |material| Ok(Some(format!("{}\n", material.title)))),
    ("report.html", "the report as a single HTML page, which loads no other files", |material| {
        page(material).map(Some)
    }),
    (
        SCRIPT_FILE,
        "a script that shows the weights without zprobe: `python repro.py`",
        |material| Ok(material.script.clone().ok()),
    ),
    ("command.txt", "the command that repeats this run", |material| {
        Ok(material.command.as_ref().map(|command| command.line() + "\n"))
    }),
    (CONFIG_FILE, "the DeepSpeed file that the command names", |material| {
        let config = material.command.as_ref().and_then(|it| it.deepspeed_config.as_ref());
        config.map(pretty).transpose()
    }),
    ("deepspeed-as-passed.json", "the configuration that DeepSpeed was given", |material| {
        material.report.run.spec.deepspeed_config().as_ref().map(pretty).transpose()
    }),
    ("spec.json", "the complete specification of the run", |material| {
        pretty(&material.report.run.spec).map(Some)
    }),
    (
        "environment.txt",
        "the machine, the versions and the relevant variables when this report was made",
        |material| Ok(Some(material.environment.text())),
    ),
    ("run/report.json", "the report as JSON (schema/report.v1.schema.json)", |material| {
        Ok(Some(material.report.to_json()?))
    }),
    (
        "run/trace.jsonl",
        "the events of every rank, with buffers, for `zprobe show run`",
        |material| Ok(Some(material.trace.text.clone())),
    ),
];

/// Makes every file that has content, except the manifest; `body` is the text of the issue.
pub(super) fn all(material: &Material, body: &str) -> Result<Vec<AttachmentEntry>> {
    let mut entries = vec![AttachmentEntry {
        path: "report.md".to_owned(),
        about: "the text of the issue, to be pasted".to_owned(),
        text: body.to_owned(),
    }];
    for (path, about, make) in MAKERS {
        if let Some(text) = make(material)? {
            entries.push(AttachmentEntry {
                path: (*path).to_owned(),
                about: (*about).to_owned(),
                text,
            });
        }
    }
    for tail in &material.logs {
        let about = match tail.left_out {
            0 => "the output of this process".to_owned(),
            left_out => {
                format!("the end of this process's output, without the first {left_out} bytes")
            }
        };
        let path = format!("run/{}", tail.name);
        entries.push(AttachmentEntry { path, about, text: tail.text.clone() });
    }
    Ok(entries)
}

/// The manifest of the attachment: its files, the cuts, and the redactions.
pub(super) fn manifest(
    entries: &[AttachmentEntry],
    redacted: &BTreeMap<Kind, usize>,
    material: &Material,
) -> AttachmentEntry {
    let mut text =
        "# A bug report by zprobe\n\n| file | bytes | what it is |\n|---|---:|---|\n".to_owned();
    for AttachmentEntry { path, about, text: content } in entries {
        let _ = writeln!(text, "| {path} | {} | {about} |", content.len());
    }
    if let Some(cut) = material.trace.describe() {
        let _ = write!(text, "\nrun/trace.jsonl is {cut}.\n");
    }
    if let Some(repeats) = &material.report.repeats {
        let _ = write!(text, "\n{}\n", super::only_one(repeats));
    }
    if let Err(reason) = &material.script {
        let _ = write!(text, "\nThere is no {SCRIPT_FILE}: {reason}.\n");
    }
    if material.command.is_none() {
        let _ = write!(text, "\nThere is no command.txt: {}.\n", issue::NO_COMMAND);
    }
    if !material.left_out.is_empty() {
        let _ = write!(text, "\nLeft out; `zprobe issue --with-logs` adds them:\n\n");
        material.left_out.iter().for_each(|it| text += &format!("- {it}\n"));
    }
    let _ = write!(text, "\nRedacted and replaced by placeholders: {}.\n", kinds(redacted));
    AttachmentEntry { path: "README.md".to_owned(), about: "this list".to_owned(), text }
}

/// The number of redactions of each kind as text: `home 3, secret 1`.
pub fn kinds(redacted: &BTreeMap<Kind, usize>) -> String {
    let kinds: Vec<String> =
        redacted.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(", ") }
}

/// The HTML page, made from the redacted and cut trace of the attachment.
fn page(material: &Material) -> Result<String> {
    let records = material.trace.text.lines().map(serde_json::from_str);
    let records = records.collect::<Result<_, _>>().context(TOO_COMMON)?;
    let trace = Trace { spec: material.report.run.spec.clone(), records };
    render::html(&material.report, &trace, &material.explain)
}

fn pretty(value: &impl serde::Serialize) -> Result<String> {
    Ok(zprobe_model::visible::json(value)?)
}
