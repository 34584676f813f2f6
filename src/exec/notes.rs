//! The notes of the ranks: a file for each, as the Python inside the script writes it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::spec::{Backend, Device, Dtype};
use crate::trace::{Event, LONGEST_LINE};

/// A line of a rank's file.
#[derive(Debug)]
pub struct Line {
    /// Nanoseconds since the Unix epoch, on the rank's clock.
    pub t_ns: u64,
    /// Content of the line.
    pub note: Note,
}

/// Something that a rank noted down.
#[derive(Debug)]
pub enum Note {
    /// The rank has begun its first backward.
    Joined(Joined),
    /// A backward is over.
    Backward(Backward),
    /// Parameters and microbatches are numbered.
    Agreed(Agreed),
    /// An optimizer has stepped.
    Stepped {
        /// Optimizer step.
        step: usize,
        /// True if no other optimizer is to step before the step is over.
        is_last: bool,
    },
    /// All microbatches of a step were given up: what was noted of it does not count.
    GivenUp {
        /// Optimizer step.
        step: usize,
        /// The event.
        event: Box<Event>,
    },
    /// An event of the trace.
    Event(Box<Event>),
}

/// First note of a rank.
#[derive(Debug, Deserialize)]
pub struct Joined {
    /// Id of the process.
    pub pid: u32,
    /// Number of ranks.
    pub world_size: usize,
    /// Names and versions of packages.
    pub versions: BTreeMap<String, String>,
    /// Device of the rank's gradients.
    pub device: String,
    /// Kind of that device.
    pub kind: Device,
    /// Backend of the default process group.
    pub backend: Backend,
}

/// Note on a backward.
#[derive(Debug, Deserialize)]
pub struct Backward {
    /// Optimizer step.
    pub step: usize,
    /// Microbatch.
    pub microbatch: usize,
    /// Number of AccumulateGrad nodes in the graph.
    pub nodes: usize,
    /// Names of the parameters that the graph reaches.
    pub reached: Vec<String>,
    /// Number of gradients that autograd delivered, by name.
    pub fired: BTreeMap<String, u32>,
}

/// Note on the numbering of microbatches.
#[derive(Debug, Deserialize)]
pub struct Agreed {
    /// The largest number of microbatches of any rank in the first step.
    pub microbatches: usize,
    /// Number of codes that were reserved for the microbatches of the first step.
    pub reserved: usize,
    /// The narrowest dtype of the gradients that autograd delivered.
    pub dtype: Dtype,
}

/// Note on the step of an optimizer.
#[derive(Deserialize)]
struct Stepped {
    step: usize,
    is_last: bool,
}

/// The raw form of a line.
#[derive(Deserialize)]
struct Raw {
    t_ns: u64,
    event: Value,
}

impl Line {
    fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        let Raw { t_ns, event } = serde_json::from_slice(text)?;
        let note = match event.get("type").and_then(Value::as_str) {
            Some("script-joined") => Note::Joined(Joined::deserialize(event)?),
            Some("backward-ended") => Note::Backward(Backward::deserialize(event)?),
            Some("ranks-agreed") => Note::Agreed(Agreed::deserialize(event)?),
            Some("step-taken") => {
                let Stepped { step, is_last } = Stepped::deserialize(event)?;
                Note::Stepped { step, is_last }
            }
            _ => match Event::deserialize(event)? {
                event @ Event::WindowGivenUp { step, .. } => {
                    Note::GivenUp { step, event: Box::new(event) }
                }
                event => Note::Event(Box::new(event)),
            },
        };
        Ok(Self { t_ns, note })
    }

    /// True if this is the last note of a rank that has finished.
    fn is_the_end(&self) -> bool {
        matches!(&self.note, Note::Event(event) if **event == Event::Finished)
    }
}

/// The notes of all ranks, read while they are written.
#[derive(Debug)]
pub struct Notes {
    directory: PathBuf,
    /// Notes by rank.
    pub ranks: BTreeMap<usize, Vec<Line>>,
    /// Number of bytes of each rank's file that were read.
    read: BTreeMap<usize, u64>,
}

impl Notes {
    /// The notes in this directory, none of which is read yet.
    pub fn in_dir(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), ranks: BTreeMap::new(), read: BTreeMap::new() }
    }

    /// Reads what the ranks have written since the last time, and returns true if that is anything.
    /// A line that is not written to its end is left for the next time.
    ///
    /// # Errors
    /// When a file cannot be read, or a line of it is no note.
    pub fn read_on(&mut self) -> io::Result<bool> {
        let mut grown = false;
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let Some(rank) = rank_of(&entry.path()) else { continue };
            let start = self.read.entry(rank).or_default();
            let mut file = File::open(entry.path())?;
            file.seek(SeekFrom::Start(*start))?;
            let mut reader = BufReader::new(file);
            loop {
                let mut text = Vec::new();
                reader.by_ref().take(LONGEST_LINE as u64).read_until(b'\n', &mut text)?;
                if text.last() != Some(&b'\n') {
                    break;
                }
                *start += text.len() as u64;
                grown = true;
                self.ranks.entry(rank).or_default().push(Line::parse(&text)?);
            }
        }
        Ok(grown)
    }

    /// Processes of the ranks that have joined, by rank.
    pub fn joined(&self) -> BTreeMap<usize, u32> {
        let pid = |lines: &Vec<Line>| {
            lines.iter().find_map(|line| match &line.note {
                Note::Joined(joined) => Some(joined.pid),
                _ => None,
            })
        };
        self.ranks.iter().filter_map(|(rank, lines)| Some((*rank, pid(lines)?))).collect()
    }

    /// Number of ranks, as the first one that joined has it; none if no rank joined.
    pub fn world_size(&self) -> Option<usize> {
        self.ranks.values().flatten().find_map(|line| match &line.note {
            Note::Joined(joined) => Some(joined.world_size),
            _ => None,
        })
    }

    /// True if every rank has said that it has finished.
    pub fn are_complete(&self) -> bool {
        let finished = |lines: &&Vec<Line>| lines.last().is_some_and(Line::is_the_end);
        let count = self.ranks.values().filter(finished).count();
        self.world_size().is_some_and(|ranks| count >= ranks)
    }
}

/// The rank whose notes a file holds; none for other files.
fn rank_of(path: &Path) -> Option<usize> {
    path.file_name()?.to_str()?.strip_prefix("rank-")?.strip_suffix(".jsonl")?.parse().ok()
}
