//! Tests: a directory must meet every condition to count as a recorded run, and all other files stay.

use std::os::unix::fs::symlink;
use std::time::Duration;

use super::*;

/// A directory with these runs: name, time in minutes since the epoch, and size of the trace in bytes.
fn runs(all: &[(&str, u64, usize)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, minutes, bytes) in all {
        let run = dir.path().join(RUNS).join(name);
        fs::create_dir_all(run.join("rank-program")).unwrap();
        let mut trace = File::create(run.join(TRACE_FILE)).unwrap();
        trace.write_all(&vec![b'x'; *bytes]).unwrap();
        trace.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(60 * minutes)).unwrap();
    }
    dir
}

fn names(runs: &[Recorded]) -> Vec<String> {
    let name = |run: &Recorded| run.path.file_name().unwrap().to_str().unwrap().to_owned();
    runs.iter().map(name).collect()
}

#[test]
fn only_a_directory_with_a_trace_that_nobody_writes_is_a_recorded_run() {
    let dir = runs(&[("old", 1, 10), ("new", 2, 20), ("held", 3, 30)]);
    let place = dir.path().join(RUNS);
    let elsewhere = runs(&[("kept", 5, 40)]);
    let kept = elsewhere.path().join(RUNS).join("kept");
    symlink(&kept, place.join("link")).unwrap();
    fs::create_dir(place.join("notes")).unwrap();
    fs::write(place.join("notes/thesis.txt"), "years of work").unwrap();
    fs::create_dir(place.join("linked-trace")).unwrap();
    symlink(kept.join(TRACE_FILE), place.join("linked-trace").join(TRACE_FILE)).unwrap();
    fs::write(place.join(TRACE_FILE), "a file").unwrap();
    symlink(&kept, place.join("old/more")).unwrap();
    let held = File::open(place.join("held")).unwrap();
    held.try_lock().unwrap();

    let all = recorded(dir.path()).unwrap();
    assert_eq!(names(&all), ["new", "old"]);
    assert_eq!(all.iter().map(|run| run.bytes).collect::<Vec<_>>(), [20, 10]);
    all.iter().for_each(|run| run.remove().unwrap());
    let mut left: Vec<_> =
        fs::read_dir(&place).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["held", "link", "linked-trace", "notes", TRACE_FILE]);
    assert_eq!(fs::read(kept.join(TRACE_FILE)).unwrap().len(), 40);
    drop(held);
    assert_eq!(names(&recorded(dir.path()).unwrap()), ["held"]);
}

#[test]
fn a_link_in_place_of_the_runs_is_refused() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), runs(&[("run", 1, 1)]));
    assert_eq!(recorded(dir.path()).unwrap(), []);
    symlink(elsewhere.path().join(ROOT), dir.path().join(ROOT)).unwrap();
    let error = recorded(dir.path()).unwrap_err().to_string();
    assert!(error.contains("nothing is written or removed there"), "{error}");
    fs::remove_file(dir.path().join(ROOT)).unwrap();
    fs::create_dir(dir.path().join(ROOT)).unwrap();
    symlink(elsewhere.path().join(RUNS), dir.path().join(RUNS)).unwrap();
    assert!(recorded(dir.path()).is_err());
}

#[test]
fn what_is_kept_are_the_newest_and_what_people_have_named() {
    let name = |minute: u64| format!("20260101T00{minute:02}00Z-{}", 70 - minute);
    let all: Vec<String> = (0..5).map(name).collect();
    let mut made: Vec<(&str, u64, usize)> =
        all.iter().zip(1..).map(|(name, at)| (name.as_str(), at, 1)).collect();
    made.extend([("baseline", 0, 1), ("2026-01-01", 0, 1), ("20260101T000000Z-mine", 0, 1)]);
    let dir = runs(&made);
    assert_eq!(retain(dir.path(), 0).unwrap(), []);
    assert_eq!(retain(dir.path(), 5).unwrap(), []);
    assert_eq!(names(&retain(dir.path(), 3).unwrap()), [&*all[1], &all[0]]);
    assert_eq!(recorded(dir.path()).unwrap().len(), 6);
}

#[test]
fn no_two_runs_of_a_process_have_the_same_name() {
    let names = [run_id(), run_id(), run_id()];
    assert!(names[0] != names[1] && names[1] != names[2], "{names:?}");
    assert!(names.is_sorted(), "{names:?}");
}

#[test]
fn the_runs_of_experiments_are_found_by_their_path_and_an_experiment_is_removed_as_a_whole() {
    let dir = runs(&[("alone", 1, 1)]);
    let place = |path: &str| dir.path().join(ROOT).join(path);
    let (check, step) = ("check/20260101T000000Z-7", "bisect/20260101T000000Z-8-1");
    let recorded = [&*format!("{check}/ddp/stage1"), step, "compare/mine/a", "notes/a/b"];
    for (path, minutes) in recorded.iter().zip(2..) {
        fs::create_dir_all(place(path)).unwrap();
        let trace = File::create(place(path).join(TRACE_FILE)).unwrap();
        trace.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(60 * minutes)).unwrap();
    }
    fs::create_dir_all(place("sweep/20260101T000000Z-9")).unwrap();
    symlink(place("notes"), place("sweep/20260101T000000Z-10")).unwrap();
    let found = everywhere(dir.path()).unwrap();
    let expected = ["mine/a", "20260101T000000Z-8-1", "20260101T000000Z-7/ddp/stage1", "alone"];
    assert_eq!(found.iter().map(|run| &*run.name).collect::<Vec<_>>(), expected);

    let held = held(&place(check)).unwrap();
    let seen = || {
        let all = experiments(dir.path()).unwrap();
        all.into_iter().map(|(it, runs)| (it.name, runs.len())).collect::<Vec<_>>()
    };
    let named = |number: &str, runs| (format!("20260101T000000Z-{number}"), runs);
    assert_eq!(seen(), [named("9", 0), named("8-1", 1)], "no held or named experiment");
    drop(held);
    assert_eq!(seen(), [named("9", 0), named("8-1", 1), named("7", 1)]);
    experiments(dir.path()).unwrap()[2].0.remove().unwrap();
    assert!(!place(check).exists());
}
