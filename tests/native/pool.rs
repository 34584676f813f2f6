//! Runs of the native engine over one warm pool.

use std::path::Path;
use std::time::Duration;

use zprobe_diagnose::diagnose;
use zprobe_launch::{HostSource, Hosting, Launch, Pool, RankProgram};
use zprobe_model::spec::RunSpec;
use zprobe_model::trace::Trace;

use super::support::rank_program;

/// The program of the native ranks.
pub fn program() -> RankProgram {
    RankProgram {
        program: rank_program(),
        args: vec![],
        hosting: Hosting::Forked,
        library_path: vec![],
    }
}

/// Starts a pool of the native ranks.
pub fn pool(dir: &Path) -> Pool {
    Pool::start(&program(), dir, Duration::from_secs(60)).unwrap()
}

/// Makes a run in a directory that is removed afterwards, and returns the trace.
pub fn run(source: HostSource<'_>, spec: &RunSpec) -> Trace {
    let dir = tempfile::tempdir().unwrap();
    let run_id = dir.path().file_name().unwrap().to_str().unwrap();
    let launch = Launch { run_id, spec, source, run_dir: dir.path() };
    let ended = launch.run(&mut |_| {}).unwrap();
    assert_eq!(ended.pids, Vec::<u32>::new());
    Trace::read(dir.path()).unwrap()
}

/// The codes of the root findings.
pub fn codes(trace: &Trace) -> Vec<String> {
    diagnose(trace).findings.iter().map(|finding| finding.code.to_string()).collect()
}
