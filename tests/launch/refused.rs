//! Set-up errors, for which `launch` returns an error, and an observer that panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use zprobe_launch::{HostSource, Hosting, Launch, LaunchError, RankProgram};
use zprobe_model::trace::Event;

use crate::harness::{fixture, processes_of, ranks, spec};

fn error(program: &Path, run_dir: &Path) -> LaunchError {
    let program = RankProgram {
        program: program.to_owned(),
        args: vec![],
        hosting: Hosting::OnePerRank,
        library_path: vec![],
    };
    let spec = spec(2, 2);
    let source = HostSource::Cold(&program);
    let launch = Launch { run_id: "refused", spec: &spec, source, run_dir };
    launch.run(&mut |_| {}).unwrap_err()
}

#[test]
fn a_program_that_cannot_be_started_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for program in [Path::new("/nowhere/zprobe-rank"), &fixture("protocol.py")] {
        let error = error(program, dir.path());
        assert!(matches!(error, LaunchError::Spawn { .. }), "{error}");
        assert!(error.to_string().contains(program.to_str().unwrap()), "{error}");
    }
}

#[test]
fn a_run_directory_that_cannot_be_written_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for run_dir in [file.path(), &file.path().join("run")] {
        let error = error(&fixture("minimal.py"), run_dir);
        assert!(matches!(error, LaunchError::RunDir { .. }), "{error}");
    }
}

#[test]
fn a_panic_of_the_observer_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let run_id = dir.path().file_name().unwrap().to_str().unwrap();
    let (spec, program) = (spec(2, 30), ranks("sleeps"));
    let source = HostSource::Cold(&program);
    let launch = Launch { run_id, spec: &spec, source, run_dir: dir.path() };
    let result = catch_unwind(AssertUnwindSafe(|| {
        launch.run(&mut |record| assert!(!matches!(record.event, Event::RankReady { .. })))
    }));
    assert!(result.is_err());
    assert_eq!(processes_of(run_id), Vec::<String>::new());
}
