//! The process of the user's command.

use std::os::unix::process::CommandExt as _;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::UserCommand;
use crate::group::outcome_of;
use crate::{LaunchError, signals};
use zprobe_model::trace::{Outcome, contract};

/// The time that the command has to end by itself after zprobe asked it to end.
const GRACE: Duration = Duration::from_secs(10);

/// The interval between two checks whether the command has ended.
const LOOK: Duration = Duration::from_millis(50);

/// The process of the user's command, which is a child of this process.
pub(super) struct ChildCommand {
    pid: Pid,
    /// The outcome of the process; `None` while the process runs.
    pub(super) outcome: Option<Outcome>,
    /// True if zprobe has asked the process to end.
    pub(super) was_asked: bool,
}

impl ChildCommand {
    /// Starts the user's command as a part of the run `run`.
    pub(super) fn start(of: &UserCommand<'_>, run: &str) -> Result<Self, LaunchError> {
        let [program, arguments @ ..] = of.words else {
            unreachable!("the command line asks for at least one word");
        };
        let mut command = process::Command::new(program);
        command.args(arguments).env(contract::RUN, run);
        command.envs(of.variables.iter().map(|(name, value)| (name, value)));
        let goes_on = of.goes_on;
        let prepare = move || {
            if !goes_on {
                // A launcher ends its ranks on SIGTERM and cannot do so on SIGKILL, so the signal is SIGTERM.
                prctl::set_pdeathsig(Signal::SIGTERM)?;
            }
            signals::start_anew()
        };
        // SAFETY: the closure runs between fork and exec. It makes system calls and does not allocate.
        unsafe { command.pre_exec(prepare) };
        let child = command
            .spawn()
            .map_err(|cause| LaunchError::Command { program: program.into(), cause })?;
        Ok(Self { pid: Pid::from_raw(child.id().cast_signed()), outcome: None, was_asked: false })
    }

    /// Checks whether the process has ended. Returns true if this call noticed the end.
    pub(super) fn reap(&mut self) -> bool {
        if self.outcome.is_none() {
            self.outcome = outcome_of(self.pid);
            return self.outcome.is_some();
        }
        false
    }

    /// Returns the id of the command's process.
    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// Waits until the command has ended.
    pub(super) fn wait(&mut self) {
        while self.outcome.is_none() {
            self.reap();
            thread::sleep(LOOK);
        }
    }

    /// Asks the command to end, and waits for its end for at most [`GRACE`].
    pub(super) fn ask_to_end(&mut self) {
        self.reap();
        if self.outcome.is_none() {
            self.was_asked = true;
            // A terminal may have sent SIGINT to the command already; a second request does no harm.
            let _ = kill(self.pid, Signal::SIGTERM);
        }
        let deadline = Instant::now() + GRACE;
        while self.outcome.is_none() && Instant::now() < deadline {
            thread::sleep(LOOK);
            self.reap();
        }
    }
}
