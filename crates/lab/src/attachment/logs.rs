//! The last lines of the log files in a run directory.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use zprobe_model::run_dir;
use zprobe_redact::Redactor;

/// The maximum number of bytes of one log, and of all logs together.
const MOST: u64 = 64 << 10;
const MOST_OF_ALL: u64 = 4 << 20;

/// The end of a log file.
pub struct Tail {
    /// The name of the log file.
    pub name: String,
    /// The whole lines at the end of the log.
    pub text: String,
    /// The number of bytes before these lines, which were left out.
    pub left_out: u64,
}

impl Tail {
    /// The tail without private text.
    pub fn redacted(self, redactor: &Redactor) -> Self {
        Self { name: redactor.text(&self.name), text: redactor.text(&self.text), ..self }
    }
}

/// The ends of all logs of a run, sorted by name; empty logs are left out.
///
/// # Errors
/// Fails if a log cannot be read.
pub fn tails(dir: &Path) -> io::Result<Vec<Tail>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // All logs that a run writes have such names; another name could be harmful when the zip is unpacked.
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if !name.ends_with(".log") || !name.chars().all(plain) {
            continue;
        }
        // The metadata are those of the entry itself, because neither a symbolic link nor a pipe is a log.
        let log = entry.metadata()?;
        if log.is_file() && log.len() > 0 {
            names.push(name);
        }
    }
    names.sort();
    let most = MOST.min(MOST_OF_ALL / (names.len() as u64).max(1));
    names.into_iter().map(|name| tail(dir, name, most)).collect()
}

/// The end of a log, with at most `most` bytes.
///
/// # Errors
/// Fails if the log cannot be read.
pub fn tail(dir: &Path, name: String, most: u64) -> io::Result<Tail> {
    let mut file = run_dir::open(&dir.join(&name))?;
    let length = file.metadata()?.len();
    let mut left_out = length.saturating_sub(most);
    file.seek(SeekFrom::Start(left_out))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    if left_out > 0
        && let Some(feed) = bytes.iter().position(|byte| *byte == b'\n')
    {
        // The rest of a cut line could be part of a secret that redaction does not recognise.
        bytes.drain(..=feed);
        left_out += feed as u64 + 1;
    }
    Ok(Tail { name, text: String::from_utf8_lossy(&bytes).into_owned(), left_out })
}
