//! Parses dumps of Python's `faulthandler`: the stacks of all threads, as text.

use nix::sys::signal::Signal;
use serde::Deserialize;

/// A stack frame, with the file path as Python reports it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "(String, Option<usize>, String)")]
pub struct RawFrame {
    /// The path of the source file.
    pub file: String,
    /// The line number, from 1; 0 if the line is unknown.
    pub line: usize,
    /// The name of the function.
    pub function: String,
}

impl From<(String, Option<usize>, String)> for RawFrame {
    fn from((file, line, function): (String, Option<usize>, String)) -> Self {
        Self { file, line: line.unwrap_or(0), function }
    }
}

/// The faulthandler dumps of one process.
#[derive(Debug, Default)]
pub struct Dump {
    /// The signal that ended the process; `None` if no signal caused the dump.
    pub signal: Option<i32>,
    /// The frames of each thread, the innermost frame first, with the thread's id. If a thread was dumped twice, only
    /// its last dump is kept.
    pub stacks: Vec<(u64, Vec<RawFrame>)>,
}

/// The names that `faulthandler` writes for fatal signals.
const FATAL: [(&str, Signal); 6] = [
    ("Segmentation fault", Signal::SIGSEGV),
    ("Aborted", Signal::SIGABRT),
    ("Floating point exception", Signal::SIGFPE),
    ("Floating-point exception", Signal::SIGFPE),
    ("Bus error", Signal::SIGBUS),
    ("Illegal instruction", Signal::SIGILL),
];

/// Reads the dumps in a text, and skips all other lines.
pub fn parse(text: &str) -> Dump {
    let mut dump = Dump::default();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("Fatal Python error: ") {
            let fatal = FATAL.iter().find(|(known, _)| name.starts_with(known));
            dump.signal = fatal.map(|(_, signal)| *signal as i32).or(dump.signal);
        } else if let Some(thread) = thread(line) {
            dump.stacks.retain(|(known, _)| *known != thread);
            dump.stacks.push((thread, Vec::new()));
        } else if let (Some(frame), Some((_, frames))) = (frame(line), dump.stacks.last_mut()) {
            frames.push(frame);
        }
    }
    dump
}

/// Returns the id of the thread whose stack begins at a line such as `Current thread 0x00007f2c (most recent call
/// first):`.
fn thread(line: &str) -> Option<u64> {
    let (_, id) = line.strip_suffix("(most recent call first):")?.split_once("hread 0x")?;
    u64::from_str_radix(id.split(' ').next()?, 16).ok()
}

/// Parses a line such as `  File "train.py", line 57 in load`.
fn frame(line: &str) -> Option<RawFrame> {
    let (file, rest) = line.strip_prefix("  File \"")?.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    Some(RawFrame {
        file: file.to_owned(),
        line: line.parse().unwrap_or(0),
        function: function.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stacks_of_all_threads_are_read_and_other_lines_passed_over() {
        let text = "{\"type\":\"process\"}\n\
                    Fatal Python error: Segmentation fault\n\n\
                    Thread 0x00007f2c (most recent call first):\n  <no Python frame>\n\n\
                    Current thread 0x00007f2d [python] (most recent call first):\n  \
                    File \"/home/me/a, line 3 in b.py\", line 57 in load\n  \
                    File \"<string>\", line ??? in <module>\n\n\
                    Extension modules: torch._C (total: 1)\n";
        let dump = parse(text);
        assert_eq!(dump.signal, Some(11));
        let frame = |file: &str, line, function: &str| {
            RawFrame::from((file.to_owned(), line, function.to_owned()))
        };
        let load = frame("/home/me/a, line 3 in b.py", Some(57), "load");
        let module = frame("<string>", None, "<module>");
        let expected = [(0x7f2c, vec![]), (0x7f2d, vec![load, module])];
        assert_eq!(dump.stacks, expected);
    }

    #[test]
    fn only_the_last_stack_of_a_thread_that_was_dumped_twice_is_kept() {
        let dump = |line: usize| {
            format!("Thread 0x1 (most recent call first):\n  File \"a.py\", line {line} in f\n")
        };
        let stacks = parse(&(dump(1) + &dump(2))).stacks;
        assert_eq!(stacks.len(), 1);
        assert_eq!(stacks[0].1[0].line, 2);
    }
}
