//! Reads the state of a process from `/proc`.

use std::fs;

/// Returns the start time of the process `pid`, in clock ticks since the machine started, or `None` if the process
/// has ended.
pub(super) fn start(pid: u32) -> Option<u64> {
    let fields = fields(pid)?;
    // The state is the third field of the file, and the start time is the 22nd.
    let start = fields.get(19)?.parse().ok()?;
    (!matches!(fields[0].as_str(), "Z" | "X")).then_some(start)
}

/// True if the process `pid` is stopped by a signal or a debugger.
pub(super) fn is_stopped(pid: u32) -> bool {
    fields(pid).is_some_and(|fields| matches!(fields[0].as_str(), "T" | "t"))
}

/// Returns the fields of `/proc/PID/stat` from the third on. The first two are the process id and the name in
/// parentheses.
fn fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<String> = fields.split_whitespace().map(str::to_owned).collect();
    (!fields.is_empty()).then_some(fields)
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command, Stdio};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn a_process_has_a_start_until_it_has_ended_and_can_be_stopped() {
        assert!(start(process::id()).is_some());
        assert!(!is_stopped(process::id()));
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let first = start(child.id());
        kill(pid, Signal::SIGSTOP).unwrap();
        while !is_stopped(child.id()) {}
        assert!(first.is_some() && start(child.id()) == first);
        kill(pid, Signal::SIGKILL).unwrap();
        // The child is a zombie until it is waited for.
        while start(child.id()).is_some() {}
        child.wait().unwrap();
        assert_eq!(start(child.id()), None);
    }
}
