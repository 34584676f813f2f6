//! Signals to the launcher, as descriptors that `poll` can wait for. If the parent process has blocked or ignored a
//! signal that the launcher needs, the launcher enables the signal again.

use std::io::{self, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use signal_hook::{SigId, flag, low_level};

const STOPPING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// True for a signal with which users stop programs: SIGINT, SIGTERM or SIGHUP.
pub fn is_stopping(signal: i32) -> bool {
    STOPPING.iter().any(|it| *it as i32 == signal)
}

/// The user's request to stop, by SIGINT, SIGTERM or SIGHUP. While a value of this type exists, the first of these
/// signals does not end the process, and a second one ends it at once. Several values may exist at the same time.
pub struct Stop {
    wanted: Arc<AtomicBool>,
    act: Arc<AtomicBool>,
    registered: Vec<SigId>,
}

/// The number of [`Stop`] values that exist.
static STOPS: AtomicUsize = AtomicUsize::new(0);

impl Stop {
    /// Starts to listen for the signals.
    ///
    /// # Errors
    /// Fails if the operating system refuses a signal handler.
    pub fn listen() -> io::Result<Self> {
        put_signals_right()?;
        let act = act_by_default()?;
        let is_first = STOPS.fetch_add(1, Ordering::SeqCst) == 0;
        if is_first {
            act.store(false, Ordering::SeqCst);
        }
        let mut stop = Self { wanted: Arc::default(), act, registered: Vec::new() };
        for &signal in stopping_signals() {
            for flag in [&stop.wanted, &stop.act] {
                stop.registered.push(flag::register(signal, Arc::clone(flag))?);
            }
        }
        // If another `Stop` value existed when a signal came, the signal also counts for this value.
        if !is_first && stop.act.load(Ordering::SeqCst) {
            stop.wanted.store(true, Ordering::SeqCst);
        }
        Ok(stop)
    }

    /// True once the first signal has arrived.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        forget(&mut self.registered);
        if STOPS.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.act.store(true, Ordering::SeqCst);
        }
    }
}

fn forget(registered: &mut Vec<SigId>) {
    for id in registered.drain(..) {
        low_level::unregister(id);
    }
}

/// A guard: while it exists, SIGINT, SIGTERM and SIGHUP stop the run instead of the process. A second signal, or a
/// signal after the run, has its usual effect at once.
pub(super) struct Signals {
    interrupted: UnixStream,
    /// The other end of `interrupted`, which is kept open. If every stopping signal is ignored, no signal handler
    /// holds this end, and a closed end would look like an interrupt.
    _on_interrupt: UnixStream,
    child: UnixStream,
    registered: Vec<SigId>,
    stop: Stop,
}

impl Signals {
    /// Starts to listen for stopping signals and for the ends of child processes.
    pub(super) fn listen() -> io::Result<Self> {
        let stop = Stop::listen()?;
        let (interrupted, on_interrupt) = UnixStream::pair()?;
        let (child, on_child) = UnixStream::pair()?;
        interrupted.set_nonblocking(true)?;
        child.set_nonblocking(true)?;
        let _on_interrupt = on_interrupt.try_clone()?;
        let registered = Vec::new();
        let mut signals = Self { interrupted, _on_interrupt, child, registered, stop };
        for &signal in stopping_signals() {
            let pipe = low_level::pipe::register(signal, on_interrupt.try_clone()?)?;
            signals.registered.push(pipe);
        }
        if signals.stop.is_wanted() {
            (&on_interrupt).write_all(&[0])?;
        }
        signals.registered.push(low_level::pipe::register(Signal::SIGCHLD as i32, on_child)?);
        Ok(signals)
    }

    /// Returns a descriptor that becomes readable once the user wants the run to stop.
    pub(super) fn interrupted(&self) -> BorrowedFd<'_> {
        self.interrupted.as_fd()
    }

    /// Returns a descriptor that becomes readable when a child process may have ended.
    pub(super) fn child(&self) -> BorrowedFd<'_> {
        self.child.as_fd()
    }

    /// Empties the descriptor of [`Signals::child()`]. Must be called before the children are checked, so that no
    /// child can end unnoticed in between.
    pub(super) fn clear_child(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.child).read(&mut bytes), Ok(n) if n > 0) {}
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        forget(&mut self.registered);
    }
}

/// Returns the signals that end a run: SIGINT, SIGTERM and SIGHUP. Signals that were ignored when this process
/// started are left out and stay ignored (`nohup`, or a background job of a script).
fn stopping_signals() -> &'static [i32] {
    static SIGNALS: OnceLock<Vec<i32>> = OnceLock::new();
    SIGNALS.get_or_init(|| {
        STOPPING.into_iter().filter(|signal| !is_ignored(*signal)).map(|it| it as i32).collect()
    })
}

/// Makes sure that signals arrive on this thread, whatever signal state the thread inherited: the ends of children are
/// noticed, a run can be stopped, and a file that exceeds the size limit (`ulimit -f`) is a write error and does not
/// end the process.
///
/// # Errors
/// Fails if the operating system refuses a change of the signal state.
pub fn put_signals_right() -> io::Result<()> {
    // The ignored signals must be determined before a handler is installed.
    let _ = stopping_signals();
    let mut needed = SigSet::empty();
    needed.extend(STOPPING);
    needed.add(Signal::SIGCHLD);
    needed.thread_unblock()?;
    if is_ignored(Signal::SIGCHLD) {
        // SAFETY: no handler is installed, and no handler is replaced.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    }
    // SAFETY: as for the call above, no handler is installed or replaced.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }?;
    Ok(())
}

/// Gives a child the signal state that programs expect at their start, except for signals that the user ignores. Must
/// be called between fork and exec, and makes only system calls.
pub(super) fn start_anew() -> io::Result<()> {
    SigSet::empty().thread_set_mask()?;
    // SAFETY: no handler is installed, and no handler is replaced.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigDfl) }?;
    Ok(())
}

fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action, sigaction only writes the current action to `action`.
    let asked = unsafe { libc::sigaction(signal as i32, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: `action` was written, because the call succeeded.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Returns the flag that is true while the stopping signals end the process. `signal-hook` never restores the
/// original handler of a signal, so the handler that emulates the default action stays installed, and runs before all
/// others.
fn act_by_default() -> io::Result<Arc<AtomicBool>> {
    static ACT: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(act) = ACT.get() {
        return Ok(Arc::clone(act));
    }
    let act = Arc::new(AtomicBool::new(true));
    for &signal in stopping_signals() {
        flag::register_conditional_default(signal, Arc::clone(&act))?;
    }
    Ok(Arc::clone(ACT.get_or_init(|| act)))
}
