//! Starts a program with its environment, its output files and its inherited descriptors, so that the program dies
//! with the launcher.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};

use super::group::ProcessGroup;
use super::signals;
use super::{LaunchError, RankProgram};
use zprobe_model::run_dir;
use zprobe_model::trace::contract::LogOf;

/// Environment variables with their values. A variable with the value `None` is unset, even if the launcher has it.
pub(super) type EnvironmentOverrides = Vec<(&'static str, Option<OsString>)>;

/// The log files for the output of a process.
pub(super) struct Streams {
    pub(super) stdout: File,
    pub(super) stderr: File,
}

impl Streams {
    /// Creates new, empty logs in `dir`.
    pub(super) fn create(log: LogOf, dir: &Path) -> Result<Self, LaunchError> {
        let create = |path: &Path| {
            run_dir::create(path)
                .map_err(|cause| LaunchError::RunDir { path: path.to_owned(), cause })
        };
        Ok(Self { stdout: create(&log.stdout(dir))?, stderr: create(&log.stderr(dir))? })
    }
}

/// Returns the environment variables for a program that loads an engine and then forks, in addition to the variables
/// of the run.
pub(super) fn for_forking() -> EnvironmentOverrides {
    // The start-up of libtorch allocates tens of megabytes in small pieces. Huge pages avoid most of the page faults;
    // if the kernel or libc does not support them, nothing changes.
    unless_set("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1").into_iter().collect()
}

/// Starts `program` in its own process group. The program inherits the standard streams and the descriptors in
/// `inherited`, and no others.
pub(super) fn spawn(
    program: &RankProgram,
    streams: Streams,
    variables: EnvironmentOverrides,
    inherited: &[BorrowedFd<'_>],
) -> Result<ProcessGroup, LaunchError> {
    let mut command = Command::new(&program.program);
    command.args(&program.args).process_group(0);
    command.stdin(Stdio::null()).stdout(streams.stdout).stderr(streams.stderr);
    command.envs(library_path(&program.library_path));
    // All ranks share the machine: if each of them had one thread per core, they would slow each other down a
    // thousandfold.
    let threads = unless_set("OMP_NUM_THREADS", "1");
    // NumPy's OpenBLAS starts its threads on import, and a process with threads cannot be a pool.
    let of_numpy = ("OPENBLAS_NUM_THREADS", Some("1".into()));
    for (name, value) in variables.into_iter().chain(threads).chain([of_numpy]) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    prepare_child(&mut command, inherited.iter().map(|fd| fd.as_raw_fd()).collect());
    let child = command
        .spawn()
        .map_err(|cause| LaunchError::Spawn { program: program.program.clone(), cause })?;
    Ok(ProcessGroup::new(child.id()))
}

/// Returns the environment variable that lets the dynamic loader search these directories before the directories of
/// the user, or `None` without directories.
pub fn library_path(directories: &[PathBuf]) -> Option<(&'static str, OsString)> {
    const NAME: &str = "LD_LIBRARY_PATH";
    if directories.is_empty() {
        return None;
    }
    let own = env::var_os(NAME).filter(|path| !path.is_empty());
    let mut value = OsString::new();
    for (index, directory) in
        directories.iter().map(|it| it.as_os_str()).chain(own.as_deref()).enumerate()
    {
        if index > 0 {
            value.push(":");
        }
        value.push(directory);
    }
    Some((NAME, value))
}

/// Returns the environment variable with this value, or `None` if the user has set the variable.
pub(super) fn unless_set(
    name: &'static str,
    value: &str,
) -> Option<(&'static str, Option<OsString>)> {
    env::var_os(name).is_none().then(|| (name, Some(value.into())))
}

/// Makes the child die with the launcher, start with no signal blocked, and inherit only these descriptors.
fn prepare_child(command: &mut Command, inherited: Vec<RawFd>) {
    let launcher = getpid();
    let prepare = move || -> io::Result<()> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if getppid() != launcher {
            // The launcher died before the death signal was set.
            return Err(Errno::ESRCH.into());
        }
        signals::start_anew()?;
        for &fd in &inherited {
            // SAFETY: the caller of `spawn` holds these descriptors open for the whole call.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe functions may be called. It makes
    // system calls and does not allocate.
    unsafe { command.pre_exec(prepare) };
}
