//! Known findings of a suite, which are read from a baseline and written to one.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail, ensure};
use toml::value::Date;

use super::baseline::{self, Baseline, day};
use crate::console::say;
use zprobe_model::document::Document;
use zprobe_report::suite::{Case, Notice};

/// The comment above the entries of a new baseline.
const HEAD: &str = "\
# Known findings of `zprobe check`, each with the reason and the last day of its acceptance.
";

/// The accepted findings of a suite: the entries of the baseline, and the entries that the user asked to add.
pub struct AcceptedFindings {
    baseline: Option<Baseline>,
    today: Date,
    writing: Option<NewBaselineEntries>,
}

/// The entries to write for the findings of a suite, as `--write-baseline` asks for.
#[derive(Clone, Debug)]
pub struct NewBaselineEntries {
    /// The baseline that the entries are added to.
    pub file: PathBuf,
    /// The reason why the findings are accepted.
    pub reason: String,
    /// The last day on which the findings are accepted.
    pub expires: String,
}

impl NewBaselineEntries {
    /// The baseline entries that accept the findings of these cases, as text and in parsed form.
    fn of(&self, cases: &[Case]) -> Result<(String, Baseline)> {
        let text = baseline::entries(cases, self.reason.trim(), &self.expires);
        let document = Document { file: self.file.display().to_string(), text: text.clone() };
        Ok((text, Baseline::read(&document)?))
    }
}

impl AcceptedFindings {
    /// Reads the baseline, by default the one in the working directory. Entries that could not be written are refused
    /// before any run.
    pub fn read(baseline: Option<&Path>, writing: Option<NewBaselineEntries>) -> Result<Self> {
        let today = today()?;
        let baseline = match baseline {
            // The file that is about to be written need not exist yet.
            Some(path) if writing.as_ref().is_some_and(|it| is_same(&it.file, path)) => read(path)?,
            Some(path) => {
                Some(read(path)?.with_context(|| format!("cannot find {}", path.display()))?)
            }
            None => read(Path::new(baseline::FILE))?.inspect(|_| {
                say(format_args!("note: the findings that {} lists are accepted", baseline::FILE));
            }),
        };
        if let Some(NewBaselineEntries { file, reason, expires }) = &writing {
            match day(expires) {
                None => bail!("--expires {expires}: is not a date; write a day like 2026-12-31"),
                Some(day) => ensure!(day >= today, "--expires {expires}: that day is over"),
            }
            ensure!(!reason.trim().is_empty(), "--reason: is empty; say why this is accepted");
            // Entries are added only to a baseline that can be read.
            read(file)?;
            let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
            ensure!(
                dir.is_none_or(Path::is_dir),
                "--write-baseline {}: there is no such directory",
                file.display()
            );
        }
        Ok(Self { baseline, today, writing })
    }

    /// Marks the findings of a case that the baseline accepts.
    pub fn mark(&self, case: &mut Case) {
        if let Some(baseline) = &self.baseline {
            baseline.accept(case, self.today);
        }
    }

    /// The case as the report will show it, after the entries that the user asked for are written.
    pub fn as_reported(&self, case: &Case) -> Case {
        let mut case = case.clone();
        if let Some(writing) = &self.writing
            && let Ok((_, written)) = writing.of(std::slice::from_ref(&case))
        {
            written.accept(&mut case, self.today);
        }
        case
    }

    /// Writes the entries that the user asked for, and returns notices about baseline entries that need attention.
    /// The new entries mark their findings in all cases.
    pub fn finish(&self, cases: &mut [Case], whole: bool) -> Result<Vec<Notice>> {
        let notices = self.baseline.as_ref().map(|it| it.notices(cases, self.today, whole));
        if let Some(writing) = &self.writing {
            let path = writing.file.display();
            let (entries, written) = writing.of(cases)?;
            let count = entries.matches("[[accept]]").count();
            if count > 0 {
                append(&writing.file, &entries).with_context(|| format!("cannot write {path}"))?;
                cases.iter_mut().for_each(|case| written.accept(case, self.today));
            }
            say(format_args!("{path}: {count} new findings accepted"));
        }
        Ok(notices.unwrap_or_default())
    }
}

/// True if two paths mean the same file, even if the file does not exist yet.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let path = std::path::absolute(path).ok()?;
        Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
    };
    place(one).is_some_and(|place_of_one| Some(place_of_one) == place(other))
}

/// Reads a baseline; `None` if the file does not exist.
fn read(path: &Path) -> Result<Option<Baseline>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    Ok(Some(Baseline::read(&Document { file: path.display().to_string(), text })?))
}

fn append(path: &Path, entries: &str) -> io::Result<()> {
    let head = if path.exists() { "" } else { HEAD };
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(format!("{head}{entries}").as_bytes())
}

/// Today's date in UTC.
fn today() -> Result<Date> {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.get(..10).and_then(day).context("the clock of this machine is out of range")
}
