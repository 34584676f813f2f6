//! Runs of the native engine over one warm pool.

use std::path::Path;
use std::time::Duration;

use zprobe::diagnose::diagnose;
use zprobe::launch::{Hosting, Launch, Pool, RankProgram, Source};
use zprobe::spec::RunSpec;
use zprobe::trace::Trace;

/// The program of the native ranks.
pub fn program() -> RankProgram {
    RankProgram {
        program: env!("CARGO_BIN_EXE_zprobe-rank").into(),
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
pub fn run(source: Source<'_>, spec: &RunSpec) -> Trace {
    let dir = tempfile::tempdir().unwrap();
    let run_id = dir.path().file_name().unwrap().to_str().unwrap();
    let launch = Launch { run_id, spec, source, run_dir: dir.path() };
    let ended = launch.run(&mut |_| {}).unwrap();
    assert_eq!(ended.survivors, Vec::<u32>::new());
    Trace::read(dir.path()).unwrap()
}

/// The codes of the root findings.
pub fn codes(trace: &Trace) -> Vec<String> {
    diagnose(trace).findings.iter().map(|finding| finding.code.to_string()).collect()
}
