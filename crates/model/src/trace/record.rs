//! Records: events with their sender, order and time, one JSON object a line.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::settle::settle;
use super::{Contents, Event, NoAnswer};
use crate::run_dir;
use crate::spec::RunSpec;

/// Version of the record format. Events and fields are only ever added within a version.
pub const PROTOCOL_VERSION: u32 = 1;

/// Name of the trace inside a run directory.
pub const TRACE_FILE: &str = "trace.jsonl";

/// Largest number of bytes of a line, so that neither a faulty program nor a damaged file takes all
/// memory.
pub const LONGEST_LINE: usize = 256 << 20;

/// One line of a trace, and of a rank's event channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// Version of the record format: [`PROTOCOL_VERSION`].
    pub v: u32,
    /// Id of the run.
    pub run: String,
    /// Rank that sent the record; none for the launcher.
    pub rank: Option<usize>,
    /// Number of this record among those of its sender, from 0.
    pub seq: u64,
    /// Nanoseconds since the Unix epoch, on the sender's clock.
    pub t_ns: u64,
    /// The event itself.
    pub event: Event,
}

/// A recorded run, complete or cut off.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Specification of the run.
    pub spec: RunSpec,
    /// Every record, in the order in which the launcher received them.
    pub records: Vec<Record>,
}

/// Error that prevents a trace from being read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The directory holds no readable trace.
    #[error("cannot read {path}: {cause}; is it a directory that `zprobe run` recorded?")]
    Unreadable {
        /// File that was tried.
        path: PathBuf,
        /// Error of the operating system.
        cause: std::io::Error,
    },
    /// A line is longer than any record.
    #[error(
        "{path}, line {line}: longer than {LONGEST_LINE} bytes; the trace was damaged or edited"
    )]
    TooLong {
        /// The trace.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
    },
    /// A line is no record.
    #[error("{path}, line {line}: not a trace record: {}", said(cause))]
    Malformed {
        /// The trace.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Error of the parser.
        cause: serde_json::Error,
    },
    /// The trace was written by an incompatible zprobe.
    #[error(
        "{path}, line {line}: record version {found}, but this zprobe reads version \
         {PROTOCOL_VERSION}; use the zprobe that recorded it"
    )]
    Version {
        /// The trace.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Version found.
        found: u32,
    },
    /// An event points outside the run.
    #[error("{path}, line {line}: {problem}; the trace was damaged or edited")]
    Implausible {
        /// The trace.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Description of what does not fit.
        problem: String,
    },
    /// The trace is that of a script that did not come far enough.
    #[error("{dir}: {reason}")]
    NoAnswer {
        /// The run directory.
        dir: PathBuf,
        /// Reason why nothing can be said of it.
        reason: NoAnswer,
    },
    /// There is no record.
    #[error("{path}: the trace is empty: its run ended before it had recorded anything")]
    Empty {
        /// The trace.
        path: PathBuf,
    },
    /// The first record is not `run-started`.
    #[error("{path}: the first record is not run-started; the start of the trace is missing")]
    Headless {
        /// The trace.
        path: PathBuf,
    },
}

/// Message of the parser, cut to a length that can be read: it may repeat a text of the trace.
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
    /// A last line without line feed was cut off while it was written; it is left out.
    ///
    /// # Errors
    /// When the trace is missing, malformed, or of another version.
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

    /// Events with their sender, in order.
    pub fn events(&self) -> impl Iterator<Item = (Option<usize>, &Event)> {
        self.records.iter().map(|record| (record.rank, &record.event))
    }

    /// Number of a rank's records that the trace lacks, by the gaps between its sequence numbers.
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
            let wanted = "the trace is empty: its run ended before it had recorded anything";
            assert!(error.contains(wanted), "{error}");
        }
    }
}
