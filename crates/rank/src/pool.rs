//! The pool process: loads libtorch once, and forks a rank host for each run.

use std::env;
use std::ffi::OsString;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, RecvMsg, recvmsg};
use nix::sys::wait::waitpid;
use nix::unistd::{
    ForkResult, Pid, dup2_stderr, dup2_stdout, fork, getpid, getppid, setpgid, write,
};
use zprobe_model::trace::contract;
use zprobe_model::trace::handover::{MESSAGE_LIMIT, MOST_DESCRIPTORS, WARM, decode};

use crate::environment::optional_descriptor;
use crate::{complain, exit_now};

/// The interval at which the host checks whether it has become the launcher's child.
const ADOPTION_POLL: Duration = Duration::from_micros(50);

/// The launcher's message with the variables and file descriptors of a run.
struct PoolMessage {
    variables: Vec<(OsString, OsString)>,
    /// The file descriptors, in this order: answer, standard output, standard error, store, host channel, and one event
    /// channel per rank.
    descriptors: Vec<OwnedFd>,
}

/// Forks a new process for each run of a pool, and returns in the new processes. If this program was started for a
/// single run, the function returns at once.
///
/// A new process has the run's variables and descriptors, and its output goes to the run's logs, as if the launcher had
/// started the process for the run. The pool process itself exits when the launcher closes the socket.
pub fn wait_for_run() -> Result<()> {
    let Some(socket) = optional_descriptor(contract::POOL_FD)? else { return Ok(()) };
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // SAFETY: this process has one thread.
    unsafe { env::remove_var(contract::POOL_FD) };
    let launcher = getppid();
    write(&socket, WARM).context("zprobe is gone")?;
    loop {
        let Some(message) = receive(&socket)? else { exit_now(0) };
        match fork_twice() {
            Ok(None) => {}
            Ok(Some(intermediate)) => {
                drop(socket);
                return become_host(launcher, intermediate, message);
            }
            // Dropping the message closes the answer's descriptor, so that the launcher learns of the failure.
            Err(err) => {
                complain(&err);
            }
        }
    }
}

/// Receives the next message; `None` if the launcher has closed the socket.
fn receive(socket: &OwnedFd) -> Result<Option<PoolMessage>> {
    let mut text = vec![0; MESSAGE_LIMIT];
    let mut control = nix::cmsg_space!([RawFd; MOST_DESCRIPTORS]);
    let (length, whole, descriptors) = loop {
        let mut parts = [IoSliceMut::new(&mut text)];
        let (fd, flags) = (socket.as_raw_fd(), MsgFlags::empty());
        match recvmsg::<()>(fd, &mut parts, Some(&mut control), flags) {
            Ok(received) => {
                let cut = MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC;
                break (received.bytes, !received.flags.intersects(cut), take(&received)?);
            }
            Err(Errno::EINTR) => {}
            Err(err) => return Err(err).context("cannot receive a message from zprobe"),
        }
    };
    if length == 0 {
        return Ok(None);
    }
    ensure!(whole, "the run message is incomplete");
    let variables = decode(&text[..length]).context("malformed run message")?;
    Ok(Some(PoolMessage { variables, descriptors }))
}

/// Takes ownership of the file descriptors in a message.
fn take(received: &RecvMsg<'_, '_, ()>) -> Result<Vec<OwnedFd>> {
    let control = received.cmsgs().context(
        "the file descriptors of a run did not arrive: this process may not open more files; raise \
         the limit with `ulimit -n`",
    )?;
    let mut descriptors = Vec::new();
    for part in control {
        if let ControlMessageOwned::ScmRights(fds) = part {
            // SAFETY: the kernel has just opened these descriptors for this process, and nothing else owns them.
            descriptors.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(descriptors)
}

/// Forks an intermediate process that forks the host and exits, so that the host becomes the launcher's child. Returns
/// the id of the intermediate process in the host, and `None` in the calling process.
fn fork_twice() -> Result<Option<Pid>> {
    // SAFETY: this process has one thread, so the child may do anything that the parent may.
    if let ForkResult::Parent { child } = unsafe { fork() }.context("cannot fork")? {
        while waitpid(child, None) == Err(Errno::EINTR) {}
        return Ok(None);
    }
    let intermediate = getpid();
    // SAFETY: this process has one thread, so the child may do anything that the parent may.
    match unsafe { fork() }.context("cannot fork the host of a run") {
        Ok(ForkResult::Child) => Ok(Some(intermediate)),
        Ok(ForkResult::Parent { .. }) => exit_now(0),
        Err(err) => exit_now(complain(&err)),
    }
}

/// Turns this process into the rank host of a run, as if the launcher had started the process for the run.
fn become_host(launcher: Pid, intermediate: Pid, message: PoolMessage) -> Result<()> {
    let mut descriptors = message.descriptors.into_iter();
    let mut next = || descriptors.next().context("the run message lacks file descriptors");
    let answer = next()?;
    dup2_stdout(next()?)?;
    dup2_stderr(next()?)?;
    let (store, host_channel) = (next()?, next()?);
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    while getppid() == intermediate {
        thread::sleep(ADOPTION_POLL);
    }
    // This call must follow the loop: otherwise the exit of the intermediate process would kill the host.
    set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != launcher {
        bail!("zprobe is gone, or has not adopted this process");
    }
    // The descriptors are not closed here, because the code that reads the variables takes them over.
    let number = |fd: OwnedFd| OsString::from(fd.into_raw_fd().to_string());
    let events: Vec<OsString> = descriptors.map(number).collect();
    let numbers = [
        (contract::STORE_FD, number(store)),
        (contract::HOST_FD, number(host_channel)),
        (contract::EVENT_FDS, events.join(",".as_ref())),
    ];
    let numbers = numbers.map(|(name, value)| (OsString::from(name), value));
    for (name, value) in message.variables.into_iter().chain(numbers) {
        // SAFETY: this process has one thread.
        unsafe { env::set_var(name, value) };
    }
    write(&answer, getpid().to_string().as_bytes()).context("zprobe is gone")?;
    Ok(())
}
