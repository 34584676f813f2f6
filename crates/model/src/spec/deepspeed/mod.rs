//! Reads a user's DeepSpeed file as the user wrote it.
//!
//! [`DeepSpeedConfig::apply`] fills the settings of a [`SpecRequest`] that the command line left open. If the file does
//! not set a key, DeepSpeed's default applies and not zprobe's, so the run is the one that the file describes.
//!
//! Only the keys that the run follows from are interpreted. The real DeepSpeed gets the whole file and judges the other
//! keys. The native engine refuses unknown keys, and keys that it does not support. A file is refused with all of its
//! problems at once, each with its key path and position.

mod batch;
mod complete;

mod fill;
mod hjson;
mod keys;
mod member;
mod optimizer;
mod reader;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use super::{DeepSpeedFile, SpecRequest};
use crate::document::Document;
pub(super) use complete::{complete, number, put, write_dtype, write_loss_scale};
use hjson::Parsed;
#[cfg(test)]
pub(super) use keys::has_key;
pub use keys::top_level;
pub use member::Member;
use reader::Reader;

/// The maximum size of a file, in bytes. The longest files that people write have some ten thousand bytes.
const MAX_BYTES: u64 = 1 << 20;

/// A DeepSpeed file that has been parsed. [`DeepSpeedConfig::apply`] reports the problems with running the file,
/// because they depend on flags.
#[derive(Clone, Debug)]
pub struct DeepSpeedConfig {
    document: Document,
    parsed: Parsed,
}

/// The error about a DeepSpeed file that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read at all.
    #[error("{file}: cannot read this DeepSpeed configuration: {cause}")]
    Unreadable {
        /// The path of the file.
        file: String,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The file is larger than any DeepSpeed configuration.
    #[error(
        "{file}: larger than 1 MiB, but a DeepSpeed configuration has only a few kilobytes; is this another file?"
    )]
    TooLarge {
        /// The path of the file.
        file: String,
    },
    /// The file was read, but something in it prevents a run.
    #[error("{file}: this DeepSpeed configuration cannot be run:\n  {}", .problems.join("\n  "))]
    Unusable {
        /// The path of the file.
        file: String,
        /// All problems of the file, one line each, in the order of the file; never empty.
        problems: Vec<String>,
    },
}

impl DeepSpeedConfig {
    /// Reads a DeepSpeed file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if its syntax is wrong.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let mut text = String::new();
        let opened = File::open(path);
        match opened.and_then(|opened| opened.take(MAX_BYTES + 1).read_to_string(&mut text)) {
            Ok(bytes) if bytes as u64 > MAX_BYTES => Err(ConfigError::TooLarge { file }),
            Ok(_) => Self::parse(&text, &file),
            Err(cause) => Err(ConfigError::Unreadable { file, cause }),
        }
    }

    /// Parses the text of a DeepSpeed file; `file` is its name in messages.
    ///
    /// # Errors
    /// Fails if the syntax of the text is wrong.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).to_owned();
        let document = Document { file: file.to_owned(), text };
        match hjson::parse(&document.text) {
            Ok(parsed) => Ok(Self { document, parsed }),
            Err((at, problem)) => {
                let problems = vec![document.complain(at..at, problem).to_string()];
                Err(ConfigError::Unusable { file: document.file, problems })
            }
        }
    }

    /// Fills the settings that `request` leaves open: a flag or variable that was given wins over the file. Returns
    /// notes for the file's owner, one line each.
    ///
    /// # Errors
    /// Fails with all problems of running the file with these flags. The request is then unchanged.
    pub fn apply(&self, request: &mut SpecRequest) -> Result<Vec<String>, ConfigError> {
        let engine_use = request.engine.unwrap_or_default().traits().deepspeed_file;
        let mut reader = Reader::new(self, engine_use);
        let mut filled = request.clone();
        reader.check_section("");
        reader.fill(request, &mut filled);
        if engine_use == DeepSpeedFile::PassedOn {
            filled.deepspeed_config = Some(reader.passed_on(request));
        }
        let notes = reader.finish()?;
        *request = filled;
        Ok(notes)
    }
}
