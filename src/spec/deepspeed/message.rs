//! What the reader says to people: where a key stands, notes, and one error with every problem.

use std::fmt;
use std::io;

use crate::spec::{DeepSpeedFile, SpecRequest, settings};

/// A place in the file, counted as editors do: from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A key of the file, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// Full key path as written in the file, e.g. `zero_optimization.stage`. Empty for a place
    /// that has no key, such as a syntax error's.
    pub path: String,
    /// Where the key stands.
    pub at: Position,
}

/// Something to say about some keys of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remark {
    /// The keys, the most telling first. Empty for a remark about what the file lacks.
    pub spots: Vec<Spot>,
    /// What to say.
    pub text: String,
}

impl Remark {
    /// Sorts remarks as the file goes, those about what it lacks last.
    pub(super) fn place(&self) -> (bool, Option<Position>) {
        let at = self.spots.first().map(|spot| spot.at);
        (at.is_none(), at)
    }

    /// Adds a remark; keys about which there is the same thing to say share one.
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

/// Keys that a remark names before it only counts.
const MOST_SPOTS: usize = 12;

/// Problems of a file that are shown, and notes on it, before they are only counted.
pub(super) const MOST_SHOWN: usize = 40;

/// Something that was decided while a file was applied and that its owner should know.
///
/// Displays as one line, `FILE:LINE:COLUMN: KEY: TEXT`.
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

/// What stands in the way of running a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub(super) remark: Remark,
    pub(super) kind: Kind,
}

/// Who has to change: the file or zprobe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The file is wrong.
    Mistake,
    /// The file has what no DeepSpeed has that zprobe knows: a mistake, or a newer or private one.
    Unknown {
        /// The remark instead where the installed engine decides.
        note: String,
    },
    /// The file is right, and zprobe's native engine lacks what it asks for.
    NotYet {
        /// The flag with which the command line takes the decision away from the file.
        unless: Option<&'static str>,
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

    /// Whether this is about one of the three batch sizes.
    pub(super) fn is_about_batch(&self) -> bool {
        const KEYS: [&str; 3] =
            ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"];
        self.remark.spots.iter().any(|spot| KEYS.contains(&spot.path.as_str()))
    }

    /// Whether what was asked for besides the file keeps this problem from arising: what the
    /// native engine lacks matters neither to another engine nor to a key that a flag overrides.
    pub(super) fn is_settled_by(&self, request: &SpecRequest) -> bool {
        let use_of_it = request.engine.unwrap_or_default().traits().deepspeed_file;
        match self.kind {
            Kind::Mistake => false,
            Kind::Unknown { .. } => use_of_it == DeepSpeedFile::PassedOn,
            Kind::NotYet { unless } => {
                use_of_it != DeepSpeedFile::Followed
                    || unless.is_some_and(|flag| settings::is_asked(flag, request))
            }
        }
    }
}

/// Why a DeepSpeed file cannot be run.
///
/// Displays as several lines, ready for a terminal: the file with a summary, then one line for
/// every problem, in the order of the file.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read at all.
    Unreadable {
        /// The file.
        file: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file is larger than any configuration.
    TooLarge {
        /// The file.
        file: String,
    },
    /// The file was read, and something in it stands in the way.
    Unusable {
        /// The file.
        file: String,
        /// Everything that stands in the way; never empty.
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
                    "{file}: larger than 1 MiB, and a DeepSpeed configuration has a few kilobytes; \
                     is this another file?"
                );
            }
            ConfigError::Unusable { file, problems } => (file, problems),
        };
        let lacking = problems.iter().filter(|p| matches!(p.kind, Kind::NotYet { .. })).count();
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
            write!(f, "{separator}{wish} that zprobe's native engine does not have yet")?;
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

// An unreadable file's cause is part of the message, so there is no source beside it.
impl std::error::Error for ConfigError {}
