//! Runs of a training script in an experiment: each is a `zprobe exec` in a process of its own.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::attachment::logs;
use crate::queue::{NotStarted, Queue};
use crate::recorded::write_new;
use crate::runs::typed;
use crate::store::COMMAND_FILE;
use crate::worker::another_zprobe;
use zprobe_model::run_dir;

/// The name, in a run directory, of the file with the output of a script and of its `zprobe exec`.
pub const OUTPUT_FILE: &str = "output.log";

/// The interval between two checks whether a script has ended.
const LOOK: Duration = Duration::from_millis(50);

/// The time that a script has to end by itself after the user has ended the experiment. A terminal sends its signal to
/// all processes, and a second signal would end `zprobe exec` before it has ended the ranks.
const GRACE: Duration = Duration::from_secs(2);

/// The largest number of bytes that are read from the end of the output.
const MOST_OUTPUT: u64 = 64 << 10;

/// A training script in an experiment.
pub struct ScriptRun<'a> {
    /// The arguments of `zprobe exec`: its flags, `--`, and the command.
    pub arguments: &'a [String],
    /// The directory in which programs are looked up first, so that they are those of an environment.
    pub programs: Option<&'a Path>,
    /// The working directory of the script; `None` for that of this process.
    pub working_dir: Option<&'a Path>,
    /// The variables that are added to the environment of the script.
    pub variables: &'a [(&'static str, &'static str)],
}

/// The end of a script in an experiment.
pub struct ScriptEnded {
    /// The exit status of `zprobe exec`.
    pub status: ExitStatus,
    /// The end of the output of the script, and then the output of `zprobe exec`.
    pub output: String,
}

impl ScriptRun<'_> {
    /// Runs the script and leaves its trace, its report, its output and the command that the user typed in `dir`. If the
    /// script did not start, there is no directory. If the queue is interrupted, the script is ended.
    ///
    /// # Errors
    /// When no process can be started, or the output cannot be written.
    pub fn run(&self, dir: &Path, queue: &Queue) -> Result<ScriptEnded> {
        let dir = std::path::absolute(dir)?;
        // The directory of the run must be empty before the run, so the output is written next to it.
        let name = format!(".{}.log", dir.file_name().unwrap_or_default().to_string_lossy());
        let log = dir.with_file_name(&name);
        let _ = fs::remove_file(&log);
        let unwritable = || format!("cannot write {}", log.display());
        fs::create_dir_all(dir.parent().unwrap_or(Path::new(""))).with_context(unwritable)?;
        let output = run_dir::create(&log).with_context(unwritable)?;
        let mut child = self.start(&dir, &output)?;
        let status = wait(&mut child, queue).context("cannot wait for zprobe exec")?;
        let end = logs::tail(log.parent().unwrap_or(&dir), name, MOST_OUTPUT);
        if dir.exists() {
            write_new(&dir.join(COMMAND_FILE), &format!("{}\n", typed(None)))?;
            fs::rename(&log, dir.join(OUTPUT_FILE)).with_context(unwritable)?;
        } else {
            let _ = fs::remove_file(&log);
        }
        Ok(ScriptEnded { status, output: end.map(|end| end.text).unwrap_or_default() })
    }

    fn start(&self, dir: &Path, output: &File) -> Result<Child> {
        let mut zprobe = another_zprobe()?;
        zprobe.args(["exec", "--no-config", "--output-format", "concise", "--out"]).arg(dir);
        zprobe.args(self.arguments).envs(self.variables.iter().copied());
        if let Some(programs) = self.programs {
            let inherited = env::var_os("PATH").unwrap_or_default();
            let places = [programs.to_owned()].into_iter().chain(env::split_paths(&inherited));
            zprobe.env("PATH", env::join_paths(places)?);
        }
        if let Some(working_dir) = self.working_dir {
            zprobe.current_dir(working_dir);
        }
        zprobe.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
        zprobe.spawn().context("cannot start zprobe exec")
    }
}

/// Waits for a `zprobe exec`, and asks it to end its script if the user has ended the experiment.
fn wait(child: &mut Child, queue: &Queue) -> std::io::Result<ExitStatus> {
    let mut interrupted_at = None;
    let mut was_asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if queue.over() == Some(NotStarted::Interrupted) && !was_asked {
            let since = interrupted_at.get_or_insert_with(Instant::now);
            if since.elapsed() >= GRACE {
                was_asked = true;
                let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
            }
        }
        thread::sleep(LOOK);
    }
}

impl ScriptEnded {
    /// The last lines of the script's own output that are not empty, indented, at most `most`. The script has no report,
    /// so that the last line of the whole output is zprobe's reason.
    pub fn last_lines(&self, most: usize) -> String {
        let lines = self.output.lines().filter(|line| !line.trim().is_empty());
        let mut lines: Vec<&str> = lines.collect();
        lines.pop();
        lines[lines.len().saturating_sub(most)..].iter().map(|line| format!("  {line}\n")).collect()
    }

    /// The last line of the output, which is an error of `zprobe exec` if there is no report.
    pub fn last_line(&self) -> &str {
        let mut lines = self.output.lines().rev().map(str::trim).filter(|line| !line.is_empty());
        lines.next().unwrap_or("zprobe exec printed no error")
    }
}

/// The directory of an interpreter, whose environment has its programs there; `None` for a name that is looked up.
pub fn programs_of(python: &Path) -> Option<PathBuf> {
    let dir = python.parent().filter(|dir| !dir.as_os_str().is_empty())?;
    std::path::absolute(dir).ok()
}
