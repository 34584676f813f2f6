//! Signals to the launcher, as descriptors that `poll` can wait for.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

const STOPPING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// While it exists, SIGINT, SIGTERM and SIGHUP are asked to stop the run instead of the process. A second
/// one does what it always did, at once, and so does one after the run.
pub(super) struct Signals {
    interrupted: UnixStream,
    child: UnixStream,
    registered: Vec<SigId>,
    act: Arc<AtomicBool>,
}

impl Signals {
    /// Starts listening.
    pub(super) fn listen() -> io::Result<Self> {
        let act = act_by_default()?;
        act.store(false, Ordering::SeqCst);
        let (interrupted, on_interrupt) = UnixStream::pair()?;
        let (child, on_child) = UnixStream::pair()?;
        interrupted.set_nonblocking(true)?;
        child.set_nonblocking(true)?;
        let mut signals = Self { interrupted, child, registered: Vec::new(), act };
        for signal in STOPPING {
            let pipe = low_level::pipe::register(signal, on_interrupt.try_clone()?)?;
            let second = flag::register(signal, Arc::clone(&signals.act))?;
            signals.registered.extend([pipe, second]);
        }
        signals.registered.push(low_level::pipe::register(SIGCHLD, on_child)?);
        Ok(signals)
    }

    /// Readable once the user wants the run to stop.
    pub(super) fn interrupted(&self) -> BorrowedFd<'_> {
        self.interrupted.as_fd()
    }

    /// Readable when a child process may have ended.
    pub(super) fn child(&self) -> BorrowedFd<'_> {
        self.child.as_fd()
    }

    /// To be called before looking at the children, so that none can end unnoticed in between.
    pub(super) fn clear_child(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.child).read(&mut bytes), Ok(n) if n > 0) {}
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            low_level::unregister(id);
        }
        self.act.store(true, Ordering::SeqCst);
    }
}

/// Whether the stopping signals end the process. `signal-hook` never gives a signal back, so the
/// handler that emulates the default stays for good, and comes first.
fn act_by_default() -> io::Result<Arc<AtomicBool>> {
    static ACT: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(act) = ACT.get() {
        return Ok(Arc::clone(act));
    }
    let act = Arc::new(AtomicBool::new(true));
    for signal in STOPPING {
        flag::register_conditional_default(signal, Arc::clone(&act))?;
    }
    Ok(Arc::clone(ACT.get_or_init(|| act)))
}
