//! The processes of the command: what they say of themselves, how they ended, and their Python stacks.
//!
//! Each has a file of its own (`stacks.py`): lines of JSON, and between them what `faulthandler`
//! writes.

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

/// Most bytes of a process's file that are read.
const MOST_BYTES: u64 = 16 << 20;

/// Beginning of the names of Python's own files that import modules: of no interest, as in tracebacks.
const IMPORT: &str = "<frozen importlib";

/// Most frames of a thread that `faulthandler` writes down.
const MOST_FRAMES: usize = 100;

/// Time that processes have to write down their stacks.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time between two looks at what they have written.
const LOOK: Duration = Duration::from_millis(100);

/// A Python process of the command.
#[derive(Debug)]
pub struct Process {
    about: About,
    /// Exception that ended it.
    failure: Option<Failure>,
    /// Code that it said it would exit with.
    exit: Option<i32>,
    /// Signal that ended it, as far as Python noticed.
    signal: Option<i32>,
    /// Stacks by thread, in the order in which they were written.
    stacks: Vec<(u64, Vec<RawFrame>)>,
}

/// Account that a process gives of itself.
#[derive(Debug, Deserialize)]
struct About {
    pid: u32,
    parent: u32,
    /// Id of the main thread.
    thread: u64,
    /// Working directory.
    directory: String,
    /// Directories of code that is not the user's own.
    foreign: Vec<String>,
    /// True if it has imported torch.
    torch: bool,
    rank: Option<usize>,
    world_size: Option<usize>,
}

/// An exception.
#[derive(Debug, Deserialize)]
struct Failure {
    message: String,
    /// Frames, the innermost first.
    frames: Vec<RawFrame>,
}

/// A line of JSON in a process's file.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Said {
    Process(About),
    Failed(Failure),
    Exiting {
        code: i32,
        message: Option<String>,
    },
    /// Failure of zprobe's own part in the process.
    Slipped {},
}

impl Process {
    /// The process whose file this is; none where it does not say who it is.
    fn parse(text: &str) -> Option<Self> {
        let (mut about, mut failure, mut exit) = (None, None, None);
        for line in text.lines().filter(|line| line.starts_with('{')) {
            match serde_json::from_str(line) {
                Ok(Said::Process(said)) => about = Some(said),
                Ok(Said::Failed(said)) => failure = Some(said),
                Ok(Said::Exiting { code, message }) => {
                    exit = Some(code);
                    let said = message.map(|message| format!("sys.exit: {message}"));
                    failure = failure
                        .or_else(|| said.map(|message| Failure { message, frames: Vec::new() }));
                }
                Ok(Said::Slipped {}) | Err(_) => {}
            }
        }
        let dump = dump::parse(text);
        let about = about?;
        Some(Self { about, failure, exit, signal: dump.signal, stacks: dump.stacks })
    }

    /// Message of the exception that ended it, if one did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| failure.message.as_str())
    }

    /// Outcome of the process, as far as it told of it itself.
    fn outcome(&self) -> Option<Outcome> {
        let exit = self.exit.map(Outcome::Code);
        let failed = self.failure.as_ref().map(|_| Outcome::Code(1));
        self.signal.map(Outcome::Signal).or(exit).or(failed)
    }

    /// Id of the process.
    pub fn pid(&self) -> u32 {
        self.about.pid
    }

    /// Stacks of the process, as those of a rank: that of the main thread, or of the exception that ended it, and
    /// those of threads with code of the user's own.
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

    /// The file without what is private in its path.
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
        let mut places = foreign.chain([&*self.about.directory]);
        let inside = places.find_map(|it| path.strip_prefix(it).ok());
        let name = || path.file_name().map(Path::new).unwrap_or(path);
        let is_short = path.is_relative() && !path.starts_with("..");
        inside.unwrap_or_else(|| if is_short { path } else { name() }).display().to_string()
    }

    /// True if its main thread, or the exception that ended it, is in the user's own code, or so deep
    /// in calls that the outermost were not written down.
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

/// Text with which torchrun begins its account of the first failure (`ChildFailedError` in
/// torch/distributed/elastic/multiprocessing/errors).
const ROOT_CAUSE: &str = "Root Cause";

/// Text before the number of the signal that has ended torchrun (`SignalException` in
/// torch/distributed/elastic/multiprocessing/api.py).
const GOT_SIGNAL: &str = " got signal: ";

/// All processes that have said who they are, in the order in which they began.
#[derive(Debug, Default)]
pub struct Processes(Vec<Process>);

impl Processes {
    /// Reads what the processes in this directory have written.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let mut files = files(directory)?;
        files.sort_by_key(|path| started(path));
        let read = |path: &PathBuf| {
            let bytes = fs::metadata(path).ok().filter(|it| it.len() <= MOST_BYTES);
            let bytes = bytes.and_then(|_| fs::read(path).ok())?;
            Process::parse(&String::from_utf8_lossy(&bytes))
        };
        Ok(Self(files.iter().filter_map(read).collect()))
    }

    /// The process of each rank that is known of; `joined` has the processes of ranks that have begun to
    /// train.
    pub fn of_ranks(&self, joined: &BTreeMap<usize, u32>) -> BTreeMap<usize, &Process> {
        let mut ranks: BTreeMap<usize, &Process> = BTreeMap::new();
        for process in self.0.iter().filter(|it| !self.is_helper(it)) {
            let rank = process.about.rank.filter(|rank| *rank < MOST_RANKS);
            let rank = rank.filter(|rank| !joined.contains_key(rank));
            ranks.extend(rank.map(|rank| (rank, process)));
        }
        for (&rank, &pid) in joined {
            let is_it = |it: &&Process| it.pid() == pid && it.about.rank.unwrap_or(rank) == rank;
            ranks.extend(self.0.iter().rfind(is_it).map(|process| (rank, process)));
        }
        if ranks.is_empty() {
            // A script that is started without a launcher has no variables that say so.
            let trains = |it: &&Process| it.about.torch && it.runs_own_code();
            ranks.extend(self.0.iter().find(trains).map(|process| (0, process)));
        }
        ranks
    }

    /// True for a process that a rank has started, and which has its number from there.
    fn is_helper(&self, process: &Process) -> bool {
        let is_of_it = |other: &Process| {
            other.pid() == process.about.parent && other.about.rank == process.about.rank
        };
        self.0.iter().any(is_of_it)
    }

    /// Outcome of the process of a rank: as it told itself, or else as its launcher did.
    pub fn outcome(&self, process: &Process) -> Option<Outcome> {
        let failures = self.0.iter().filter_map(Process::failure);
        process.outcome().or_else(|| {
            failures.flat_map(exits).find(|(pid, _)| *pid == process.pid()).map(|(_, end)| end)
        })
    }

    /// The signal that ended a launcher, as torchrun tells it in an exception; none where it tells of none.
    pub fn signal_of_launcher(&self, pid: u32) -> Option<i32> {
        let launcher = self.0.iter().rfind(|process| process.pid() == pid)?;
        let (_, number) = launcher.failure()?.rsplit_once(GOT_SIGNAL)?;
        number.trim().parse().ok()
    }

    /// Number of ranks, as the processes say.
    pub fn world_size(&self) -> Option<usize> {
        self.0.iter().filter_map(|process| process.about.world_size).max()
    }
}

/// Has the processes of run `run` in this directory write down their stacks, and waits until they have.
///
/// # Errors
/// When the directory cannot be read.
pub fn take_stacks(directory: &Path, run: &str) -> io::Result<()> {
    let length = |path: &Path| fs::metadata(path).map_or(0, |it| it.len());
    let mut asked: Vec<(PathBuf, u64)> = Vec::new();
    for path in files(directory)? {
        let before = length(&path);
        let process = fs::read(&path).ok();
        let process = process.and_then(|text| Process::parse(&String::from_utf8_lossy(&text)));
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

/// The ends of processes that torchrun tells of in an exception of its own, by process: lines such as
/// `exitcode  : -9 (pid: 4711)`. It sends SIGTERM itself to all that are left after the first failure, which it calls
/// the root cause.
fn exits(message: &str) -> impl Iterator<Item = (u32, Outcome)> {
    let mut is_root = false;
    message.lines().filter_map(move |line| {
        is_root |= line.starts_with(ROOT_CAUSE);
        let (code, pid) = line.trim().strip_prefix("exitcode")?.split_once("(pid:")?;
        let code: i32 = code.trim_matches([' ', ':']).parse().ok()?;
        let pid = pid.trim_end_matches(')').trim().parse().ok()?;
        let end = if code < 0 { Outcome::Signal(-code) } else { Outcome::Code(code) };
        (is_root || end != Outcome::Signal(Signal::SIGTERM as i32)).then_some((pid, end))
    })
}

/// The files of all processes.
fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.extension().is_some_and(|it| it == "log")).collect())
}

/// The time at which the process of a file began, as its name says.
fn started(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.rsplit_once('-')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: &str = "{\"type\":\"process\",\"pid\":7,\"parent\":1,\"thread\":2,\
                         \"directory\":\"/home/me/project\",\"foreign\":[\"/usr/lib/python3.11\",\
                         \"/src/torch\"],\"torch\":true,\"rank\":1,\"world_size\":2}\n";

    fn frames(process: &Process) -> Vec<(String, bool)> {
        let [Event::StackTaken { rank: 1, thread: 0, frames }] = &process.stacks_taken(1)[..]
        else {
            panic!("one stack");
        };
        frames.iter().map(|frame| (frame.place(), frame.is_own)).collect()
    }

    #[test]
    fn paths_are_told_without_what_is_private_in_them() {
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
        let process = Process::parse(&text).expect("a process");
        let expected = files.map(|(_, place, is_own)| (place.to_owned(), is_own));
        assert_eq!(frames(&process), expected);
    }

    #[test]
    fn an_exception_says_where_it_was_raised_and_how_the_process_ended() {
        let failed = "{\"type\":\"failed\",\"message\":\"ValueError: no\",\"frames\":\
                      [[\"/usr/lib/python3.11/random.py\",1,\"choice\"],[\"train.py\",5,\"load\"]]}\n";
        let process = Process::parse(&format!("{ABOUT}{failed}")).expect("a process");
        assert_eq!(process.failure(), Some("ValueError: no"));
        assert_eq!(process.outcome(), Some(Outcome::Code(1)));
        assert_eq!(frames(&process).len(), 2);
    }

    #[test]
    fn torchrun_tells_how_ranks_ended_but_for_those_that_it_ended_itself() {
        let told = "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 4711)\n\
                    exitcode  : -15 (pid: 4712)\n  exitcode  : 3 (pid: 4713)\n\
                    Root Cause (first observed failure):\n  exitcode  : -15 (pid: 4714)\n";
        let first = (4714, Outcome::Signal(15));
        let expected = [(4711, Outcome::Signal(9)), (4713, Outcome::Code(3)), first];
        assert_eq!(exits(told).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn torchrun_tells_the_signal_that_has_ended_it() {
        let ended_by = |message: &str| {
            let failed =
                format!("{{\"type\":\"failed\",\"message\":\"{message}\",\"frames\":[]}}\n");
            let process = Process::parse(&format!("{ABOUT}{failed}")).expect("a process");
            Processes(vec![process]).signal_of_launcher(7)
        };
        assert_eq!(ended_by("SignalException: Process 7 got signal: 15"), Some(15));
        assert_eq!(ended_by("ChildFailedError: train.py FAILED"), None);
    }

    #[test]
    fn what_a_rank_has_started_is_not_the_rank() {
        let worker = ABOUT.replace("\"pid\":7,\"parent\":1", "\"pid\":8,\"parent\":7");
        let processes = [ABOUT, &worker].map(|text| Process::parse(text).expect("a process"));
        let processes = Processes(processes.into());
        let ranks = processes.of_ranks(&BTreeMap::new());
        let pids: Vec<(usize, u32)> = ranks.iter().map(|(rank, it)| (*rank, it.pid())).collect();
        assert_eq!(pids, [(1, 7)]);
        assert_eq!(processes.world_size(), Some(2));
    }
}
