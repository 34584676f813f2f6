//! Records: events with their rank, order and time, one JSON object a line.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settle::settle;
use super::{Contents, Event, NoAnswer};
use crate::run_dir;
use crate::spec::RunSpec;

/// The version of the record format. Within a version, events and fields are only added.
pub const PROTOCOL_VERSION: u32 = 1;

/// The name of the trace file inside a run directory.
pub const TRACE_FILE: &str = "trace.jsonl";

/// The largest number of bytes of a line. The limit prevents a faulty program or a damaged file from taking all
/// memory.
pub const LONGEST_LINE: usize = 256 << 20;

/// One line of a trace, or of the event channel of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// The version of the record format, [`PROTOCOL_VERSION`].
    pub v: u32,
    /// The id of the run.
    pub run: String,
    /// The rank that sent the record; `None` for the launcher.
    pub rank: Option<usize>,
    /// The number of this record among the records of its rank or of the launcher, from 0.
    pub seq: u64,
    /// The time in nanoseconds since the Unix epoch, on the clock of the process that sent the record.
    pub t_ns: u64,
    /// The recorded event.
    pub event: Event,
}

/// A recorded run, which may be complete or cut off.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The specification of the run.
    pub spec: RunSpec,
    /// Every record of the trace, in the order in which the launcher received the records.
    pub records: Vec<Record>,
}

/// An error that prevents a trace from being read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The directory holds no readable trace.
    #[error("cannot read {path}: {cause}; is it a directory that `zprobe run` recorded?")]
    Unreadable {
        /// The file that could not be read.
        path: PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// A line is longer than any valid record.
    #[error(
        "{path}, line {line}: longer than {LONGEST_LINE} bytes; the trace was damaged or edited"
    )]
    TooLong {
        /// The path of the trace file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
    },
    /// A line is not a record.
    #[error("{path}, line {line}: not a trace record: {}", said(cause))]
    Malformed {
        /// The path of the trace file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The error of the JSON parser.
        cause: serde_json::Error,
    },
    /// The trace was written by an incompatible version of zprobe.
    #[error(
        "{path}, line {line}: record version {found}, but this zprobe reads version \
         {PROTOCOL_VERSION}; use the zprobe that recorded it"
    )]
    Version {
        /// The path of the trace file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The record version in the line.
        found: u32,
    },
    /// An event does not fit the run, for example because the run has no such step.
    #[error("{path}, line {line}: {problem}; the trace was damaged or edited")]
    Implausible {
        /// The path of the trace file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// A description of the fact that does not fit.
        problem: String,
    },
    /// The trace is that of a script that ended before it could be checked.
    #[error("{dir}: {reason}")]
    NoAnswer {
        /// The path of the run directory.
        dir: PathBuf,
        /// The reason why the script could not be checked.
        reason: NoAnswer,
    },
    /// The trace has no record.
    #[error("{path}: the trace is empty: the run ended before it recorded anything")]
    Empty {
        /// The path of the trace file.
        path: PathBuf,
    },
    /// The first record is not `run-started`.
    #[error("{path}: the first record is not run-started; the start of the trace is missing")]
    Headless {
        /// The path of the trace file.
        path: PathBuf,
    },
}

/// Returns the parser's message, cut to a readable length, because the message may repeat a long text of the trace.
fn said(cause: &serde_json::Error) -> String {
    const MOST: usize = 300;
    let text = cause.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}… (column {})", &text[..end], cause.column()),
        None => text,
    }
}

impl Trace {
    /// Reads the trace of a run directory.
    ///
    /// A last line without line feed was cut off while it was written, and is ignored.
    ///
    /// # Errors
    /// Fails if the trace is missing, malformed, or of another version.
    pub fn read(run_dir: &Path) -> Result<Self, TraceError> {
        let path = run_dir.join(TRACE_FILE);
        let unreadable = |cause| TraceError::Unreadable { path: path.clone(), cause };
        let mut reader = BufReader::new(run_dir::open(&path).map_err(unreadable)?);
        let mut records: Vec<Record> = Vec::new();
        let (mut text, mut contents) = (Vec::new(), Contents::default());
        for line in 1.. {
            text.clear();
            let mut rest = reader.by_ref().take(LONGEST_LINE as u64 + 1);
            rest.read_until(b'\n', &mut text).map_err(unreadable)?;
            if text.len() > LONGEST_LINE {
                return Err(TraceError::TooLong { path, line });
            }
            if text.last() != Some(&b'\n') {
                break;
            }
            let mut record: Record = serde_json::from_slice(&text)
                .map_err(|cause| TraceError::Malformed { path: path.clone(), line, cause })?;
            if record.v != PROTOCOL_VERSION {
                return Err(TraceError::Version { path, line, found: record.v });
            }
            contents.complete(&mut record.event);
            records.push(record);
        }
        let spec = |records: &[Record]| match records.first() {
            Some(Record { event: Event::RunStarted { spec, .. }, .. }) => Ok((**spec).clone()),
            Some(_) => Err(TraceError::Headless { path: path.clone() }),
            None => Err(TraceError::Empty { path: path.clone() }),
        };
        let implausible =
            |line, problem| TraceError::Implausible { path: path.clone(), line, problem };
        if !spec(&records)?.is_settled() {
            for (index, record) in records.iter().enumerate() {
                let fits = record.event.fits_script();
                fits.map_err(|problem| implausible(index + 1, problem))?;
            }
            settle(&mut records)
                .map_err(|reason| TraceError::NoAnswer { dir: run_dir.to_owned(), reason })?;
        }
        let spec = spec(&records)?;
        spec.check_values().map_err(|problem| implausible(1, problem.to_string()))?;
        for (index, record) in records.iter().enumerate() {
            record.event.fits(&spec).map_err(|problem| implausible(index + 1, problem))?;
        }
        Ok(Self { spec, records })
    }

    /// Returns the events in order, each with its rank, which is `None` for the launcher.
    pub fn events(&self) -> impl Iterator<Item = (Option<usize>, &Event)> {
        self.records.iter().map(|record| (record.rank, &record.event))
    }

    /// Returns the number of a rank's records that the trace lacks, from the gaps between the sequence numbers.
    pub fn missing_of(&self, rank: usize) -> u64 {
        let of_rank = self.records.iter().filter(|record| record.rank == Some(rank));
        let present: BTreeSet<u64> = of_rank.map(|record| record.seq).collect();
        let last = present.last().map_or(0, |last| last.saturating_add(1));
        last - present.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_damaged_line_does_not_repeat_all_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let line = format!(r#"{{"v":1,"event":{{"type":"{}"}}}}"#, "x".repeat(1 << 20));
        std::fs::write(dir.path().join(TRACE_FILE), line + "\n").unwrap();
        let error = Trace::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("line 1: not a trace record: unknown variant `xxx"), "{error}");
        assert!(error.len() < 1000, "{} bytes", error.len());
    }
    #[test]
    fn a_trace_without_records_is_called_empty() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{\"v\":1,\"ru"] {
            std::fs::write(dir.path().join(TRACE_FILE), text).unwrap();
            let error = Trace::read(dir.path()).unwrap_err().to_string();
            let wanted = "the trace is empty: the run ended before it recorded anything";
            assert!(error.contains(wanted), "{error}");
        }
    }
}
