//! A process that has loaded its engine once, stays alive, and forks a host for each of many runs.
//!
//! The host of a run is forked twice, so that it becomes a child of the launcher. The launcher watches and ends such
//! a host like a host that was started cold, and the host cannot harm later runs.

use std::cell::RefCell;
use std::fs::DirBuilder;
use std::io::IoSlice;
use std::marker::PhantomData;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, pipe2};

use super::group::{self, KILL_GRACE, KILL_POLL, ProcessGroup};
use super::host::{OF_A_RUN, OF_TORCHRUN};
use super::log_tail::log_tail;
use super::signals::put_signals_right;
use super::spawn::{EnvironmentOverrides, Streams, for_forking, spawn};
use super::strays::{Strays, adopt_orphans};
use super::wait::timeout;
use super::{LaunchError, PoolFailure, RankProgram};
use zprobe_model::trace::Outcome;
use zprobe_model::trace::contract::{self, LogOf};
use zprobe_model::trace::handover::{
    LEADING_DESCRIPTORS, MESSAGE_LIMIT, MOST_DESCRIPTORS, WARM, encode,
};

/// The time within which the host of a run must be forked. A fork takes an instant, unless the machine is stuck.
const HANDOVER: Duration = Duration::from_secs(60);

/// The length of the longest answer of a pool or a host, in bytes. An answer is a process id or [`WARM`].
const ANSWER: usize = 64;

/// The process of a program that was started once for many runs.
///
/// The process lives until this value is dropped, and is bound to the thread that started it: when that thread ends,
/// the kernel ends the process.
#[derive(Debug)]
pub struct Pool {
    program: PathBuf,
    /// The value of [`contract::RUN`] in the environment of the pool's processes, as the kernel shows it.
    id: String,
    /// The path of the log of the pool's standard error.
    stderr: PathBuf,
    process: RefCell<ProcessGroup>,
    socket: OwnedFd,
    /// A marker that keeps the value on the thread that started the process.
    stays: PhantomData<*const ()>,
}

/// The inputs from which a pool forks the host of a run.
pub(super) struct ForkRequest<'a> {
    /// The environment variables of the run.
    pub(super) variables: &'a EnvironmentOverrides,
    /// The files for the standard output and the standard error of the host.
    pub(super) streams: Streams,
    /// The descriptors that the host inherits: the socket of the TCPStore, the host channel, and the ranks' event
    /// channels.
    pub(super) descriptors: Vec<BorrowedFd<'a>>,
    /// The path of the log of the host's standard error.
    pub(super) stderr: PathBuf,
}

/// The result of waiting for an answer from a pool.
enum PoolAnswer {
    /// The answer that arrived.
    Received(Vec<u8>),
    /// The pool or the host has closed its end of the connection.
    Closed,
    /// No answer arrived in time.
    Late,
}

impl Pool {
    /// Starts `program` and waits for at most `patience` until the program has loaded its engine. The output of the
    /// program goes to `pool.stdout.log` and `pool.stderr.log` in `dir`. The directory is created if it does not
    /// exist, and must not hold these files yet.
    ///
    /// The program must be able to run as a pool (see `docs/protocol.md`). The hosts of a pool fork their ranks,
    /// whatever the [`Hosting`](super::Hosting) of the program is in other runs.
    ///
    /// # Errors
    /// Fails if the program cannot be started, ends, or is not ready in time.
    pub fn start(
        program: &RankProgram,
        dir: &Path,
        patience: Duration,
    ) -> Result<Self, LaunchError> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let deadline = Instant::now() + patience;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|cause| LaunchError::RunDir { path: dir.to_owned(), cause })?;
        let streams = Streams::create(LogOf::Pool, dir)?;
        adopt_orphans()?;
        put_signals_right().map_err(LaunchError::system("signal handlers"))?;
        let (socket, far_end) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(LaunchError::system("a socket to a pool"))?;
        let id = format!("pool-{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let mut variables = for_forking();
        // The variables of a run are sent with the run. Variables of the same names from the user's environment would
        // describe another run.
        variables.extend(OF_A_RUN.iter().chain(&OF_TORCHRUN).map(|name| (*name, None)));
        variables.push((contract::RUN, Some((&id).into())));
        variables.push((contract::POOL_FD, Some(far_end.as_raw_fd().to_string().into())));
        let process = spawn(program, streams, variables, &[far_end.as_fd()])?;
        drop(far_end);
        let pool = Self {
            program: program.program.clone(),
            id,
            stderr: LogOf::Pool.stderr(dir),
            process: RefCell::new(process),
            socket,
            stays: PhantomData,
        };
        match pool.wait_for_answer(&pool.socket, deadline)? {
            PoolAnswer::Received(word) if word == WARM => Ok(pool),
            answer => Err(pool.failure(&answer, PoolFailure::NotReady(patience), None)),
        }
    }

    /// Returns the process id of the pool's program.
    pub fn pid(&self) -> u32 {
        self.process.borrow().pid()
    }

    /// Returns the criteria for the stray processes of this pool. Strays with the mark of a run are not included.
    pub(super) fn strays(&self) -> Strays {
        Strays::of(&self.id).sparing(self.pid())
    }

    /// Asks the pool to fork the host of a run, and returns the process group of the host.
    pub(super) fn fork_host(&self, request: ForkRequest<'_>) -> Result<ProcessGroup, LaunchError> {
        let (answer, far_end) =
            pipe2(OFlag::O_CLOEXEC).map_err(LaunchError::system("a pipe to the host of a run"))?;
        let answer = match self.send(&request, far_end)? {
            true => self.wait_for_answer(&answer, Instant::now() + HANDOVER)?,
            false => PoolAnswer::Closed,
        };
        let pid = match &answer {
            PoolAnswer::Received(text) => {
                std::str::from_utf8(text).ok().and_then(|it| it.parse().ok())
            }
            PoolAnswer::Closed | PoolAnswer::Late => None,
        };
        match pid.filter(|&pid| is_child(pid)) {
            Some(pid) => Ok(ProcessGroup::new(pid)),
            None => Err(self.failure(&answer, PoolFailure::NoHost, Some(&request.stderr))),
        }
    }

    /// Sends the message about a run to the pool. Returns false if the pool has closed its end of the socket.
    fn send(&self, request: &ForkRequest<'_>, answer: OwnedFd) -> Result<bool, LaunchError> {
        let Streams { stdout, stderr } = &request.streams;
        let mut fds: Vec<RawFd> = vec![answer.as_raw_fd(), stdout.as_raw_fd(), stderr.as_raw_fd()];
        fds.extend(request.descriptors.iter().map(|fd| fd.as_raw_fd()));
        if fds.len() > MOST_DESCRIPTORS {
            return Err(LaunchError::PoolWorld {
                ranks: fds.len() - LEADING_DESCRIPTORS,
                most: MOST_DESCRIPTORS - LEADING_DESCRIPTORS,
            });
        }
        let variables = request.variables.iter();
        let message =
            encode(variables.filter_map(|(name, value)| Some((*name, value.as_deref()?))));
        let refused = LaunchError::system("the message about a run to a pool");
        if message.len() > MESSAGE_LIMIT {
            return Err(refused(Errno::E2BIG));
        }
        let control = [ControlMessage::ScmRights(&fds)];
        let (socket, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_NOSIGNAL);
        match sendmsg::<()>(socket, &[IoSlice::new(&message)], &control, flags, None) {
            Ok(_) => Ok(true),
            Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(false),
            Err(err) => Err(refused(err)),
        }
    }

    /// Waits until `deadline` for an answer, which arrives in one piece.
    fn wait_for_answer(
        &self,
        from: &OwnedFd,
        deadline: Instant,
    ) -> Result<PoolAnswer, LaunchError> {
        let broken = LaunchError::system("the wait for the answer of a pool");
        loop {
            let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout(deadline)) {
                Ok(0) if Instant::now() >= deadline => return Ok(PoolAnswer::Late),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => break,
                Err(err) => return Err(broken(err)),
            }
        }
        let mut bytes = [0; ANSWER];
        match nix::unistd::read(from, &mut bytes) {
            Ok(0) | Err(Errno::ECONNRESET) => Ok(PoolAnswer::Closed),
            Ok(length) => Ok(PoolAnswer::Received(bytes[..length].to_vec())),
            Err(err) => Err(broken(err)),
        }
    }

    /// Returns the error for a missing or wrong answer: the outcome of the pool's process if the process has ended,
    /// and `failure` otherwise. A process that has not closed its end of the socket is useless from now on, and is
    /// killed first.
    fn failure(
        &self,
        answer: &PoolAnswer,
        failure: PoolFailure,
        host: Option<&Path>,
    ) -> LaunchError {
        let mut process = self.process.borrow_mut();
        if matches!(answer, PoolAnswer::Closed) {
            let deadline = Instant::now() + KILL_GRACE;
            while process.outcome().is_none() && Instant::now() < deadline {
                thread::sleep(KILL_POLL);
            }
        } else {
            group::end(&mut [&mut process], &mut Vec::new());
        }
        let failure = match process.outcome() {
            Some(Outcome::Code(code)) => PoolFailure::Exited(code),
            Some(Outcome::Signal(signal)) => PoolFailure::Killed(signal),
            Some(Outcome::Reaped | Outcome::Unseen | Outcome::WithLauncher(_) | Outcome::Lost)
            | None => failure,
        };
        let stderr = host.and_then(log_tail).or_else(|| log_tail(&self.stderr));
        LaunchError::Pool { program: self.program.clone(), failure, stderr }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        group::end(&mut [&mut self.process.get_mut()], &mut Vec::new());
        self.strays().end();
    }
}

/// Returns true if `pid` is a child of the launcher and leads its process group.
fn is_child(pid: u32) -> bool {
    let pid = Pid::from_raw(pid.cast_signed());
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(pid), flags).is_ok() && nix::unistd::getpgid(Some(pid)) == Ok(pid)
}
