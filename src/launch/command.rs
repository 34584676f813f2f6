//! A command of the user that starts its ranks itself: started as it is, followed, and ended with
//! all that it leaves behind.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::group::outcome_of;
use super::signals::{self, Signals};
use super::strays::{Strays, adopt_orphans};
use super::wait::wait;
use super::{Ended, LaunchError};
use crate::trace::{Outcome, contract};

/// Time between two looks at what the command's ranks have written.
const LOOK: Duration = Duration::from_millis(100);

/// Time that the command has to end by itself after it was asked to.
const GRACE: Duration = Duration::from_secs(10);

/// A command of the user. It keeps the terminal: its standard streams and its process group are
/// those of zprobe.
#[derive(Clone, Copy, Debug)]
pub struct UserCommand<'a> {
    /// Program and arguments, as the user wrote them.
    pub words: &'a [OsString],
    /// Id of the run, by which processes that are left behind are recognised.
    pub run_id: &'a str,
    /// Variables that are added to the environment.
    pub variables: &'a [(&'static str, OsString)],
}

/// Result of a look at the ranks of a running command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The command is to go on.
    GoOn,
    /// The ranks have done what they were started for: the command ends by itself, or is ended.
    Done,
    /// The ranks are stuck: the command is ended.
    Stuck,
}

/// End of a command.
#[derive(Debug)]
pub struct Followed {
    /// Outcome of the command itself; none if it had to be killed.
    pub outcome: Option<Outcome>,
    /// True if the user ended the run.
    pub interrupted: bool,
    /// Processes that are left.
    pub ended: Ended,
}

impl UserCommand<'_> {
    /// Runs the command to its end; `look` is asked again and again how its ranks are doing.
    ///
    /// # Errors
    /// When the command does not start, or the operating system refuses a signal handler.
    pub fn follow(&self, look: &mut dyn FnMut() -> Look) -> Result<Followed, LaunchError> {
        let signals = Signals::listen().map_err(LaunchError::system("signal handlers"))?;
        adopt_orphans()?;
        let command = self.start()?;
        let mut interrupted = false;
        // The moment at which the command is killed; none while it goes on.
        let mut deadline: Option<Instant> = None;
        let outcome = loop {
            let until = Instant::now() + LOOK;
            let ready = wait(std::iter::empty(), Some(&signals), until)
                .map_err(LaunchError::system("the wait for the command"))?;
            signals.clear_child();
            let outcome = outcome_of(command);
            if outcome.is_some() || deadline.is_some_and(|deadline| Instant::now() > deadline) {
                break outcome;
            }
            if deadline.is_some() {
                // An interrupt stays readable: this sleeps by time alone.
                thread::sleep(LOOK);
                continue;
            }
            interrupted = ready.interrupted;
            let look = if interrupted { Look::Stuck } else { look() };
            if look != Look::GoOn {
                deadline = Some(Instant::now() + GRACE);
            }
            if look == Look::Stuck {
                // A terminal has sent SIGINT to it already; a second request does no harm.
                let _ = kill(command, Signal::SIGTERM);
            }
        };
        let survivors = Strays::of(self.run_id).end();
        Ok(Followed { outcome, interrupted, ended: Ended { survivors } })
    }

    fn start(&self) -> Result<Pid, LaunchError> {
        let [program, arguments @ ..] = self.words else {
            unreachable!("the command line asks for at least one word");
        };
        let mut command = Command::new(program);
        command.args(arguments).env(contract::RUN, self.run_id);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let prepare = || {
            // Launchers end their ranks when they are terminated, and not when they are killed.
            prctl::set_pdeathsig(Signal::SIGTERM)?;
            signals::start_anew()
        };
        // SAFETY: runs between fork and exec: it makes system calls and does not allocate.
        unsafe { command.pre_exec(prepare) };
        let child = command
            .spawn()
            .map_err(|cause| LaunchError::Command { program: program.into(), cause })?;
        Ok(Pid::from_raw(child.id().cast_signed()))
    }
}
