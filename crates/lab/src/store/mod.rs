//! The files that zprobe leaves in the working directory: `.zprobe`, and the recorded runs in it.
//!
//! Only two kinds of directories are ever removed, and never a link or a directory that is being written: a recorded
//! run, which lies directly in `.zprobe/runs` and holds a trace, and an experiment, which lies directly in the directory
//! of its kind and has a name that zprobe gave.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail, ensure};
use zprobe_model::run_dir::{self, Claim};
use zprobe_model::trace::{TRACE_FILE, is_recorded, trace_dirs};

/// The default directory for all files that zprobe leaves.
pub const ROOT: &str = ".zprobe";

/// The directories in `.zprobe` for experiments; each experiment has a directory there, with its runs inside.
const EXPERIMENTS: [&str; 6] = ["bisect", "check", "compare", "pools", "sweep", "zoo"];

/// The largest number of directories between the directory of an experiment and one of its runs.
const DEPTH: usize = 3;

/// The name, in a run directory, of the file with the command that the user typed.
pub const COMMAND_FILE: &str = "command.txt";

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

/// Makes the directory of an experiment, and locks it until the returned file is closed, so that `zprobe clean` leaves
/// the directory alone. `None` if the file system has no locks.
///
/// # Errors
/// When the directory cannot be made.
pub fn held(dir: &Path) -> Result<Option<File>> {
    let made = fs::create_dir_all(dir).and_then(|()| File::open(dir));
    let directory = made.with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(directory.try_lock().is_ok().then_some(directory))
}

/// Records something in a run directory while no other process records in that directory. The directory gets the
/// `command` that the user typed. A run that was not recorded leaves no files.
///
/// # Errors
/// The errors of `make`, or when the directory cannot be used.
pub fn claimed<T>(run_dir: &Path, command: &str, make: impl FnOnce() -> Result<T>) -> Result<T> {
    prepare(run_dir)?;
    let claim = Claim::new(run_dir)?;
    run_dir::create(&run_dir.join(COMMAND_FILE))
        .and_then(|mut file| writeln!(file, "{command}"))
        .with_context(|| format!("cannot write into {}", run_dir.display()))?;
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
/// The errors of [`is_there`].
fn are_there(base: &Path) -> Result<bool> {
    Ok(is_there(&base.join(ROOT))? && is_there(&base.join(RUNS))?)
}

/// True if a directory of zprobe exists.
///
/// # Errors
/// When something else is in its place. A link, which the working directory may bring along, would make zprobe write
/// and remove files in an unexpected place.
fn is_there(dir: &Path) -> Result<bool> {
    match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", dir.display())),
        Ok(it) if !it.is_dir() => bail!(
            "{} is not a directory but a link or a file; nothing is written or removed there: \
             remove it, or name a directory with --out",
            dir.display()
        ),
        Ok(_) => Ok(true),
    }
}

/// True if a process is recording a run in the directory: such a process holds a lock on the directory ([`Claim`]). A
/// directory that cannot be opened counts as locked.
fn is_being_written(run_dir: &Path) -> bool {
    match File::open(run_dir) {
        Ok(directory) => directory.try_lock_shared().is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// A recorded run, or an experiment with its runs, that no process is writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The name: the path below `.zprobe/runs`, or below the directory of the experiment's kind.
    pub name: String,
    /// The directory of the run or of the experiment.
    pub path: PathBuf,
    /// The time at which the newest trace was last written.
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
        let mut numbers = process.split('-').map(str::parse::<u32>);
        shape == "00000000T000000Z" && numbers.all(|number| number.is_ok())
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

/// The recorded runs in `.zprobe/runs` of the directory `base`, the newest first.
///
/// # Errors
/// When a directory cannot be read, or is a link.
pub fn recorded(base: &Path) -> Result<Vec<Recorded>> {
    if !are_there(base)? {
        return Ok(vec![]);
    }
    let runs = base.join(RUNS);
    Ok(sorted(directories(&runs)?.into_iter().filter_map(|dir| run(&runs, dir)).collect()))
}

/// The recorded runs of the directory `base`, also those inside of experiments, the newest first.
///
/// # Errors
/// When a directory cannot be read, or is a link.
pub fn everywhere(base: &Path) -> Result<Vec<Recorded>> {
    let mut all = recorded(base)?;
    for (kind, experiment) in experiment_dirs(base)? {
        inside(&kind, &experiment, DEPTH, &mut all);
    }
    Ok(sorted(all))
}

/// The experiments of the directory `base`, the newest first, each with its runs. An experiment of a killed process may
/// have none.
///
/// # Errors
/// When a directory cannot be read, or is a link.
pub fn experiments(base: &Path) -> Result<Vec<(Recorded, Vec<Recorded>)>> {
    let mut all = Vec::new();
    for (kind, path) in experiment_dirs(base)? {
        let mut runs = Vec::new();
        inside(&kind, &path, DEPTH, &mut runs);
        let newest = runs.iter().map(|run| run.written).max();
        let made = || fs::symlink_metadata(&path).and_then(|it| it.modified()).ok();
        let Some(written) = newest.or_else(made) else { continue };
        let (name, bytes) = (name(&kind, &path), bytes(&path));
        let experiment = Recorded { name, path, written, bytes };
        if experiment.is_named_by_zprobe() && !is_being_written(&experiment.path) {
            all.push((experiment, sorted(runs)));
        }
    }
    all.sort_by(|(a, _), (b, _)| (b.written, &b.path).cmp(&(a.written, &a.path)));
    Ok(all)
}

/// The directories of all experiments, each with the directory of its kind.
fn experiment_dirs(base: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut all = Vec::new();
    if !is_there(&base.join(ROOT))? {
        return Ok(all);
    }
    for kind in EXPERIMENTS.map(|kind| base.join(ROOT).join(kind)) {
        if is_there(&kind)? {
            all.extend(directories(&kind)?.into_iter().map(|dir| (kind.clone(), dir)));
        }
    }
    Ok(all)
}

/// Adds the recorded runs in a directory, at most `depth` directories deep. The name of a run is its path below `kind`.
fn inside(kind: &Path, dir: &Path, depth: usize, found: &mut Vec<Recorded>) {
    if is_recorded(dir) {
        found.extend(run(kind, dir.to_owned()));
    } else if depth > 0 {
        for dir in directories(dir).unwrap_or_default() {
            inside(kind, &dir, depth - 1, found);
        }
    }
}

/// The directories in a directory. The type of a link is not that of its target, so no link passes for a directory.
pub(crate) fn directories(dir: &Path) -> Result<Vec<PathBuf>> {
    let cannot = || format!("cannot read {}", dir.display());
    let entries: io::Result<Vec<_>> = fs::read_dir(dir).with_context(cannot)?.collect();
    let entries = entries.with_context(cannot)?.into_iter();
    let are = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir()));
    Ok(are.map(|entry| entry.path()).collect())
}

/// The runs in order of time, the newest first.
pub(crate) fn sorted(mut runs: Vec<Recorded>) -> Vec<Recorded> {
    runs.sort_by(|a, b| (b.written, &b.path).cmp(&(a.written, &a.path)));
    runs
}

/// The name of a directory: its path below `base`.
fn name(base: &Path, path: &Path) -> String {
    path.strip_prefix(base).unwrap_or(path).to_string_lossy().into_owned()
}

/// The recorded run in a directory, with its name below `base`; `None` if the directory has no trace, or is being
/// written.
fn run(base: &Path, path: PathBuf) -> Option<Recorded> {
    let traces = trace_dirs(&path).into_iter().map(|dir| dir.join(TRACE_FILE));
    let files = traces.filter_map(|trace| fs::symlink_metadata(trace).ok());
    let written = files.filter(fs::Metadata::is_file).filter_map(|it| it.modified().ok()).max()?;
    if is_being_written(&path) {
        return None;
    }
    let (name, bytes) = (name(base, &path), bytes(&path));
    Some(Recorded { name, path, written, bytes })
}

/// The size of all files in a directory, in bytes. Links count as 0, and are not followed.
pub(crate) fn bytes(dir: &Path) -> u64 {
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
