//! Writes the trace as it happens, without secrets, and shows each record to the observer.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::NamedTempFile;

use super::LaunchError;
use crate::redact::{Known, Private, Redactor};
use crate::spec::RunSpec;
use crate::trace::{Event, PROTOCOL_VERSION, Record, TRACE_FILE};

/// The trace of a run, being written.
pub(super) struct Recorder<'a> {
    path: PathBuf,
    file: BufWriter<File>,
    observer: &'a mut dyn FnMut(&Record),
    run: &'a str,
    next_seq: u64,
    redactor: Redactor,
    /// Whether the specification has secrets, which no trace tells afterwards.
    has_secrets: bool,
}

impl<'a> Recorder<'a> {
    /// Starts the trace of run `run` in `run_dir`.
    pub(super) fn create(
        run_dir: &Path,
        run: &'a str,
        spec: &RunSpec,
        observer: &'a mut dyn FnMut(&Record),
    ) -> Result<Self, LaunchError> {
        let path = run_dir.join(TRACE_FILE);
        let file = File::create(&path)
            .map_err(|cause| LaunchError::RunDir { path: path.clone(), cause })?;
        let mut known = Known::default();
        spec.deepspeed_config.iter().for_each(|config| known.json(config));
        Ok(Self {
            path,
            file: BufWriter::new(file),
            observer,
            run,
            next_seq: 0,
            redactor: Redactor::of_secrets(&Private::here(Vec::new()), &known),
            has_secrets: !known.is_empty(),
        })
    }

    /// Records a rank's `line`, verbatim if there is no secret in it; `record` is what it says.
    pub(super) fn relay(&mut self, line: &[u8], mut record: Record) -> Result<(), LaunchError> {
        let redacted = self.redactor.record(&mut record).map_err(io::Error::from);
        let written = redacted.and_then(|redacted| {
            match redacted {
                true => serde_json::to_writer(&mut self.file, &record)?,
                false => self.file.write_all(line)?,
            }
            self.file.write_all(b"\n")
        });
        self.finish(written, &record)
    }

    /// Records an event of the launcher's own, now.
    pub(super) fn record(&mut self, event: Event) -> Result<(), LaunchError> {
        self.record_at(now_ns(), event)
    }

    /// Records an event that a host saw for the launcher, at the time when it saw it.
    pub(super) fn record_at(&mut self, t_ns: u64, event: Event) -> Result<(), LaunchError> {
        let mut record = Record {
            v: PROTOCOL_VERSION,
            run: self.run.to_owned(),
            rank: None,
            seq: self.next_seq,
            t_ns,
            event,
        };
        self.next_seq += 1;
        let redacted = self.redactor.record(&mut record);
        let written = redacted
            .and_then(|_| serde_json::to_writer(&mut self.file, &record))
            .map_err(io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"));
        self.finish(written, &record)
    }

    /// Hands everything to the operating system, so that it outlives the launcher.
    pub(super) fn flush(&mut self) -> Result<(), LaunchError> {
        self.file.flush().map_err(|cause| self.error(cause))
    }

    /// Takes what the specification has of secrets out of the logs of its run, now that nobody writes to
    /// them any more: with the trace it is not known any more what to look for.
    pub(super) fn keep_secrets_out_of_logs(&self, run_dir: &Path) -> Result<(), LaunchError> {
        if !self.has_secrets {
            return Ok(());
        }
        let logs = || -> io::Result<()> {
            for entry in fs::read_dir(run_dir)? {
                let entry = entry?;
                let is_log = entry.path().extension().is_some_and(|it| it == "log");
                if is_log && entry.file_type()?.is_file() {
                    self.keep_secrets_out_of(&entry.path(), run_dir)?;
                }
            }
            Ok(())
        };
        logs().map_err(|cause| self.error(cause))
    }

    /// Writes a log again if a secret stands in it.
    fn keep_secrets_out_of(&self, log: &Path, run_dir: &Path) -> io::Result<()> {
        let mut clean = NamedTempFile::new_in(run_dir)?;
        let mut reader = BufReader::new(File::open(log)?);
        let (mut line, mut found) = (Vec::new(), false);
        while reader.read_until(b'\n', &mut line)? > 0 {
            let text = String::from_utf8_lossy(&line);
            let redacted = self.redactor.without_known(&text);
            found |= redacted != text;
            clean.write_all(if redacted == text { &line } else { redacted.as_bytes() })?;
            line.clear();
        }
        if found {
            clean.persist(log).map_err(|error| error.error)?;
        }
        Ok(())
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
