//! Known findings: read from a baseline, and written to one.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail, ensure};
use toml::value::Date;
use zprobe::baseline::{self, Baseline, day};
use zprobe::document::Document;
use zprobe::report::suite::{Case, Notice};

use crate::cli::verbosity;

/// What stands above the entries of a new baseline.
const HEAD: &str = "\
# Findings of `zprobe check` that are known, each with why it is accepted and until when.
";

/// Flags about known findings.
#[derive(Debug, clap::Args)]
pub struct Known {
    /// Findings that are accepted for the time being [default: zprobe-baseline.toml, if it is there]
    #[arg(long, value_name = "FILE", env = "ZPROBE_BASELINE", help_heading = "Known findings")]
    baseline: Option<PathBuf>,

    /// Accept what this suite finds: add entries for it to this file
    #[arg(
        long,
        value_name = "FILE",
        requires_all = ["reason", "expires"],
        help_heading = "Known findings"
    )]
    write_baseline: Option<PathBuf>,

    /// With --write-baseline: why
    #[arg(long, value_name = "TEXT", requires = "write_baseline", help_heading = "Known findings")]
    reason: Option<String>,

    /// With --write-baseline: last day on which it is accepted, like 2026-12-31
    #[arg(long, value_name = "DATE", requires = "write_baseline", help_heading = "Known findings")]
    expires: Option<String>,
}

/// What is accepted.
pub struct Accepted {
    baseline: Option<Baseline>,
    today: Date,
}

impl Accepted {
    /// Reads the baseline, and refuses what could not be written before anything is run.
    pub fn read(args: &Known) -> Result<Self> {
        let today = today()?;
        let baseline = match &args.baseline {
            Some(path) => {
                Some(read(path)?.with_context(|| format!("cannot find {}", path.display()))?)
            }
            None => read(Path::new(baseline::FILE))?.inspect(|_| {
                verbosity::say(format_args!("note: accepted is what {} lists", baseline::FILE));
            }),
        };
        if let Some(expires) = &args.expires {
            match day(expires) {
                None => bail!("--expires {expires}: is no date; write a day like 2026-12-31"),
                Some(day) => ensure!(day >= today, "--expires {expires}: that day is over"),
            }
        }
        if let Some(reason) = &args.reason {
            ensure!(!reason.trim().is_empty(), "--reason: is empty; say why this is accepted");
        }
        if let Some(path) = &args.write_baseline {
            // Entries are added to what can be read.
            read(path)?;
        }
        Ok(Self { baseline, today })
    }

    /// Marks what is accepted, after having written what is asked to be.
    pub fn apply(&self, cases: &mut [Case], args: &Known, whole: bool) -> Result<Vec<Notice>> {
        let notices =
            self.baseline.as_ref().map(|it| it.apply(cases, self.today, whole)).unwrap_or_default();
        let (Some(path), Some(reason), Some(expires)) =
            (&args.write_baseline, &args.reason, &args.expires)
        else {
            return Ok(notices);
        };
        let entries = baseline::entries(cases, reason.trim(), expires);
        let count = entries.matches("[[accept]]").count();
        if count > 0 {
            append(path, &entries).with_context(|| format!("cannot write {}", path.display()))?;
            let document = Document { file: path.display().to_string(), text: entries };
            // Whatever it does not accept of old entries, the other baseline has said above.
            let _ = Baseline::read(&document)?.apply(cases, self.today, false);
        }
        verbosity::say(format_args!("{}: {count} new", path.display()));
        Ok(notices)
    }
}

/// None if there is no such file.
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

/// The day in UTC.
fn today() -> Result<Date> {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.get(..10).and_then(day).context("the clock of this machine is out of range")
}
