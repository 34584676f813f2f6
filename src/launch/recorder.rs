//! Writes the trace as it happens, and shows each record to the observer.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::LaunchError;
use crate::run_dir;
use crate::trace::{Event, PROTOCOL_VERSION, Record, TRACE_FILE};

/// The trace of a run, being written.
pub(super) struct Recorder<'a> {
    path: PathBuf,
    file: BufWriter<File>,
    observer: &'a mut dyn FnMut(&Record),
    run: &'a str,
    next_seq: u64,
}

impl<'a> Recorder<'a> {
    /// Starts the trace of run `run` in `dir`.
    pub(super) fn create(
        dir: &Path,
        run: &'a str,
        observer: &'a mut dyn FnMut(&Record),
    ) -> Result<Self, LaunchError> {
        let path = dir.join(TRACE_FILE);
        let file = run_dir::create(&path)
            .map_err(|cause| LaunchError::RunDir { path: path.clone(), cause })?;
        Ok(Self { path, file: BufWriter::new(file), observer, run, next_seq: 0 })
    }

    /// Records a rank's `line`, verbatim; `record` is what it says.
    pub(super) fn relay(&mut self, line: &[u8], record: &Record) -> Result<(), LaunchError> {
        let written = self.file.write_all(line).and_then(|()| self.file.write_all(b"\n"));
        self.finish(written, record)
    }

    /// Records an event of the launcher's own, now.
    pub(super) fn record(&mut self, event: Event) -> Result<(), LaunchError> {
        self.record_at(now_ns(), event)
    }

    /// Records an event that a host saw for the launcher, at the time when it saw it.
    pub(super) fn record_at(&mut self, t_ns: u64, event: Event) -> Result<(), LaunchError> {
        let record = Record {
            v: PROTOCOL_VERSION,
            run: self.run.to_owned(),
            rank: None,
            seq: self.next_seq,
            t_ns,
            event,
        };
        self.next_seq += 1;
        let written = serde_json::to_writer(&mut self.file, &record)
            .map_err(io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"));
        self.finish(written, &record)
    }

    /// Hands everything to the operating system, so that it outlives the launcher.
    pub(super) fn flush(&mut self) -> Result<(), LaunchError> {
        self.file.flush().map_err(|cause| self.error(cause))
    }

    fn finish(&mut self, written: io::Result<()>, record: &Record) -> Result<(), LaunchError> {
        written.map_err(|cause| self.error(cause))?;
        (self.observer)(record);
        Ok(())
    }

    fn error(&self, cause: io::Error) -> LaunchError {
        LaunchError::RunDir { path: self.path.clone(), cause }
    }
}

/// Nanoseconds since the Unix epoch.
pub(super) fn now_ns() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}
