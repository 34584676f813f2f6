//! Calls of zprobe with limits on time and memory, and the checks that every call has to pass.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::Pid;
use process_control::{ChildExt as _, Control as _, ExitStatus};

use super::Case;
use super::leftovers::MARK;
use crate::workspace;

/// The longest time of a call, far above that of any call that ends by itself: only a call that hangs reaches
/// this limit.
const TIME_LIMIT: Duration = Duration::from_secs(180);

/// The most memory of a call that only reads files, in bytes.
const MEMORY_LIMIT: usize = 2 << 30;

/// The most bytes on standard error; a longer text is no message.
const LONGEST_MESSAGE: usize = 64 << 10;

/// The words of a panic message, which must not occur in any output.
const PANIC: &str = "panicked at";

/// A call of zprobe that is not started yet.
pub struct Call {
    command: Command,
    memory: Option<usize>,
}

impl Case {
    /// A call of zprobe in the directory of this case, with few environment variables and limited memory.
    pub fn zprobe<T: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = T>) -> Result<Call> {
        let mut call = self.call(&workspace::zprobe()?).args(words);
        call.memory = Some(MEMORY_LIMIT);
        Ok(call)
    }

    /// A call of another program, which may call zprobe, in the same directory and environment; its memory is
    /// not limited.
    pub fn call(&self, program: &Path) -> Call {
        let mut command = Command::new(program);
        command.current_dir(&self.dir).env_clear().env(MARK, &self.mark);
        command.env("PATH", env::var_os("PATH").unwrap_or_default()).env("HOME", &self.dir);
        command.stdin(Stdio::null()).process_group(0);
        Call { command, memory: None }
    }
}

impl Call {
    /// Adds arguments to the call.
    pub fn args<T: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = T>) -> Self {
        self.command.args(words);
        self
    }

    /// Sets an environment variable of the call.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Lifts the limit on memory, for calls that start ranks: the libraries of an engine are large.
    pub fn with_ranks(mut self) -> Self {
        self.memory = None;
        self
    }

    /// Starts the call, and does not wait for its end.
    pub fn start(mut self) -> Result<Running> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.command.spawn().context("cannot start the program under test")?;
        Ok(Running { child, memory: self.memory })
    }

    /// Starts the call, and waits for its end.
    pub fn ended(self) -> Result<Ended> {
        self.start()?.ended()
    }
}

/// A call that was started.
pub struct Running {
    child: Child,
    memory: Option<usize>,
}

impl Running {
    /// The process of the call, which leads a process group of its own.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Waits for the end of the call. A call that exceeds the time limit is terminated, and counts as a
    /// failure of zprobe.
    pub fn ended(self) -> Result<Ended> {
        let mut control = self.child.controlled_with_output();
        if let Some(limit) = self.memory {
            control = control.memory_limit(limit);
        }
        let output = control.time_limit(TIME_LIMIT).terminate_for_timeout().wait();
        let output = output.context("cannot wait for the program under test")?;
        let output =
            output.with_context(|| format!("the call did not end within {TIME_LIMIT:?}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ended {
            status: output.status,
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        })
    }
}

/// The exit status and the output of a call.
pub struct Ended {
    /// The exit code or the signal.
    pub status: ExitStatus,
    /// The text on standard output.
    pub stdout: String,
    /// The text on standard error.
    pub stderr: String,
}

impl Ended {
    /// The exit code of a call that ended as every call has to: with a documented code, without a panic, and
    /// with a single error of reasonable length if nothing was done.
    pub fn code(&self) -> Result<i64> {
        self.no_panic()?;
        let Some(code @ 0..=4) = self.status.code() else {
            bail!("ended with {}: {}", self.status, self.last_words());
        };
        ensure!(
            self.stderr.len() <= LONGEST_MESSAGE,
            "a message of {} bytes: {}",
            self.stderr.len(),
            self.last_words(),
        );
        if code == 2 {
            let errors =
                self.stderr.lines().filter(|line| unstyled(line).starts_with("error:")).count();
            ensure!(errors == 1, "exit code 2 with {errors} errors: {}", self.last_words());
        }
        Ok(code)
    }

    /// The exit code, which has to be one of `allowed`.
    pub fn code_of(&self, allowed: &[i64]) -> Result<i64> {
        let code = self.code()?;
        ensure!(allowed.contains(&code), "exit code {code}: {}", self.last_words());
        Ok(code)
    }

    /// Fails if the program panicked.
    pub fn no_panic(&self) -> Result<()> {
        for text in [&self.stderr, &self.stdout] {
            let line = text.lines().position(|line| line.contains(PANIC));
            let said = |at| text.lines().skip(at).take(2).collect::<Vec<_>>().join(" ");
            ensure!(line.is_none(), "{}", line.map(said).unwrap_or_default());
        }
        Ok(())
    }

    /// The end of standard error, for the message of a failure.
    fn last_words(&self) -> String {
        let chars: Vec<char> = self.stderr.trim_end().chars().collect();
        chars[chars.len().saturating_sub(200)..].iter().collect()
    }
}

/// A line without the colours that it begins with.
fn unstyled(mut line: &str) -> &str {
    while let Some((_, rest)) = line.strip_prefix("\u{1b}[").and_then(|it| it.split_once('m')) {
        line = rest;
    }
    line
}

/// Fails if a file in `dir`, such as the log of a rank, has a panic in it.
pub fn no_panic_in(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type().context("a file vanished")?;
        if kind.is_dir() {
            no_panic_in(&path)?;
        } else if kind.is_file() {
            let text =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let text = String::from_utf8_lossy(&text);
            let line = text.lines().find(|line| line.contains(PANIC));
            ensure!(line.is_none(), "{}: {}", path.display(), line.unwrap_or_default());
        }
    }
    Ok(())
}
