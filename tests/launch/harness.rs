//! Helpers of the launcher's tests: they start fixture ranks, and check the leftovers of a run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;
use zprobe_launch::{HostSource, Hosting, Launch, Pool, RankProgram, Survivors};
use zprobe_model::spec::{RunSpec, SpecRequest};
use zprobe_model::trace::{Event, Meeting, Outcome, Record, Trace, Violation};

/// The result of a run: its trace, the directory of the trace, and the records that the observer saw.
pub struct Run {
    pub trace: Trace,
    pub dir: TempDir,
    pub observed: Vec<Record>,
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ranks").join(name)
}

pub fn spec(world_size: usize, timeout_s: u64) -> RunSpec {
    SpecRequest {
        world_size: Some(world_size),
        timeout_s: Some(timeout_s),
        ..SpecRequest::default()
    }
    .resolve()
    .unwrap()
}

/// The program `fixtures/ranks/rank.py` with these arguments.
pub fn ranks(arguments: &str) -> RankProgram {
    let hosting =
        if arguments.contains("--forked") { Hosting::Forked } else { Hosting::OnePerRank };
    let words = arguments.split_whitespace().map(OsString::from);
    let args = [fixture("rank.py").into()].into_iter().chain(words).collect();
    RankProgram { program: python().to_owned(), args, hosting, library_path: vec![] }
}

/// The interpreter itself: the first `python3` on `PATH` may be a script that looks for it, in processes of
/// its own.
fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let say = ["-c", "import sys; print(sys.executable, end='')"];
        let said = Command::new("python3").args(say).output().unwrap();
        String::from_utf8(said.stdout).unwrap().into()
    })
}

/// Runs two ranks of `fixtures/ranks/rank.py` to the end, with a timeout that no loaded machine reaches.
pub fn run(arguments: &str) -> Run {
    run_program(&ranks(arguments), &spec(2, 60))
}

/// Runs a program to the end, and checks the invariants of every run.
pub fn run_program(program: &RankProgram, spec: &RunSpec) -> Run {
    run_from(HostSource::Cold(program), spec, "")
}

/// Runs two ranks until the timeout expires; the ranks of `hung` never end.
///
/// A loaded machine may take longer than the timeout to start ranks. If the timeout expires before the ranks
/// hang or finish, the run shows nothing, and the next run has four times the timeout.
pub fn run_into_timeout(hung: &[usize], run: impl Fn(&RunSpec) -> Run) -> Run {
    let arrived = |run: &Run| {
        (0..2).all(|rank| {
            let ready = matches!(run.said(rank).first(), Some(Event::RankReady { .. }));
            ready && (hung.contains(&rank) || run.finished(rank))
        })
    };
    let mut runs = [2, 8, 32, 128].into_iter().map(|timeout_s| run(&spec(2, timeout_s)));
    runs.find(arrived).expect("two ranks start within two minutes")
}

/// Runs `fixtures/ranks/rank.py` with these arguments over `pool`, which must be a pool of `pooled.py`.
pub fn run_over(pool: &Pool, arguments: &str, spec: &RunSpec) -> Run {
    let run = run_from(HostSource::Warm(pool), spec, arguments);
    let marked = processes_of(&mark_of(pool));
    assert_eq!(marked.len(), 1, "only the pool itself is left: {marked:?}");
    run
}

/// The value of `ZPROBE_RUN` in the processes of a pool, as the kernel shows it.
pub fn mark_of(pool: &Pool) -> String {
    let environment = std::fs::read(format!("/proc/{}/environ", pool.pid())).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    let mark = environment.split('\0').find_map(|variable| variable.strip_prefix("ZPROBE_RUN="));
    mark.unwrap().to_owned()
}

/// Runs ranks to the end; `arguments` are written to a file of the run directory.
fn run_from(source: HostSource<'_>, spec: &RunSpec, arguments: &str) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    std::fs::create_dir(&run_dir).unwrap();
    std::fs::write(run_dir.join("arguments"), arguments).unwrap();
    let run_id = dir.path().file_name().unwrap().to_str().unwrap();
    let launch = Launch { run_id, spec, source, run_dir: &run_dir };
    let mut observed = Vec::new();
    let ended = launch.run(&mut |record| observed.push(record.clone())).unwrap();
    assert_eq!(ended, Survivors { pids: vec![] });
    assert_eq!(processes_of(run_id), Vec::<String>::new(), "processes are left");
    let trace = Trace::read(&run_dir).unwrap();
    let run = Run { trace, dir, observed };
    run.check_invariants();
    run
}

/// Checks all cases at the same time, because most cases only wait.
pub fn for_each<T: Send>(cases: impl IntoIterator<Item = T>, check: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| check(case));
        }
    });
}

/// The command lines of the processes that have this run's id in their environment.
pub fn processes_of(run_id: &str) -> Vec<String> {
    let needle = format!("ZPROBE_RUN={run_id}");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name| std::fs::read(entry.path().join(name)).unwrap_or_default();
        if read("environ").split(|&byte| byte == 0).any(|variable| variable == needle.as_bytes()) {
            found.push(String::from_utf8_lossy(&read("cmdline")).replace('\0', " "));
        }
    }
    found
}

impl Run {
    fn check_invariants(&self) {
        assert_eq!(self.observed, self.trace.records, "the observer sees what is written");
        assert_eq!(self.observed[0].rank, None);
        let mut senders = std::collections::BTreeMap::<_, u64>::new();
        for record in &self.trace.records {
            let next = senders.entry(record.rank).or_default();
            assert_eq!(record.seq, *next, "{record:?}");
            *next += 1;
        }
        for rank in 0..self.trace.spec.world_size {
            let ends = self.events().filter(
                |event| matches!(event, Event::RankExited { rank: ended, .. } if *ended == rank),
            );
            assert_eq!(ends.count(), 1, "rank {rank} ends once");
            let position =
                |wanted: &dyn Fn(&Record) -> bool| self.trace.records.iter().rposition(wanted);
            let exit = position(
                &|it| matches!(it.event, Event::RankExited { rank: ended, .. } if ended == rank),
            );
            let last = position(&|it| it.rank == Some(rank));
            assert!(last < exit, "rank {rank} says nothing after its end");
        }
    }

    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.trace.events().map(|(_, event)| event)
    }

    /// The events of a rank.
    pub fn said(&self, rank: usize) -> Vec<&Event> {
        self.trace
            .events()
            .filter(|(from, _)| *from == Some(rank))
            .map(|(_, event)| event)
            .collect()
    }

    pub fn outcome(&self, rank: usize) -> Outcome {
        self.events()
            .find_map(|event| match event {
                Event::RankExited { rank: ended, outcome } if *ended == rank => Some(*outcome),
                _ => None,
            })
            .unwrap()
    }

    pub fn finished(&self, rank: usize) -> bool {
        self.said(rank).last() == Some(&&Event::Finished)
    }

    pub fn violations(&self) -> Vec<(Option<usize>, Violation, &str)> {
        self.events()
            .filter_map(|event| match event {
                Event::ProtocolViolated { rank, violation, line } => {
                    Some((*rank, *violation, line.as_str()))
                }
                _ => None,
            })
            .collect()
    }

    /// The ranks that the watchdog named; `None` if the watchdog did not end the run.
    pub fn silent(&self) -> Option<&[usize]> {
        self.events().find_map(|event| match event {
            Event::TimedOut { silent, .. } => Some(silent.as_slice()),
            _ => None,
        })
    }

    /// The ranks that waited for others when the watchdog ended the run, each with the place where it waited.
    pub fn waiting(&self) -> Vec<(usize, Meeting)> {
        let told = self.events().find_map(|event| match event {
            Event::TimedOut { waiting, .. } => Some(waiting),
            _ => None,
        });
        told.into_iter().flatten().map(|it| (it.rank, it.meeting)).collect()
    }

    pub fn stderr(&self, of: Option<usize>) -> Option<&str> {
        self.events().find_map(|event| match event {
            Event::Stderr { rank, tail } if *rank == of => Some(tail.as_str()),
            _ => None,
        })
    }
}
