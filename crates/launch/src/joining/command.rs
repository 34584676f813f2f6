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

/// Time that the command has to end by itself after it was asked to.
const GRACE: Duration = Duration::from_secs(10);

/// Time between two looks at whether it has.
const LOOK: Duration = Duration::from_millis(50);

/// The process of the user's command, a child of this process.
pub(super) struct Command {
    pid: Pid,
    /// Outcome of the process, once it has ended by itself or was asked to.
    pub(super) outcome: Option<Outcome>,
    /// True if zprobe has asked the process to end.
    pub(super) was_asked: bool,
}

impl Command {
    /// Starts the command as a part of run `run`.
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
                // Launchers end their ranks when they are terminated, and not when they are killed.
                prctl::set_pdeathsig(Signal::SIGTERM)?;
            }
            signals::start_anew()
        };
        // SAFETY: runs between fork and exec: it makes system calls and does not allocate.
        unsafe { command.pre_exec(prepare) };
        let child = command
            .spawn()
            .map_err(|cause| LaunchError::Command { program: program.into(), cause })?;
        Ok(Self { pid: Pid::from_raw(child.id().cast_signed()), outcome: None, was_asked: false })
    }

    /// Takes note of the end of the process, and returns true the first time.
    pub(super) fn reap(&mut self) -> bool {
        if self.outcome.is_none() {
            self.outcome = outcome_of(self.pid);
            return self.outcome.is_some();
        }
        false
    }

    /// Id of the process.
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

    /// Asks the command to end, and waits for it.
    pub(super) fn ask_to_end(&mut self) {
        self.reap();
        if self.outcome.is_none() {
            self.was_asked = true;
            // A terminal has sent SIGINT to it already; a second request does no harm.
            let _ = kill(self.pid, Signal::SIGTERM);
        }
        let deadline = Instant::now() + GRACE;
        while self.outcome.is_none() && Instant::now() < deadline {
            thread::sleep(LOOK);
            self.reap();
        }
    }
}
