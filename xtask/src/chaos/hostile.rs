//! Hostile strings in every text of a trace, in names of files and in arguments, read in every form of
//! output.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::calls::Ended;
use super::{Campaign, Case, Survival, fixtures, markup};

/// The campaign that puts every string in every place of a run, and reads the run in every form of output.
pub const CAMPAIGN: Campaign = Campaign {
    name: "hostile",
    faults: "strings for terminals, CIs, Markdown, browsers and Python in every text, in every form",
    full: STRINGS.len() * PLACES.len(),
    short: 24,
    try_case,
};

/// The hostile strings; each contains [`markup::MARK`].
const STRINGS: &[&str] = &[
    // Strings for terminals.
    "\u{1b}]52;c;SU5KRUNURUQ=\u{7}INJECTED",
    "\u{1b}]0;INJECTED\u{7}",
    "\u{1b}]8;;http://INJECTED.example\u{1b}\\click\u{1b}]8;;\u{1b}\\",
    "\u{1b}[2J\u{1b}[HINJECTED",
    "\u{1b}[1A\u{1b}[2KINJECTED",
    "\u{1b}[8mINJECTED\u{1b}[28m",
    "\u{1b}PINJECTED\u{1b}\\",
    "\u{1b}cINJECTED",
    "\u{9b}2JINJECTED",
    "\u{9d}52;c;INJECTED\u{9c}",
    "\u{90}INJECTED\u{9c}",
    "verdict\rCLEAN INJECTED",
    "CLEAN\u{8}\u{8}\u{8}\u{8}\u{8}INJECTED",
    "INJECTED\u{0}end",
    "INJECTED\u{7f}\u{b}\u{c}",
    "\u{202e}DETCEJNI INJECTED\u{202c}",
    "\u{2066}INJECTED\u{2069}\u{200f}",
    "INJ\u{200b}ECTED INJECTED\u{feff}",
    "INJECTED\u{2028}two\u{2029}three\u{85}four",
    "\u{e0041}\u{e0042}INJECTED",
    // Strings for CIs.
    "::error::INJECTED",
    "\n::error::INJECTED",
    "\r\n::add-mask::INJECTED",
    "\n::set-output name=INJECTED::x",
    "\n::stop-commands::INJECTED",
    "\n##[error]INJECTED",
    "\n##vso[task.setvariable variable=x]INJECTED",
    "\u{85}::error::INJECTED",
    "a%0A::error::INJECTED",
    // Strings for Markdown and HTML.
    "![x](http://e.example/INJECTED.png)",
    "[x](javascript:INJECTED)",
    "<img src=x onerror=INJECTED>",
    "</script><script>INJECTED</script>",
    "\"><b INJECTED>",
    "'><b INJECTED x='",
    "</details></td></table><b INJECTED>",
    "<!--INJECTED",
    "]]><b INJECTED>",
    "@INJECTED #1 https://INJECTED.example www.INJECTED.example",
    "\n\n# INJECTED\n\n| a | b |\n|---|---|\n",
    "```\n<b INJECTED>\n```",
    "~~~\n`` <b INJECTED> ``",
    "|<b INJECTED>|\\|<b INJECTED>",
    "\\![x](http://e.example/INJECTED)\\",
    "[INJECTED]: http://e.example/INJECTED",
    // Strings for Python, shells and format strings.
    "\"\"\"\nimport INJECTED\nINJECTED()\n\"\"\"",
    "'''\nINJECTED()\n'''",
    "\\\"\"\"\nINJECTED()\n",
    "x\u{2028}INJECTED()",
    "{INJECTED!r} %(INJECTED)s",
    "\nINJECTED()\n",
    "$(INJECTED) `INJECTED` ; INJECTED",
    "../../INJECTED",
    "\u{1f4a9}\u{301}\u{301}\u{301}INJECTED",
];

/// A place where a string may stand.
struct Place {
    name: &'static str,
    at: At,
}

/// The way to put a string in a place.
enum At {
    /// The string is in a record of a trace, given by the type of the event and the field of the event.
    Record(&'static str, &'static str),
    /// The string is in an additional record of the trace, in place of `@` in this event.
    NewRecord(&'static str),
    /// The string is in the specification, as a key or a value of an engine's configuration.
    Configuration,
    /// The string is in the log of a rank.
    Log,
    /// The string is in the name of the run directory.
    Directory,
    /// The string is in an argument that zprobe refuses.
    Argument,
    /// The string is in a file that zprobe refuses.
    File,
}

/// All places where a string may stand.
const PLACES: &[Place] = &[
    Place { name: "run id", at: At::Record("run-started", "/run") },
    Place { name: "version of zprobe", at: At::Record("run-started", "/event/zprobe") },
    Place { name: "version of a package", at: At::Record("rank-ready", "/event/versions/torch") },
    Place {
        name: "name of a package",
        at: At::NewRecord(
            r#"{"type": "rank-ready", "versions": {"torch": "2.11.0", "@": "1"}, "device": "cpu"}"#,
        ),
    },
    Place { name: "device", at: At::Record("rank-ready", "/event/device") },
    Place { name: "parameter", at: At::Record("model", "/event/params/0/name") },
    Place { name: "optimizer", at: At::Record("optimizer-chosen", "/event/class") },
    Place { name: "inner optimizer", at: At::Record("optimizer-chosen", "/event/inner") },
    Place {
        name: "fact",
        at: At::NewRecord(r#"{"type": "engine-described", "facts": {"setting": "@"}}"#),
    },
    Place {
        name: "name of a fact",
        at: At::NewRecord(r#"{"type": "engine-described", "facts": {"@": "1"}}"#),
    },
    Place {
        name: "what is not observed",
        at: At::NewRecord(r#"{"type": "not-observed", "what": "@", "why": "it is so"}"#),
    },
    Place {
        name: "why it is not",
        at: At::NewRecord(r#"{"type": "not-observed", "what": "the norm", "why": "@"}"#),
    },
    Place { name: "message of a rank", at: At::NewRecord(r#"{"type": "failed", "message": "@"}"#) },
    Place {
        name: "end of a log",
        at: At::NewRecord(r#"{"type": "stderr", "rank": 1, "tail": "Traceback\n@\nend"}"#),
    },
    Place {
        name: "line that is no record",
        at: At::NewRecord(
            r#"{"type": "protocol-violated", "rank": 1, "violation": "not-json", "line": "@"}"#,
        ),
    },
    Place {
        name: "collective",
        at: At::NewRecord(
            r#"{"type": "collective-mismatch", "sequence": 1, "announced": ["@", "b"]}"#,
        ),
    },
    Place { name: "dtype of a collective", at: At::Record("collective-entered", "/event/dtype") },
    Place { name: "digest", at: At::Record("digests-gathered", "/event/digests/0") },
    Place { name: "digest of a buffer", at: At::Record("buffer", "/event/payload/digest") },
    Place { name: "configuration", at: At::Configuration },
    Place { name: "log", at: At::Log },
    Place { name: "run directory", at: At::Directory },
    Place { name: "argument", at: At::Argument },
    Place { name: "file", at: At::File },
];

fn try_case(case: &mut Case) -> Result<Survival> {
    let string = STRINGS[case.number % STRINGS.len()];
    let place = &PLACES[case.number / STRINGS.len()];
    let told = || format!("{}: {string}", place.name);
    match place.at {
        At::Argument => refused_argument(case, string).with_context(told)?,
        At::File => refused_file(case, string).with_context(told)?,
        _ => {
            let Some(run) = plant(case, string, &place.at)? else {
                return Ok(Survival::Skipped("no file can have this name".to_owned()));
            };
            every_form(case, &run).with_context(told)?;
            attachment(case, &run).with_context(told)?;
        }
    }
    Ok(Survival::Survived)
}

/// Writes a run directory with the string in its place, and returns the directory's name; `None` if no
/// directory can have that name.
fn plant(case: &mut Case, string: &str, at: &At) -> Result<Option<String>> {
    let fixture = fixtures::named("boundary-leak")?;
    let mut records = (0..fixture.lines.len())
        .map(|line| fixture.record(line))
        .collect::<Result<Vec<Value>>>()?;
    // DeepSpeed, because its attachments hold a script.
    let spec = &mut records[0]["event"]["spec"];
    spec["engine"] = json!("deepspeed");
    spec["inject"] = Value::Null;
    let mut run = "run".to_owned();
    let mut log = None;
    match at {
        At::Record(kind, pointer) => {
            let mut found = false;
            for record in records.iter_mut().filter(|record| record["event"]["type"] == **kind) {
                let field = record.pointer_mut(pointer).context("a record lacks the field")?;
                *field = json!(string);
                found = true;
            }
            ensure!(found, "there is no {kind} in the trace");
        }
        At::NewRecord(event) => {
            let string = json!(string).to_string();
            let event = event.replace('@', &string[1..string.len() - 1]);
            let event: Value =
                serde_json::from_str(&event).context("a planted record is no JSON")?;
            let by_rank = !matches!(event["type"].as_str(), Some("stderr" | "protocol-violated"));
            let rank = if by_rank { json!(1) } else { Value::Null };
            let run = records[0]["run"].clone();
            let at = records.len() - 4;
            records.insert(
                at,
                json!({"v": 1, "run": run, "rank": rank, "seq": 99_999, "t_ns": 0, "event": event}),
            );
        }
        At::Configuration => {
            records[0]["event"]["spec"]["deepspeed_config"] =
                json!({"train_batch_size": 4, string: {"value": string}, "list": [string]});
        }
        At::Log => log = Some(string),
        At::Directory if string.contains('\0') || string.contains('/') => return Ok(None),
        At::Directory => run = format!("run-{string}"),
        At::Argument | At::File => bail!("the place is not in a run directory"),
    }
    let text: String = records.iter().map(|record| format!("{record}\n")).collect();
    fixtures::write(&case.dir.join(&run), text.as_bytes())?;
    if let Some(log) = log {
        let path = case.dir.join(&run).join("rank-0.stderr.log");
        fs::write(path, format!("{log}\n")).context("cannot write a log")?;
    }
    Ok(Some(run))
}

/// Shows the report of the run in every form, with styles as on a terminal.
fn every_form(case: &Case, run: &str) -> Result<()> {
    for form in ["full", "concise", "markdown", "github"] {
        let call = case.zprobe(["diagnose", run, "--output-format", form])?;
        let call = call.env("CLICOLOR_FORCE", "1").env("GITHUB_STEP_SUMMARY", "summary.md");
        // Exports do not depend on the printed form.
        let exports = EXPORTS.map(|(kind, _)| format!("--export-{kind}=out.{kind}"));
        let call = if form == "full" { call.args(exports) } else { call };
        let ended = call.ended()?;
        ended.code()?;
        people(&ended.stderr)?;
        people(&ended.stdout).with_context(|| form)?;
        if form == "markdown" {
            markup::markdown(&ended.stdout)?;
        }
    }
    for (kind, looks) in EXPORTS {
        // A trace that cannot be read has no report.
        if let Ok(text) = fs::read_to_string(case.dir.join(format!("out.{kind}"))) {
            looks(&text).with_context(|| format!("--export-{kind}"))?;
        }
    }
    match fs::read_to_string(case.dir.join("summary.md")) {
        Ok(text) => markup::markdown(&text).context("the summary of a job"),
        Err(_) => Ok(()),
    }
}

/// The check of a text, in place of the text's reader.
type Look = fn(&str) -> Result<()>;

/// The kinds of exports, each with its check.
const EXPORTS: [(&str, Look); 4] = [
    ("json", markup::json),
    ("sarif", markup::json),
    ("junit", markup::xml),
    ("html", markup::html),
];

/// Checks the attachment, file by file.
fn attachment(case: &Case, run: &str) -> Result<()> {
    let call = case
        .zprobe(["report", run, "--out", "a.zip", "--force", "--with-logs"])?
        .env("CLICOLOR_FORCE", "1");
    let ended = call.ended()?;
    people(&ended.stderr)?;
    people(&ended.stdout)?;
    if ended.code_of(&[0, 2])? == 2 {
        return Ok(());
    }
    let python = case.call(Path::new("python3"));
    let unpacked = python.args(["-c", markup::PYTHON, "a.zip", "attachment"]).ended()?;
    ensure!(unpacked.status.success(), "{}", unpacked.stderr.trim_end());
    let dir = case.dir.join("attachment");
    for entry in fs::read_dir(&dir).context("no attachment")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&path).with_context(|| format!("file {name} is no text"))?;
        let looks = match path.extension().map(|it| it.as_bytes()) {
            Some(b"md") => markup::markdown(&text),
            Some(b"html") => markup::html(&text),
            Some(b"json") => markup::json(&text),
            _ => Ok(()),
        };
        looks.with_context(|| name)?;
    }
    Ok(())
}

/// Checks the messages that refuse the string as an argument.
fn refused_argument(case: &Case, string: &str) -> Result<()> {
    if string.contains('\0') {
        return Ok(());
    }
    for words in [
        ["diagnose", string],
        ["explain", string],
        ["list", string],
        ["check", string],
        ["zoo", string],
    ] {
        refused(case.zprobe(words)?.env("CLICOLOR_FORCE", "1").ended()?)
            .with_context(|| words[0].to_owned())?;
    }
    for flag in ["stage", "dtype", "shape", "deepspeed-config", "nproc-per-node", "python", "seed"]
    {
        let flag = format!("--{flag}={string}");
        let words = ["run", "--out", "run", "--engine", "ddp", &flag];
        let ended = case.zprobe(words)?.with_ranks().env("CLICOLOR_FORCE", "1").ended()?;
        refused(ended).with_context(|| flag)?;
    }
    Ok(())
}

/// Checks the messages that refuse the string in a file.
fn refused_file(case: &Case, string: &str) -> Result<()> {
    let key = json!(string).to_string();
    let config = format!(
        "{{\"train_batch_size\": 4, \"zero_optimization\": {{{key}: 1}}, {key}: {key}, \"optimizer\": {{\"type\": {key}}}}}"
    );
    let toml = toml_string(string);
    let probe = format!("description = {toml}\nengines = [{toml}]\n[run]\nstage = {toml}\n");
    let files = [
        ("ds.json", config, vec!["run", "--out", "run", "--deepspeed-config", "ds.json"]),
        ("own.toml", probe, vec!["check", "--list", "own.toml"]),
        ("row.toml", format!("name = {toml}\n{toml} = 1\n"), vec!["zoo", "--list", "./row.toml"]),
        ("zprobe.toml", format!("[run]\n{toml} = {toml}\n"), vec!["check", "--list"]),
        ("run/trace.jsonl", format!("{string}\n"), vec!["diagnose", "run"]),
    ];
    for (name, text, words) in files {
        let path = case.dir.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&path)).context("cannot make a directory")?;
        fs::write(&path, text).context("cannot write a file")?;
        let call = case.zprobe(words)?.with_ranks().env("CLICOLOR_FORCE", "1");
        refused(call.ended()?).with_context(|| name)?;
        fs::remove_file(&path).context("cannot remove a file")?;
    }
    Ok(())
}

/// A string as a TOML literal.
fn toml_string(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|c| match c {
            '"' | '\\' => format!("\\{c}"),
            c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
            c => c.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

/// Checks a refusal and its message.
fn refused(ended: Ended) -> Result<()> {
    ended.code_of(&[2])?;
    people(&ended.stderr)?;
    people(&ended.stdout)
}

/// Checks a text as people see the text: on a terminal, and in the log of a CI.
fn people(text: &str) -> Result<()> {
    markup::terminal(text)?;
    markup::log_of_a_ci(text)
}
