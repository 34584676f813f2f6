//! The files of an attachment, in one list.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::{CONFIG_FILE, Entry, Material, TOO_COMMON, issue};
use crate::redact::Kind;
use crate::report::render;
use crate::trace::Trace;

/// A file that an attachment may have.
struct Maker {
    path: &'static str,
    about: &'static str,
    /// Function that makes the content; it returns none where there is nothing to say.
    make: fn(&Material) -> Result<Option<String>>,
}

/// Makers of every file but the logs and the manifest. A new file is an entry here.
const MAKERS: &[Maker] = &[
    Maker {
        path: "report.md",
        about: "the bug report, to be pasted as the text of an issue",
        make: |material| Ok(Some(issue::text(material))),
    },
    Maker {
        path: "report.html",
        about: "the report as a page, to be opened in a browser; it loads nothing",
        make: |material| page(material).map(Some),
    },
    Maker {
        path: "standalone.py",
        about: "shows the same numbers without zprobe; start it with torchrun",
        make: |material| Ok(material.script.clone().ok()),
    },
    Maker {
        path: "command.txt",
        about: "the command of this run",
        make: |material| Ok(material.command.as_ref().map(|command| command.line() + "\n")),
    },
    Maker {
        path: CONFIG_FILE,
        about: "the file that the command names",
        make: |material| {
            let config = material.command.as_ref().and_then(|it| it.deepspeed_config.as_ref());
            config.map(pretty).transpose()
        },
    },
    Maker {
        path: "deepspeed-as-passed.json",
        about: "the configuration that DeepSpeed was given",
        make: |material| {
            material.report.run.spec.deepspeed_config().as_ref().map(pretty).transpose()
        },
    },
    Maker {
        path: "spec.json",
        about: "everything about the run that was asked for",
        make: |material| pretty(&material.report.run.spec).map(Some),
    },
    Maker {
        path: "environment.txt",
        about: "the machine, the versions, and the variables that matter, when this was made",
        make: |material| Ok(Some(material.environment.text())),
    },
    Maker {
        path: "run/report.json",
        about: "the report, for programs: schema/report.v1.schema.json",
        make: |material| Ok(Some(material.report.to_json()?)),
    },
    Maker {
        path: "run/trace.jsonl",
        about: "what every rank did, buffers included; `zprobe diagnose run` reads it",
        make: |material| Ok(Some(material.trace.text.clone())),
    },
];

/// Makes every file that has content, except the manifest.
pub(super) fn all(material: &Material) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for Maker { path, about, make } in MAKERS {
        if let Some(text) = make(material)? {
            entries.push(Entry { path: (*path).to_owned(), about: (*about).to_owned(), text });
        }
    }
    for tail in &material.logs {
        let about = match tail.left_out {
            0 => "what this process wrote".to_owned(),
            left_out => format!("the end of what this process wrote, {left_out} bytes left out"),
        };
        let path = format!("run/{}", tail.name);
        entries.push(Entry { path, about, text: tail.text.clone() });
    }
    Ok(entries)
}

/// Manifest of the attachment: its files, what was cut, and what was taken out.
pub(super) fn manifest(
    entries: &[Entry],
    redacted: &BTreeMap<Kind, usize>,
    material: &Material,
) -> Entry {
    let mut text =
        "# A bug report by zprobe\n\n| file | bytes | what it is |\n|---|---:|---|\n".to_owned();
    for Entry { path, about, text: content } in entries {
        let _ = writeln!(text, "| {path} | {} | {about} |", content.len());
    }
    if let Some(cut) = material.trace.describe() {
        let _ = write!(text, "\nrun/trace.jsonl is {cut}.\n");
    }
    if let Some(repeats) = &material.report.repeats {
        let _ = write!(text, "\n{}\n", super::only_one(repeats));
    }
    if let Err(reason) = &material.script {
        let _ = write!(text, "\nThere is no standalone.py: {reason}.\n");
    }
    if material.command.is_none() {
        let _ = write!(text, "\nThere is no command.txt: {}.\n", issue::NO_COMMAND);
    }
    let _ = write!(text, "\nTaken out and replaced by placeholders: {}.\n", kinds(redacted));
    Entry { path: "README.md".to_owned(), about: "this list".to_owned(), text }
}

/// Numbers of redactions in words: `home 3, secret 1`.
pub fn kinds(redacted: &BTreeMap<Kind, usize>) -> String {
    let kinds: Vec<String> =
        redacted.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(", ") }
}

/// The HTML page, made from the records that are in the attachment.
fn page(material: &Material) -> Result<String> {
    let records = material.trace.text.lines().map(serde_json::from_str);
    let records = records.collect::<Result<_, _>>().context(TOO_COMMON)?;
    let trace = Trace { spec: material.report.run.spec.clone(), records };
    render::html(&material.report, &trace, &material.explain)
}

fn pretty(value: &impl serde::Serialize) -> Result<String> {
    Ok(crate::visible::json(value)?)
}
