//! The messages about a DeepSpeed file: positions of keys, notes, and one error with all problems.

use std::fmt;
use std::io;

use crate::spec::{DeepSpeedFile, SpecRequest, settings};

/// A position in the file, counted as editors do: from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A key of the file and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// The full key path as written in the file, such as `zero_optimization.stage`. Empty for a position without a
    /// key, such as that of a syntax error.
    pub path: String,
    /// The position of the key.
    pub at: Position,
}

/// A remark about some keys of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remark {
    /// The keys that the remark is about, the most telling first. Empty for a remark about something that the file
    /// lacks.
    pub spots: Vec<Spot>,
    /// The text of the remark.
    pub text: String,
}

impl Remark {
    /// The sort key of the remark: its position in the file, with remarks about missing keys last.
    pub(super) fn place(&self) -> (bool, Option<Position>) {
        let at = self.spots.first().map(|spot| spot.at);
        (at.is_none(), at)
    }

    /// Adds a remark, or adds its keys to an earlier remark with the same text.
    pub(super) fn add(remarks: &mut Vec<Remark>, mut spots: Vec<Spot>, text: &str) {
        match remarks.iter_mut().find(|remark| remark.text == text) {
            Some(remark) => remark.spots.append(&mut spots),
            None => remarks.push(Remark { spots, text: text.to_owned() }),
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, file: &str) -> fmt::Result {
        f.write_str(file)?;
        if let Some(first) = self.spots.first() {
            write!(f, ":{}", first.at)?;
        }
        f.write_str(": ")?;
        let named = self.spots.iter().filter(|spot| !spot.path.is_empty());
        for (index, spot) in named.enumerate().take(MOST_SPOTS) {
            match index {
                0 => f.write_str(&spot.path)?,
                _ => write!(f, ", {} ({})", spot.path, spot.at)?,
            }
        }
        if let Some(more) = self.spots.len().checked_sub(MOST_SPOTS).filter(|more| *more > 0) {
            write!(f, " and {more} more")?;
        }
        match self.spots.first() {
            Some(first) if !first.path.is_empty() => write!(f, ": {}", self.text),
            _ => f.write_str(&self.text),
        }
    }
}

/// The maximum number of keys that a remark names; further keys are only counted.
const MOST_SPOTS: usize = 12;

/// The maximum number of problems or notes that are shown for a file; further ones are only counted.
pub(super) const MOST_SHOWN: usize = 40;

/// A decision that was made when a file was applied, and that the file's owner should know.
///
/// The display form is one line, `FILE:LINE:COLUMN: KEY: TEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub(super) file: String,
    pub(super) remark: Remark,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.remark.write(f, &self.file)
    }
}

/// A reason why a file cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub(super) remark: Remark,
    pub(super) kind: Kind,
}

/// The kind of a problem: a mistake in the file, or something that zprobe lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The file itself is wrong.
    Mistake,
    /// The key is in no DeepSpeed release that zprobe knows: a mistake, or a key of a newer release
    /// or a private build.
    Unknown {
        /// The text of the remark that replaces the problem if the installed engine decides.
        note: String,
    },
    /// The file is right, but asks for something that zprobe's native engine lacks.
    NotYet {
        /// The flag that overrides the key on the command line.
        unless: Option<&'static str>,
    },
    /// The file is right, but asks for something that zprobe replaces by its own under every engine.
    Replaced {
        /// The flag that chooses the replacement.
        by: &'static str,
    },
}

impl Problem {
    pub(super) fn mistake(spots: Vec<Spot>, text: impl Into<String>) -> Problem {
        Problem { remark: Remark { spots, text: text.into() }, kind: Kind::Mistake }
    }

    pub(super) fn unknown(
        spots: Vec<Spot>,
        text: impl Into<String>,
        note: impl Into<String>,
    ) -> Problem {
        let kind = Kind::Unknown { note: note.into() };
        Problem { remark: Remark { spots, text: text.into() }, kind }
    }

    pub(super) fn not_yet(
        spots: Vec<Spot>,
        unless: Option<&'static str>,
        text: impl Into<String>,
    ) -> Problem {
        Problem { remark: Remark { spots, text: text.into() }, kind: Kind::NotYet { unless } }
    }

    pub(super) fn replaced(spots: Vec<Spot>, by: &'static str, text: impl Into<String>) -> Problem {
        Problem { remark: Remark { spots, text: text.into() }, kind: Kind::Replaced { by } }
    }

    /// True if the problem is about one of the three batch sizes.
    pub(super) fn is_about_batch(&self) -> bool {
        const KEYS: [&str; 3] =
            ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"];
        self.remark.spots.iter().any(|spot| KEYS.contains(&spot.path.as_str()))
    }

    /// True if the request solves this problem: something that the native engine lacks does not matter to another
    /// engine, nor for a key that a flag overrides.
    pub(super) fn is_settled_by(&self, request: &SpecRequest) -> bool {
        let use_of_it = request.engine.unwrap_or_default().traits().deepspeed_file;
        match self.kind {
            Kind::Mistake => false,
            Kind::Unknown { .. } => use_of_it == DeepSpeedFile::PassedOn,
            Kind::Replaced { by } => settings::is_asked(by, request),
            Kind::NotYet { unless } => {
                use_of_it != DeepSpeedFile::Followed
                    || unless.is_some_and(|flag| settings::is_asked(flag, request))
            }
        }
    }
}

/// The error about a DeepSpeed file that cannot be run.
///
/// The display form has several lines, ready for a terminal: the file with a summary, then one line for every
/// problem, in the order of the file.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read at all.
    Unreadable {
        /// The path of the file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is larger than any DeepSpeed configuration.
    TooLarge {
        /// The path of the file.
        file: String,
    },
    /// The file was read, but something in it prevents a run.
    Unusable {
        /// The path of the file.
        file: String,
        /// All problems of the file; never empty.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    pub(super) fn unusable(file: String, mut problems: Vec<Problem>) -> ConfigError {
        problems.sort_by_key(|problem| problem.remark.place());
        ConfigError::Unusable { file, problems }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, problems) = match self {
            ConfigError::Unreadable { file, source } => {
                return write!(f, "{file}: cannot read this DeepSpeed configuration: {source}");
            }
            ConfigError::TooLarge { file } => {
                return write!(
                    f,
                    "{file}: larger than 1 MiB, but a DeepSpeed configuration has only a few kilobytes; \
                     is this another file?"
                );
            }
            ConfigError::Unusable { file, problems } => (file, problems),
        };
        let is_lacking = |kind: &Kind| matches!(kind, Kind::NotYet { .. } | Kind::Replaced { .. });
        let lacking = problems.iter().filter(|problem| is_lacking(&problem.kind)).count();
        let mistakes = problems.len() - lacking;
        let counted = |count: usize, thing: &str| {
            format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
        };
        write!(f, "{file}: this DeepSpeed configuration cannot be run: ")?;
        if mistakes > 0 {
            f.write_str(&counted(mistakes, "mistake"))?;
        }
        if lacking > 0 {
            let separator = if mistakes > 0 { ", and " } else { "" };
            let wish = counted(lacking, "setting");
            let is_native = problems.iter().any(|it| matches!(it.kind, Kind::NotYet { .. }));
            let who = if is_native { "zprobe's native engine" } else { "zprobe" };
            write!(f, "{separator}{wish} that {who} does not support yet")?;
        }
        for problem in problems.iter().take(MOST_SHOWN) {
            f.write_str("\n  ")?;
            problem.remark.write(f, file)?;
        }
        match problems.len().saturating_sub(MOST_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

// The message contains the cause of an unreadable file, so `source` is not implemented.
impl std::error::Error for ConfigError {}
