//! The Python processes of the command: their own reports, their outcomes, and their stacks.
//!
//! Each process has its own file (`stacks.py`) with lines of JSON, and with the output of `faulthandler` between
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde::Deserialize;

use super::dump::{self, RawFrame};
use crate::stacks::ask_for_stacks;
use zprobe_model::spec::MOST_RANKS;
use zprobe_model::trace::{Event, Frame, Outcome};

/// The size of the largest process file that is read, in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// The prefix of the file names in frames of Python's import system. Such frames are left out, as in tracebacks.
const IMPORT: &str = "<frozen importlib";

/// The largest number of frames that `faulthandler` writes for one thread.
const MOST_FRAMES: usize = 100;

/// The time that processes have to write down their stacks.
const PATIENCE: Duration = Duration::from_secs(5);

/// The interval between two checks of the files that the processes write.
const LOOK: Duration = Duration::from_millis(100);

/// A Python process of the user's command.
#[derive(Debug)]
pub struct PythonProcess {
    about: ProcessFacts,
    /// The exception that ended the process.
    failure: Option<UncaughtException>,
    /// The exit code that the process announced.
    exit: Option<i32>,
    /// The signal that ended the process, if Python noticed the signal.
    signal: Option<i32>,
    /// The frames of each thread with the thread's id, in the order in which the threads were dumped.
    stacks: Vec<(u64, Vec<RawFrame>)>,
}

/// The facts that a process reports about itself.
#[derive(Debug, Deserialize)]
struct ProcessFacts {
    pid: u32,
    parent: u32,
    /// The id of the main thread.
    thread: u64,
    /// The working directory of the process.
    directory: String,
    /// The directories of code that is not the user's own.
    foreign: Vec<String>,
    /// True if the process has imported torch.
    torch: bool,
    rank: Option<usize>,
    world_size: Option<usize>,
}

/// An exception that ended a process.
#[derive(Debug, Deserialize)]
struct UncaughtException {
    message: String,
    /// The frames of the traceback, the innermost frame first.
    frames: Vec<RawFrame>,
}

/// A line of JSON in the file of a process.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum ProcessLine {
    Process(ProcessFacts),
    Failed(UncaughtException),
    Exiting {
        code: i32,
        message: Option<String>,
    },
    /// zprobe's own code in the process has failed.
    Slipped {},
}

impl PythonProcess {
    /// Parses the file of a process. Returns `None` if the file does not identify the process.
    fn parse(text: &str) -> Option<Self> {
        let (mut about, mut failure, mut exit) = (None, None, None);
        for line in text.lines().filter(|line| line.starts_with('{')) {
            match serde_json::from_str(line) {
                Ok(ProcessLine::Process(facts)) => about = Some(facts),
                Ok(ProcessLine::Failed(exception)) => failure = Some(exception),
                Ok(ProcessLine::Exiting { code, message }) => {
                    exit = Some(code);
                    let message = message.map(|message| format!("sys.exit: {message}"));
                    failure = failure.or_else(|| {
                        message.map(|message| UncaughtException { message, frames: Vec::new() })
                    });
                }
                Ok(ProcessLine::Slipped {}) | Err(_) => {}
            }
        }
        let dump = dump::parse(text);
        let about = about?;
        Some(Self { about, failure, exit, signal: dump.signal, stacks: dump.stacks })
    }

    /// Returns the message of the exception that ended the process, if an exception ended it.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| failure.message.as_str())
    }

    /// Returns the outcome of the process, as reported by the process or else by its `launcher`. Without either, the
    /// process exits with code 1 after an exception.
    fn outcome(&self, launcher: impl FnOnce() -> Option<Outcome>) -> Option<Outcome> {
        let exit = self.exit.map(Outcome::Code);
        let failed = self.failure.as_ref().map(|_| Outcome::Code(1));
        self.signal.map(Outcome::Signal).or(exit).or_else(launcher).or(failed)
    }

    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.about.pid
    }

    /// Returns the stacks of the process as events of the rank `rank`: the stack of the exception that ended the
    /// process, or else the stacks of the main thread and of all other threads that run the user's own code.
    pub fn stacks_taken(&self, rank: usize) -> Vec<Event> {
        let taken = |thread, frames: &[RawFrame]| Event::StackTaken {
            rank,
            thread,
            frames: frames
                .iter()
                .filter(|frame| !frame.file.starts_with(IMPORT))
                .map(|frame| self.frame(frame))
                .collect(),
        };
        if let Some(failure) = self.failure.as_ref().filter(|it| !it.frames.is_empty()) {
            return vec![taken(0, &failure.frames)];
        }
        let is_main = |thread: &u64| *thread == self.about.thread;
        let main = self.stacks.iter().filter(|(thread, _)| is_main(thread));
        let is_own = |frames: &[RawFrame]| frames.iter().any(|frame| self.is_own(&frame.file));
        let others =
            self.stacks.iter().filter(|(thread, frames)| !is_main(thread) && is_own(frames));
        let others = others.enumerate().map(|(number, (_, frames))| taken(number + 1, frames));
        main.map(|(_, frames)| taken(0, frames)).chain(others).collect()
    }

    fn frame(&self, raw: &RawFrame) -> Frame {
        Frame {
            file: self.shortened(&raw.file),
            line: raw.line,
            function: raw.function.clone(),
            is_own: self.is_own(&raw.file),
        }
    }

    /// True for a file of the user's own code.
    fn is_own(&self, file: &str) -> bool {
        let real = fs::canonicalize(Path::new(&self.about.directory).join(file));
        let is_foreign = |path: &Path| self.about.foreign.iter().any(|it| path.starts_with(it));
        let paths = [Some(PathBuf::from(file)), real.ok()];
        !file.starts_with('<')
            && !file.contains("-packages/")
            && !paths.iter().flatten().any(|path| is_foreign(path))
    }

    /// Returns a file path without its private part.
    fn shortened(&self, file: &str) -> String {
        if file.starts_with('<') {
            return file.to_owned();
        }
        if let Some((_, inside)) = file.rsplit_once("-packages/") {
            return inside.to_owned();
        }
        let path = Path::new(file);
        let foreign = self.about.foreign.iter().map(|it| match it.strip_suffix("/torch") {
            Some(around) => around,
            None => it,
        });
        let mut roots = foreign.chain([&*self.about.directory]);
        let inside = roots.find_map(|it| path.strip_prefix(it).ok());
        let name = || path.file_name().map(Path::new).unwrap_or(path);
        let is_short = path.is_relative() && !path.starts_with("..");
        inside.unwrap_or_else(|| if is_short { path } else { name() }).display().to_string()
    }

    /// True if the main thread, or the exception that ended the process, has frames in the user's own code. Also true
    /// if the calls are so deep that the outermost frames were not written down.
    fn runs_own_code(&self) -> bool {
        let is_main = |thread: u64| thread == self.about.thread;
        let stacks = self.stacks.iter().filter(|(thread, _)| is_main(*thread));
        if stacks.clone().any(|(_, frames)| frames.len() >= MOST_FRAMES) {
            return true;
        }
        let raised = self.failure.iter().flat_map(|failure| &failure.frames);
        let mut frames = stacks.flat_map(|(_, frames)| frames).chain(raised);
        frames.any(|frame| self.is_own(&frame.file))
    }
}

/// The text with which torchrun begins its description of the first failure (`ChildFailedError` in
/// torch/distributed/elastic/multiprocessing/errors).
const ROOT_CAUSE: &str = "Root Cause";

/// The text before the number of the signal that has ended torchrun (`SignalException` in
/// torch/distributed/elastic/multiprocessing/api.py).
const GOT_SIGNAL: &str = " got signal: ";

/// All processes that have identified themselves, in the order in which they started.
#[derive(Debug, Default)]
pub struct PythonProcesses(Vec<PythonProcess>);

impl PythonProcesses {
    /// Reads the files that the processes have written into this directory.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let mut files = files(directory)?;
        files.sort_by_key(|path| started(path));
        let read = |path: &PathBuf| {
            let bytes = fs::metadata(path).ok().filter(|it| it.len() <= MOST_BYTES);
            let bytes = bytes.and_then(|_| fs::read(path).ok())?;
            PythonProcess::parse(&String::from_utf8_lossy(&bytes))
        };
        Ok(Self(files.iter().filter_map(read).collect()))
    }

    /// Returns the process of each known rank. `joined` has the process ids of the ranks that have begun to train.
    pub fn of_ranks(&self, joined: &BTreeMap<usize, u32>) -> BTreeMap<usize, &PythonProcess> {
        let mut ranks: BTreeMap<usize, &PythonProcess> = BTreeMap::new();
        for process in self.0.iter().filter(|it| !self.is_helper(it)) {
            let rank = process.about.rank.filter(|rank| *rank < MOST_RANKS);
            let rank = rank.filter(|rank| !joined.contains_key(rank));
            ranks.extend(rank.map(|rank| (rank, process)));
        }
        for (&rank, &pid) in joined {
            let is_it =
                |it: &&PythonProcess| it.pid() == pid && it.about.rank.unwrap_or(rank) == rank;
            ranks.extend(self.0.iter().rfind(is_it).map(|process| (rank, process)));
        }
        if ranks.is_empty() {
            // A script that is started without a launcher has no environment variables with its rank.
            let trains = |it: &&PythonProcess| it.about.torch && it.runs_own_code();
            ranks.extend(self.0.iter().find(trains).map(|process| (0, process)));
        }
        ranks
    }

    /// True for a process that a rank has started, and that has inherited its rank number from that rank.
    fn is_helper(&self, process: &PythonProcess) -> bool {
        let is_of_it = |other: &PythonProcess| {
            other.pid() == process.about.parent && other.about.rank == process.about.rank
        };
        self.0.iter().any(is_of_it)
    }

    /// Returns the outcome of the process of a rank, as reported by the process or else by its launcher. `None` if the
    /// launcher ended the process after another one had failed.
    pub fn outcome(&self, process: &PythonProcess) -> Option<Outcome> {
        let failures = self.0.iter().filter_map(PythonProcess::failure);
        let mut ends = failures.flat_map(exits);
        let outcome =
            process.outcome(|| ends.find(|(pid, _)| *pid == process.pid()).map(|(_, end)| end));
        outcome.filter(|it| *it != Outcome::Unseen)
    }

    /// Returns the signal that ended the launcher with the process id `pid`, if torchrun has reported the signal in an
    /// exception.
    pub fn signal_of_launcher(&self, pid: u32) -> Option<i32> {
        let launcher = self.0.iter().rfind(|process| process.pid() == pid)?;
        let (_, number) = launcher.failure()?.rsplit_once(GOT_SIGNAL)?;
        number.trim().parse().ok()
    }

    /// Returns the number of ranks that the processes report, the largest if the reports differ.
    pub fn world_size(&self) -> Option<usize> {
        self.0.iter().filter_map(|process| process.about.world_size).max()
    }
}

/// Asks the processes of the run `run` in this directory to write down their stacks, and waits until they have done
/// so, for at most [`PATIENCE`].
///
/// # Errors
/// Fails if the directory cannot be read.
pub fn take_stacks(directory: &Path, run: &str) -> io::Result<()> {
    let length = |path: &Path| fs::metadata(path).map_or(0, |it| it.len());
    let mut asked: Vec<(PathBuf, u64)> = Vec::new();
    for path in files(directory)? {
        let before = length(&path);
        let process = fs::read(&path).ok();
        let process =
            process.and_then(|text| PythonProcess::parse(&String::from_utf8_lossy(&text)));
        if process.is_some_and(|process| ask_for_stacks(run, process.pid())) {
            asked.push((path, before));
        }
    }
    let deadline = Instant::now() + PATIENCE;
    let mut lengths: Vec<u64> = Vec::new();
    while Instant::now() < deadline {
        thread::sleep(LOOK);
        let now: Vec<u64> = asked.iter().map(|(path, _)| length(path)).collect();
        let has_begun = asked.iter().zip(&now).all(|((_, before), now)| now > before);
        if has_begun && now == lengths {
            break;
        }
        lengths = now;
    }
    Ok(())
}

/// Returns the process ids and outcomes that torchrun lists in its own exception, in lines such as `exitcode  : -9
/// (pid: 4711)`. SIGTERM is an outcome only for the root cause, because torchrun itself sends SIGTERM to all processes
/// that are left after the first failure.
fn exits(message: &str) -> impl Iterator<Item = (u32, Outcome)> {
    let mut is_root = false;
    message.lines().filter_map(move |line| {
        is_root |= line.starts_with(ROOT_CAUSE);
        let (code, pid) = line.trim().strip_prefix("exitcode")?.split_once("(pid:")?;
        let code: i32 = code.trim_matches([' ', ':']).parse().ok()?;
        let pid = pid.trim_end_matches(')').trim().parse().ok()?;
        let end = match code {
            0.. => Outcome::Code(code),
            _ if -code == Signal::SIGTERM as i32 && !is_root => Outcome::Unseen,
            _ => Outcome::Signal(-code),
        };
        Some((pid, end))
    })
}

/// Returns the paths of the files of all processes.
fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.extension().is_some_and(|it| it == "log")).collect())
}

/// Returns the start time of a process from the name of its file.
fn started(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.rsplit_once('-')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: &str = "{\"type\":\"process\",\"pid\":7,\"parent\":1,\"thread\":2,\
                         \"directory\":\"/home/me/project\",\"foreign\":[\"/usr/lib/python3.11\",\
                         \"/src/torch\"],\"torch\":true,\"rank\":1,\"world_size\":2}\n";

    fn frames(process: &PythonProcess) -> Vec<(String, bool)> {
        let [Event::StackTaken { rank: 1, thread: 0, frames }] = &process.stacks_taken(1)[..]
        else {
            panic!("one stack");
        };
        frames.iter().map(|frame| (frame.place(), frame.is_own)).collect()
    }

    #[test]
    fn paths_are_shown_without_their_private_part() {
        let files = [
            ("/src/torch/nn/linear.py", "torch/nn/linear.py:1 (f)", false),
            ("/home/me/env/lib/site-packages/numpy/core.py", "numpy/core.py:1 (f)", false),
            ("/usr/lib/python3.11/json/decoder.py", "json/decoder.py:1 (f)", false),
            ("<string>", "<string>:1 (f)", false),
            ("/home/me/project/data/load.py", "data/load.py:1 (f)", true),
            ("/home/me/other/tools.py", "tools.py:1 (f)", true),
            ("train.py", "train.py:1 (f)", true),
            ("../train.py", "train.py:1 (f)", true),
        ];
        let dump: String =
            files.iter().map(|(file, ..)| format!("  File \"{file}\", line 1 in f\n")).collect();
        let text = format!("{ABOUT}Current thread 0x2 (most recent call first):\n{dump}");
        let process = PythonProcess::parse(&text).expect("a process");
        let expected = files.map(|(_, place, is_own)| (place.to_owned(), is_own));
        assert_eq!(frames(&process), expected);
    }

    #[test]
    fn an_exception_says_where_it_was_raised_and_how_the_process_ended() {
        let failed = "{\"type\":\"failed\",\"message\":\"ValueError: no\",\"frames\":\
                      [[\"/usr/lib/python3.11/random.py\",1,\"choice\"],[\"train.py\",5,\"load\"]]}\n";
        let process = PythonProcess::parse(&format!("{ABOUT}{failed}")).expect("a process");
        assert_eq!(process.failure(), Some("ValueError: no"));
        assert_eq!(process.outcome(|| None), Some(Outcome::Code(1)));
        // torchrun may end the process before Python exits.
        assert_eq!(process.outcome(|| Some(Outcome::Unseen)), Some(Outcome::Unseen));
        assert_eq!(frames(&process).len(), 2);
    }

    #[test]
    fn torchrun_tells_how_ranks_ended_but_for_those_that_it_ended_itself() {
        let message = "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 4711)\n\
                    exitcode  : -15 (pid: 4712)\n  exitcode  : 3 (pid: 4713)\n\
                    Root Cause (first observed failure):\n  exitcode  : -15 (pid: 4714)\n";
        let expected = [
            (4711, Outcome::Signal(9)),
            (4712, Outcome::Unseen),
            (4713, Outcome::Code(3)),
            (4714, Outcome::Signal(15)),
        ];
        assert_eq!(exits(message).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn torchrun_tells_the_signal_that_has_ended_it() {
        let ended_by = |message: &str| {
            let failed =
                format!("{{\"type\":\"failed\",\"message\":\"{message}\",\"frames\":[]}}\n");
            let process = PythonProcess::parse(&format!("{ABOUT}{failed}")).expect("a process");
            PythonProcesses(vec![process]).signal_of_launcher(7)
        };
        assert_eq!(ended_by("SignalException: Process 7 got signal: 15"), Some(15));
        assert_eq!(ended_by("ChildFailedError: train.py FAILED"), None);
    }

    #[test]
    fn a_process_that_a_rank_has_started_is_not_the_rank() {
        let worker = ABOUT.replace("\"pid\":7,\"parent\":1", "\"pid\":8,\"parent\":7");
        let processes = [ABOUT, &worker].map(|text| PythonProcess::parse(text).expect("a process"));
        let processes = PythonProcesses(processes.into());
        let ranks = processes.of_ranks(&BTreeMap::new());
        let pids: Vec<(usize, u32)> = ranks.iter().map(|(rank, it)| (*rank, it.pid())).collect();
        assert_eq!(pids, [(1, 7)]);
        assert_eq!(processes.world_size(), Some(2));
    }
}
