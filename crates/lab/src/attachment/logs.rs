//! The ends of the logs that a run left behind.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use zprobe_model::run_dir;
use zprobe_redact::Redactor;

/// Most bytes of one log, and of all of them.
const MOST: u64 = 64 << 10;
const MOST_OF_ALL: u64 = 4 << 20;

/// The end of a log.
pub struct Tail {
    /// Name of its file.
    pub name: String,
    /// Whole lines at the end of the log.
    pub text: String,
    /// Number of bytes that were left out before them.
    pub left_out: u64,
}

impl Tail {
    /// The tail without what is private.
    pub fn redacted(self, redactor: &Redactor) -> Self {
        Self { name: redactor.text(&self.name), text: redactor.text(&self.text), ..self }
    }
}

/// The ends of all logs of a run, by name; empty ones are left out.
///
/// # Errors
/// When a log cannot be read.
pub fn tails(dir: &Path) -> io::Result<Vec<Tail>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // All logs that a run writes have such names; others could mislead whoever unpacks them.
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if !name.ends_with(".log") || !name.chars().all(plain) {
            continue;
        }
        // Metadata of the entry itself: neither a link nor a pipe is a log.
        let log = entry.metadata()?;
        if log.is_file() && log.len() > 0 {
            names.push(name);
        }
    }
    names.sort();
    let most = MOST.min(MOST_OF_ALL / (names.len() as u64).max(1));
    names.into_iter().map(|name| tail(dir, name, most)).collect()
}

fn tail(dir: &Path, name: String, most: u64) -> io::Result<Tail> {
    let mut file = run_dir::open(&dir.join(&name))?;
    let length = file.metadata()?.len();
    let mut left_out = length.saturating_sub(most);
    file.seek(SeekFrom::Start(left_out))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    if left_out > 0
        && let Some(feed) = bytes.iter().position(|byte| *byte == b'\n')
    {
        // The rest of a cut line could be a part of something private that is not recognised as
        // such.
        bytes.drain(..=feed);
        left_out += feed as u64 + 1;
    }
    Ok(Tail { name, text: String::from_utf8_lossy(&bytes).into_owned(), left_out })
}
