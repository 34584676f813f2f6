//! Checks, before anything is started, that the machine and the shell have the resources for a run. Otherwise a missing
//! resource would look like a fault of the engine.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

use super::LaunchError;

/// The smallest stack limit, in bytes, with which ranks are started. Python and libtorch need less than this, and
/// every shell sets a higher limit by default.
const STACK: u64 = 1 << 20;

/// Checks all requirements of a run.
pub(super) fn check() -> Result<(), LaunchError> {
    check_stack()?;
    check_loopback()
        .map_err(LaunchError::system("a connection between processes of this machine (127.0.0.1)"))
}

fn check_stack() -> Result<(), LaunchError> {
    let (soft, _) =
        getrlimit(Resource::RLIMIT_STACK).map_err(LaunchError::system("the stack of the ranks"))?;
    if soft < STACK {
        return Err(LaunchError::Stack { kib: soft >> 10, needed: STACK >> 10 });
    }
    Ok(())
}

/// Tries a connection over the loopback interface, which ranks use to connect to each other.
fn check_loopback() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    TcpStream::connect(listener.local_addr()?).map(drop)
}

/// Returns advice about an error of the operating system, or `otherwise` if the error is not about a known limit.
pub(super) fn advice(cause: &io::Error, otherwise: &'static str) -> &'static str {
    match cause.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            return "make room there, or choose another run directory with --out";
        }
        ErrorKind::FileTooLarge => {
            return "this shell limits the size of files: raise it with `ulimit -f`, or record less \
                    (--steps, --ga, --parameters)";
        }
        ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable => {
            return "the loopback interface is down: `ip link set lo up`";
        }
        _ => {}
    }
    match cause.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => {
            "too many files are open for this shell: raise the limit with `ulimit -n`, or start fewer ranks"
        }
        Some(Errno::ENFILE) => "too many files are open on this machine: start fewer ranks",
        Some(Errno::EAGAIN) => {
            "this user or container has reached its limit of processes: see `ulimit -u`, or \
             start fewer ranks"
        }
        Some(Errno::ENOMEM) => "there is no memory left: start fewer ranks",
        Some(Errno::E2BIG) => "the environment and the arguments together are too long",
        _ => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_about_the_limit_that_was_reached() {
        for (errno, word) in [
            (Errno::EMFILE, "ulimit -n"),
            (Errno::EAGAIN, "ulimit -u"),
            (Errno::EFBIG, "ulimit -f"),
            (Errno::ENOSPC, "room"),
            (Errno::EDQUOT, "room"),
            (Errno::ENETUNREACH, "lo up"),
            (Errno::ENOENT, "otherwise"),
        ] {
            let advice = advice(&errno.into(), "otherwise");
            assert!(advice.contains(word), "{errno}: {advice}");
        }
    }
}
