//! The files that zprobe leaves in the working directory: `.zprobe`, and the recorded runs in it.
//!
//! Only a directory that certainly is a recorded run is ever removed: it is not a link, lies directly in
//! `.zprobe/runs`, holds a trace, and is not being written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail, ensure};
use zprobe_model::run_dir::Claim;
use zprobe_model::trace::{TRACE_FILE, is_recorded, trace_dirs};

/// The default directory for all files that zprobe leaves.
const ROOT: &str = ".zprobe";

/// The default directory for recorded runs.
pub const RUNS: &str = ".zprobe/runs";

/// A new name for a run: the time and the process id, and a number from the second name of a process on. Names are
/// unique on a machine, and sort by time.
pub fn run_id() -> String {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let compact: String = time.chars().filter(|c| !matches!(c, '-' | ':')).collect();
    let name = format!("{compact}-{}", std::process::id());
    match MADE.fetch_add(1, Ordering::Relaxed) {
        0 => name,
        number => format!("{name}-{number}"),
    }
}

/// The path for a new directory in `.zprobe`. Only `.zprobe` itself is made, if it does not exist.
///
/// # Errors
/// When `.zprobe` cannot be made.
pub fn place(kind: &str) -> Result<PathBuf> {
    make_root()?;
    Ok(Path::new(ROOT).join(kind).join(run_id()))
}

/// Records something in a run directory while no other process records in that directory. A run that was not recorded
/// leaves no files.
///
/// # Errors
/// The errors of `make`, or when the directory cannot be used.
pub fn claimed<T>(run_dir: &Path, make: impl FnOnce() -> Result<T>) -> Result<T> {
    prepare(run_dir)?;
    let claim = Claim::new(run_dir)?;
    let made = make();
    if made.is_ok() || is_recorded(run_dir) {
        claim.keep();
    }
    made
}

/// Refuses the directories `.zprobe` and `.zprobe/runs` themselves, and makes `.zprobe` for a run inside of it.
fn prepare(run_dir: &Path) -> Result<()> {
    let run_dir = std::path::absolute(run_dir)?;
    for own in [ROOT, RUNS] {
        ensure!(
            run_dir != std::path::absolute(own)?,
            "{own} is where runs without --out are recorded; name a directory below it, or \
             elsewhere, with --out"
        );
    }
    if run_dir.starts_with(std::path::absolute(ROOT)?) { make_root() } else { Ok(()) }
}

/// Makes `.zprobe` with a `.gitignore` that makes git ignore the directory.
fn make_root() -> Result<()> {
    are_there(Path::new(""))?;
    let made = fs::create_dir_all(ROOT).and_then(|()| {
        let ignore = Path::new(ROOT).join(".gitignore");
        match OpenOptions::new().write(true).create_new(true).open(ignore) {
            Ok(mut file) => file.write_all(b"*\n"),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    });
    made.with_context(|| {
        format!("cannot write into {ROOT}; run zprobe in another directory, or name one with --out")
    })
}

/// True if the directory `base` has the directories of zprobe.
///
/// # Errors
/// When something else is in their place. A link, which the working directory may bring along, would make zprobe
/// write and remove files in an unexpected place.
fn are_there(base: &Path) -> Result<bool> {
    for dir in [base.join(ROOT), base.join(RUNS)] {
        match fs::symlink_metadata(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", dir.display()));
            }
            Ok(it) if !it.is_dir() => bail!(
                "{} is not a directory but a link or a file; nothing is written or removed there: \
                 remove it, or name a directory with --out",
                dir.display()
            ),
            Ok(_) => {}
        }
    }
    Ok(true)
}

/// True if a process is recording a run in the directory: such a process holds a lock on the directory ([`Claim`]). A
/// directory that cannot be opened counts as locked.
fn is_being_written(run_dir: &Path) -> bool {
    match File::open(run_dir) {
        Ok(directory) => directory.try_lock_shared().is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// A recorded run that no process is writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The directory of the run.
    pub path: PathBuf,
    /// The time at which the trace was last written.
    pub written: SystemTime,
    /// The size of all files in the directory, in bytes.
    pub bytes: u64,
}

impl Recorded {
    /// True if the name of the directory has the form of a name that zprobe gives.
    fn is_named_by_zprobe(&self) -> bool {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let Some((time, process)) = name.split_once('-') else { return false };
        let shape: String =
            time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        shape == "00000000T000000Z" && process.parse::<u32>().is_ok()
    }

    /// Removes the directory of the run.
    ///
    /// # Errors
    /// When a file of the run cannot be removed.
    pub fn remove(&self) -> Result<()> {
        match fs::remove_dir_all(&self.path) {
            // Another process has removed the run.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.with_context(|| format!("cannot remove {}", self.path.display()))?,
        }
        Ok(())
    }
}

/// The recorded runs in the directory `base`, the newest first.
///
/// # Errors
/// When a directory cannot be read, or is a link.
pub fn recorded(base: &Path) -> Result<Vec<Recorded>> {
    if !are_there(base)? {
        return Ok(vec![]);
    }
    let runs = base.join(RUNS);
    let cannot = || format!("cannot read {}", runs.display());
    let mut all = Vec::new();
    for entry in fs::read_dir(&runs).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        // The type of a link is not that of its target, so no link passes for a directory.
        if entry.file_type().is_ok_and(|it| it.is_dir()) {
            all.extend(run(entry.path()));
        }
    }
    all.sort_by(|a, b| (b.written, &b.path).cmp(&(a.written, &a.path)));
    Ok(all)
}

/// The run in the directory `base` whose trace was written last.
///
/// # Errors
/// When no run is recorded, or the directory cannot be read.
pub fn newest(base: &Path) -> Result<PathBuf> {
    let newest = recorded(base)?.into_iter().next().map(|run| run.path);
    newest.with_context(|| {
        format!(
            "no run is recorded here, in {RUNS}; record one with `zprobe run`, or name the directory of \
             a recorded run"
        )
    })
}

/// The recorded run in a directory; `None` if the directory has no trace, or is being written.
fn run(path: PathBuf) -> Option<Recorded> {
    let traces = trace_dirs(&path).into_iter().map(|dir| dir.join(TRACE_FILE));
    let files = traces.filter_map(|trace| fs::symlink_metadata(trace).ok());
    let written = files.filter(fs::Metadata::is_file).filter_map(|it| it.modified().ok()).max()?;
    if is_being_written(&path) {
        return None;
    }
    let bytes = bytes(&path);
    Some(Recorded { path, written, bytes })
}

/// The size of all files in a directory, in bytes. Links count as 0, and are not followed.
fn bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(it) if it.is_dir() => bytes(&entry.path()),
        Ok(it) if it.is_file() => it.len(),
        _ => 0,
    });
    sizes.sum()
}

/// Removes the oldest runs beyond the newest `keep`, and returns the removed runs. Only runs with a name that zprobe
/// gave are counted. If `keep` is 0, all runs are kept.
///
/// # Errors
/// When a run cannot be removed.
pub fn retain(base: &Path, keep: usize) -> Result<Vec<Recorded>> {
    if keep == 0 {
        return Ok(vec![]);
    }
    let own = recorded(base)?.into_iter().filter(Recorded::is_named_by_zprobe);
    let surplus: Vec<Recorded> = own.skip(keep).collect();
    surplus.iter().try_for_each(Recorded::remove)?;
    Ok(surplus)
}

#[cfg(test)]
mod tests;
