//! Measures the time for which a process was ready to run and had no CPU core.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// The shortest time that counts as starvation. Shorter times are noise and do not justify another check.
const NOTICEABLE: Duration = Duration::from_millis(20);

/// The time after which a further check shows whether a process that wants a core has got one.
const ANOTHER_LOOK: Duration = Duration::from_millis(100);

/// The CPU usage of each process at the last check, by process id.
#[derive(Debug, Default)]
pub(super) struct Starvation {
    known: HashMap<u32, CpuUsage>,
}

/// The CPU times of a process since its start, as the kernel counts them.
#[derive(Clone, Copy, Debug)]
struct CpuUsage {
    at: Instant,
    /// The time that all threads of the process spent on a core.
    ran: Duration,
    /// The time that the thread with the longest wait has waited for a core. A wait that is still in progress is not
    /// counted.
    waited: Duration,
    /// True if a thread of the process runs or is ready to run.
    runnable: bool,
}

impl Starvation {
    /// Returns the time for which a process was starved since the last check, or since its start. The time is zero if
    /// it is shorter than [`NOTICEABLE`] or if the kernel does not count it.
    pub(super) fn since_last_look(&mut self, pid: u32) -> Duration {
        let Some(now) = usage(pid) else { return Duration::ZERO };
        let starved = starved(self.known.get(&pid).copied(), now);
        if starved < NOTICEABLE {
            return Duration::ZERO;
        }
        self.known.insert(pid, now);
        starved
    }
}

/// Returns the time for which a process was starved between two checks, or since its start if `before` is `None`.
fn starved(before: Option<CpuUsage>, now: CpuUsage) -> Duration {
    let waited = now.waited.saturating_sub(before.map_or(Duration::ZERO, |it| it.waited));
    let still_waits = match before {
        _ if !now.runnable => Duration::ZERO,
        None => ANOTHER_LOOK,
        Some(before) if before.ran == now.ran => ANOTHER_LOOK.max(now.at - before.at),
        Some(_) => Duration::ZERO,
    };
    waited.max(still_waits)
}

fn usage(pid: u32) -> Option<CpuUsage> {
    let mut usage = CpuUsage {
        at: Instant::now(),
        ran: Duration::ZERO,
        waited: Duration::ZERO,
        runnable: false,
    };
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let read = |name| fs::read_to_string(thread.path().join(name)).ok();
        // The file `schedstat` holds the nanoseconds that the thread spent on a core, and the nanoseconds that it
        // waited for a core.
        let Some(counted) = read("schedstat") else { continue };
        let mut counted = counted.split_whitespace().map_while(|it| it.parse().ok());
        usage.ran += Duration::from_nanos(counted.next()?);
        usage.waited = usage.waited.max(Duration::from_nanos(counted.next()?));
        // In `stat`, the state follows the name of the thread, which is in parentheses.
        let state = read("stat").and_then(|it| it.rsplit_once(") ")?.1.chars().next());
        usage.runnable |= state == Some('R');
    }
    Some(usage)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn time_without_a_core_is_counted_once() {
        let own = std::process::id();
        if !std::path::Path::new("/proc/self/schedstat").exists() {
            // A kernel without schedstat does not count these times.
            return;
        }
        let mut starvation = Starvation::default();
        let cores = thread::available_parallelism().unwrap().get();
        let enough = AtomicBool::new(false);
        let mut seen = Duration::ZERO;
        thread::scope(|scope| {
            // The test starts more busy threads than the machine has cores.
            for _ in 0..4 * cores {
                scope.spawn(|| {
                    while !enough.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            for _ in 0..3 {
                let mut more = Duration::ZERO;
                while more.is_zero() {
                    thread::sleep(Duration::from_millis(1));
                    more = starvation.since_last_look(own);
                }
                seen += more;
            }
            enough.store(true, Ordering::Relaxed);
        });
        assert!(starvation.known[&own].waited <= seen, "the whole wait, in addition to one check");
        assert!(seen <= starvation.known[&own].waited + 3 * ANOTHER_LOOK);
    }

    #[test]
    fn a_process_that_has_a_core_is_not_starved_and_one_that_waits_for_it_is() {
        let ms = Duration::from_millis;
        let at = Instant::now();
        let now = |ran, waited| CpuUsage { at: at + ms(300), ran, waited, runnable: true };
        let before = CpuUsage { at, ran: ms(5), waited: ms(7), runnable: true };
        assert_eq!(starved(Some(before), now(ms(5), ms(7))), ms(300));
        assert_eq!(starved(Some(before), now(ms(9), ms(57))), ms(50));
        assert_eq!(starved(Some(before), CpuUsage { runnable: false, ..now(ms(5), ms(7)) }), ms(0));
        assert_eq!(starved(None, now(ms(5), ms(7))), ANOTHER_LOOK);
    }

    #[test]
    fn a_process_that_is_gone_is_not_starved() {
        let mut gone = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
        gone.wait().unwrap();
        assert_eq!(Starvation::default().since_last_look(gone.id()), Duration::ZERO);
    }
}
