//! Reads a row from its file; every error names the file and the key.

use serde::Deserialize;

use super::{BugConditions, BugScript, Expectation, Release, ZooRow};
use crate::Packages;
use zprobe_model::document::{Complaint, Document};
use zprobe_model::spec::Engine;
use zprobe_report::RuleCode;

/// An error in the file of a row of the zoo.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is not TOML, or has unknown keys or wrong types.
    #[error(transparent)]
    Syntax(#[from] Complaint),
    /// A value is not allowed.
    #[error("{file}: {key}: {problem}")]
    Value {
        /// The path of the file.
        file: String,
        /// The key, for example `release[2].expect`.
        key: String,
        /// The description of the error, with advice on the right value.
        problem: String,
    },
}

/// The content of a row's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowFile {
    name: String,
    title: String,
    links: Vec<String>,
    /// The engine of the row. `engine` and `run` come together; a row with a script has neither.
    engine: Option<String>,
    summary: String,
    cause: String,
    workaround: String,
    run: Option<String>,
    script: Option<BugScript>,
    known: Option<BugConditions>,
    release: Vec<RowFileRelease>,
}

/// A `[[release]]` entry of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowFileRelease {
    #[serde(default)]
    packages: Packages,
    #[serde(default)]
    extra: String,
    /// The expected result: `clean`, `crash` or a rule's code.
    expect: String,
    /// A part of the engine's message; only with `crash`.
    message: Option<String>,
    /// The code of the first finding; only with `crash`.
    finding: Option<String>,
}

impl ZooRow {
    /// Reads a row; `file` is its path, for messages and for the name that it must have.
    ///
    /// # Errors
    /// If the text is not TOML, a key is unknown or missing, or a value is not allowed.
    pub fn parse(file: &str, text: &str) -> Result<Self, ReadError> {
        let document = Document { file: file.to_owned(), text: text.to_owned() };
        let raw: RowFile = document.read()?;
        raw.check(file).map_err(|(key, problem)| ReadError::Value {
            file: file.to_owned(),
            key,
            problem,
        })
    }
}

/// A key, and the problem with its value.
type WrongValue = (String, String);

impl RowFile {
    fn check(self, file: &str) -> Result<ZooRow, WrongValue> {
        let wrong = |key: &str, problem: String| Err((key.to_owned(), problem));
        let stem = file.rsplit('/').next().and_then(|name| name.strip_suffix(".toml"));
        if stem != Some(self.name.as_str()) {
            return wrong("name", format!("`{}` differs from the name of the file", self.name));
        }
        for (key, text) in [
            ("title", &self.title),
            ("summary", &self.summary),
            ("cause", &self.cause),
            ("workaround", &self.workaround),
        ] {
            if text.trim().is_empty() {
                return wrong(
                    key,
                    "is empty; write a text, or write that it is not known".to_owned(),
                );
            }
        }
        let (engine, run) = match (&self.script, &self.engine, &self.run) {
            (None, Some(engine), Some(run)) => of_engine(engine, run)?,
            (Some(script), None, None) => {
                split("script.flags", &script.flags)?;
                split("script.options", &script.options)?;
                script.text().map_err(|problem| ("script".to_owned(), problem))?;
                (Engine::Script, Vec::new())
            }
            _ => {
                return wrong(
                    "run",
                    "is required in a row with `engine`; a row with `script` has neither `run` nor `engine`"
                        .to_owned(),
                );
            }
        };
        if self.release.is_empty() {
            return wrong("release", "is empty; name a release to try the row on".to_owned());
        }
        let releases = self.release.into_iter().enumerate().map(|(at, release)| {
            release.check().map_err(|(key, problem)| (format!("release[{at}].{key}"), problem))
        });
        Ok(ZooRow {
            releases: releases.collect::<Result<_, _>>()?,
            name: self.name,
            title: self.title,
            links: self.links,
            engine,
            summary: self.summary.trim().to_owned(),
            cause: self.cause.trim().to_owned(),
            workaround: self.workaround.trim().to_owned(),
            run,
            script: self.script,
            known: self.known,
        })
    }
}

/// The engine of a row, and its arguments of `zprobe run`.
fn of_engine(engine: &str, run: &str) -> Result<(Engine, Vec<String>), WrongValue> {
    let Some(known) = Engine::CHOICES.iter().find(|known| known.name() == engine) else {
        let known: Vec<&str> = Engine::CHOICES.iter().map(|engine| engine.name()).collect();
        let known = known.join(", ");
        return Err(("engine".to_owned(), format!("`{engine}` is not one of {known}")));
    };
    let run = split("run", run)?;
    if !run.windows(2).any(|pair| pair == ["--engine", known.name()]) {
        let problem = format!("does not have `--engine {known}`, the engine of the row");
        return Err(("run".to_owned(), problem));
    }
    Ok((*known, run))
}

impl RowFileRelease {
    fn check(self) -> Result<Release, WrongValue> {
        let expect = Expectation::parse(&self.expect, self.message, self.finding)
            .map_err(|(key, problem)| (key.to_owned(), problem.to_owned()))?;
        Ok(Release { packages: self.packages, extra: split("extra", &self.extra)?, expect })
    }
}

impl Expectation {
    /// Reads the expectation from the keys `expect`, `message` and `finding` of a file.
    ///
    /// # Errors
    /// The wrong key, and the reason why it is wrong.
    pub fn parse(
        expect: &str,
        message: Option<String>,
        finding: Option<String>,
    ) -> Result<Self, (&'static str, &'static str)> {
        let code = finding.as_deref().map(str::parse::<RuleCode>);
        let finding = code
            .transpose()
            .map_err(|_| ("finding", "is not a rule's code; write one like `ZP101`"))?;
        match (expect, message, finding) {
            ("crash", Some(message), finding) => Ok(Self::Crash { message, finding }),
            ("crash", None, _) => {
                Err(("message", "is missing; a crash needs a part of the engine's message"))
            }
            (_, Some(_), _) => Err(("message", "is only for `expect = \"crash\"`")),
            (_, _, Some(_)) => Err(("finding", "is only for `expect = \"crash\"`")),
            ("clean", None, None) => Ok(Self::Clean),
            (code, None, None) => code.parse().map(Self::Finding).map_err(|_| {
                ("expect", "is neither `clean`, `crash` nor a rule's code like `ZP101`")
            }),
        }
    }
}

/// Splits a text into words as a shell does.
fn split(key: &str, text: &str) -> Result<Vec<String>, WrongValue> {
    let words = shlex::split(text);
    words.ok_or_else(|| (key.to_owned(), "has a quote that is not closed".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"
        name = "leak"
        title = "A leak"
        links = []
        engine = "deepspeed"
        summary = "It leaks."
        cause = "Not known."
        workaround = "None."
        run = "--engine deepspeed --stage 1"

        [[release]]
        packages = { deepspeed = "0.18.9", torch = "2.11.0" }
        expect = "ZP101"

        [[release]]
        packages = { deepspeed = "0.18.9", torch = "2.11.0" }
        extra = "--immediate-grad-update"
        expect = "clean"

        [[release]]
        expect = "crash"
        message = "IndexError"
        finding = "ZP301"
    "#;

    fn complaint(from: &str, to: &str) -> String {
        assert!(ROW.contains(from), "{from}");
        ZooRow::parse("zoo/leak.toml", &ROW.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn a_row_says_what_to_run_where_and_what_to_expect() {
        let row = ZooRow::parse("zoo/leak.toml", ROW).unwrap();
        let words: Vec<&str> = row.arguments(&row.releases[1]).collect();
        assert_eq!(words, ["--engine", "deepspeed", "--stage", "1", "--immediate-grad-update"]);
        let expected: Vec<String> =
            row.releases.iter().map(|release| release.expect.to_string()).collect();
        assert_eq!(expected, ["ZP101", "clean", "ZP301, crash: IndexError"]);
        assert_eq!(row.releases[0].label(), "deepspeed 0.18.9, torch 2.11.0");
    }

    #[test]
    fn a_row_about_a_trainer_has_a_script_and_neither_engine_nor_arguments() {
        let engine = "engine = \"deepspeed\"";
        let run = "run = \"--engine deepspeed --stage 1\"";
        let script = "[script]\nfile = \"ddp.py\"\nranks = 2\nflags = \"--steps 3\"\n\
                      [[script.edit]]\nold = \"wrapped.no_sync()\"\nnew = \"None\"";
        let text =
            ROW.replace(engine, "").replace(run, script).replace("--immediate-grad-update", "");
        let row = ZooRow::parse("zoo/leak.toml", &text).unwrap();
        assert_eq!(row.engine, Engine::Script);
        assert_eq!(
            row.command(),
            "zprobe exec -- python -m torch.distributed.run --standalone --nproc-per-node 2 ddp.py \
             --steps 3"
        );
        let complaint = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            ZooRow::parse("zoo/leak.toml", &text.replacen(from, to, 1)).unwrap_err().to_string()
        };
        let complaints = [
            complaint("ddp.py", "horovod.py"),
            complaint("wrapped.no_sync()", "wrapped.sync()"),
            complaint("--steps 3", "--steps '3"),
            complaint("[script]", &format!("{engine}\n[script]")),
        ];
        insta::assert_snapshot!(complaints.join("\n\n"));
    }

    #[test]
    fn a_release_goes_by_a_version_or_by_package_and_version() {
        let row = ZooRow::parse("zoo/leak.toml", ROW).unwrap();
        let matches = |text| row.releases[0].matches(text);
        assert!(matches("0.18.9") && matches("2.11.0") && matches("deepspeed==0.18.9"));
        assert!(!matches("0.18") && !matches("torch==0.18.9"));
    }

    #[test]
    fn a_complaint_does_not_repeat_a_line_that_is_long() {
        let long = format!("engine = \"deepspeed\"\nlong = \"{}\"", "x".repeat(1 << 20));
        let complaint = complaint("engine = \"deepspeed\"", &long);
        assert!(complaint.starts_with("zoo/leak.toml:6:1: no such key `long`"), "{complaint}");
        assert!(complaint.len() < 1000, "{} bytes", complaint.len());
    }

    #[test]
    fn complaints_name_the_file_and_the_key() {
        let complaints = [
            complaint("name = \"leak\"", "name = \"lake\""),
            complaint("\"It leaks.\"", "\" \""),
            complaint("engine = \"deepspeed\"", "engine = \"horovod\""),
            complaint("--engine deepspeed", "--engine ddp"),
            complaint("--stage 1", "--stage '1"),
            complaint("expect = \"clean\"", "expect = \"fine\""),
            complaint("message = \"IndexError\"", ""),
            complaint("finding = \"ZP301\"", "finding = \"301\""),
            complaint("expect = \"crash\"", "expect = \"ZP301\""),
            complaint("title", "tilte"),
            complaint("\"0.18.9\"", "\"newest\""),
        ];
        insta::assert_snapshot!(complaints.join("\n\n"));
    }
}
