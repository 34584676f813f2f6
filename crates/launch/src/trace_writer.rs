//! Writes the trace without secrets while the run is in progress, and shows each record to the observer.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::NamedTempFile;

use super::LaunchError;
use super::selection::{LineDecision, Selection};
use zprobe_model::run_dir;
use zprobe_model::spec::RunSpec;
use zprobe_model::trace::{Event, PROTOCOL_VERSION, Record, TRACE_FILE};
use zprobe_redact::{Known, Private, Redactor};

/// The writer of a run's trace.
pub(super) struct TraceWriter<'a> {
    path: PathBuf,
    file: BufWriter<File>,
    observer: &'a mut dyn FnMut(&Record),
    run: &'a str,
    next_seq: u64,
    selection: Selection,
    redactor: Redactor,
    /// True if the specification holds secrets. The trace does not contain them, so they cannot be looked up later.
    has_secrets: bool,
}

impl<'a> TraceWriter<'a> {
    /// Creates the trace file of the run `run` in `dir`.
    pub(super) fn create(
        dir: &Path,
        run: &'a str,
        spec: &RunSpec,
        observer: &'a mut dyn FnMut(&Record),
    ) -> Result<Self, LaunchError> {
        let path = dir.join(TRACE_FILE);
        let file = run_dir::create(&path)
            .map_err(|cause| LaunchError::RunDir { path: path.clone(), cause })?;
        let mut known = Known::default();
        spec.deepspeed_config().into_iter().for_each(|config| known.json(config));
        Ok(Self {
            path,
            file: BufWriter::new(file),
            observer,
            run,
            next_seq: 0,
            selection: Selection::new(spec),
            redactor: Redactor::of_secrets(&Private::here(Vec::new()), &known),
            has_secrets: !known.is_empty(),
        })
    }

    /// Prepares for ranks with numbers below `ranks`.
    pub(super) fn grow(&mut self, ranks: usize) {
        self.selection.grow(ranks);
    }

    /// Records the start of the run, which is the first record of a trace.
    pub(super) fn start(&mut self, spec: &RunSpec) -> Result<(), LaunchError> {
        self.record(Event::RunStarted {
            spec: Box::new(spec.clone()),
            zprobe: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    /// Records the line of a rank without its secrets, if the spec selects the line for the trace. `record` is the
    /// parsed line.
    pub(super) fn relay(&mut self, line: &[u8], mut record: Record) -> Result<(), LaunchError> {
        let before = self.selection.before_failure(&record);
        let written = self.without_secrets(&mut record).and_then(|redacted| {
            before.iter().try_for_each(|line| self.write_line(line))?;
            let line = redacted.as_deref().unwrap_or(line);
            match self.selection.choose(line, &record) {
                LineDecision::Whole => self.write_line(line),
                LineDecision::WithoutContent(line) => self.write_line(&line),
                LineDecision::LeftOut => Ok(()),
            }
        });
        self.finish(written, &record)
    }

    /// Records an event of a rank that the rank did not report itself.
    pub(super) fn record_of(
        &mut self,
        rank: usize,
        seq: u64,
        event: Event,
    ) -> Result<(), LaunchError> {
        let run = self.run.to_owned();
        let record =
            Record { v: PROTOCOL_VERSION, run, rank: Some(rank), seq, t_ns: now_ns(), event };
        let line = serde_json::to_vec(&record).map_err(|cause| self.error(cause.into()))?;
        self.relay(&line, record)
    }

    /// Records an event of the launcher with the current time.
    pub(super) fn record(&mut self, event: Event) -> Result<(), LaunchError> {
        self.record_at(now_ns(), event)
    }

    /// Records an event of the launcher with the time at which it was observed, for example by a host.
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
        let last_words = self.selection.last_words(&record.event);
        let redacted = self.redactor.record(&mut record);
        let line = redacted.and_then(|_| serde_json::to_vec(&record)).map_err(io::Error::from);
        let written = line.and_then(|line| {
            last_words.iter().chain([&line]).try_for_each(|line| self.write_line(line))
        });
        self.finish(written, &record)
    }

    /// Removes the secrets from a record. Returns the new line of the record, or `None` if there were no secrets.
    fn without_secrets(&self, record: &mut Record) -> io::Result<Option<Vec<u8>>> {
        let redacted = self.redactor.record(record)?;
        Ok(redacted.then(|| serde_json::to_vec(record)).transpose()?)
    }

    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        self.selection.written(line.len() + 1);
        self.file.write_all(line).and_then(|()| self.file.write_all(b"\n"))
    }

    /// Hands all trace data to the operating system, so that the data outlives the launcher.
    pub(super) fn flush(&mut self) -> Result<(), LaunchError> {
        self.file.flush().map_err(|cause| self.error(cause))
    }

    /// Removes the secrets of the specification from the logs of the run, once no process writes to the logs any
    /// more. This cannot be done later, because the trace does not contain the secret texts.
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

    /// Rewrites a log without the secrets in it, if there are any.
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
        if record.event == Event::Finished {
            // The observer of the last rank to finish may read the trace at once.
            self.flush()?;
        }
        (self.observer)(record);
        Ok(())
    }

    fn error(&self, cause: io::Error) -> LaunchError {
        LaunchError::RunDir { path: self.path.clone(), cause }
    }
}

/// Writes the trace of a completed run into `dir`. Each event comes with its rank, which is `None` for the launcher,
/// and its time in nanoseconds.
///
/// # Errors
/// Fails if the trace cannot be written.
pub fn record_all(
    dir: &Path,
    run: &str,
    spec: &RunSpec,
    events: impl IntoIterator<Item = (Option<usize>, u64, Event)>,
) -> Result<(), LaunchError> {
    let mut unseen = |_: &Record| {};
    let mut trace = TraceWriter::create(dir, run, spec, &mut unseen)?;
    trace.start(spec)?;
    let mut sequence = vec![0; spec.world_size];
    for (sender, t_ns, event) in events {
        let Some(rank) = sender else {
            trace.record_at(t_ns, event)?;
            continue;
        };
        let Some(next) = sequence.get_mut(rank) else { continue };
        let record = Record {
            v: PROTOCOL_VERSION,
            run: run.to_owned(),
            rank: sender,
            seq: *next,
            t_ns,
            event,
        };
        *next += 1;
        let line = serde_json::to_vec(&record).map_err(|err| trace.error(err.into()))?;
        trace.relay(&line, record)?;
    }
    trace.flush()
}

/// Returns the current time in nanoseconds since the Unix epoch.
pub fn now_ns() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}
