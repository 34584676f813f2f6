//! Ranks that behave well: their environment, and the recording of their events.

use crate::harness::{fixture, ranks, run, run_program, spec};
use zprobe_launch::{Hosting, RankProgram};
use zprobe_model::trace::{Event, Outcome};

#[test]
fn the_smallest_rank_will_do() {
    let program = RankProgram {
        program: fixture("minimal.py"),
        args: vec![],
        hosting: Hosting::OnePerRank,
        library_path: vec![],
    };
    let run = run_program(&program, &spec(1, 10));
    assert!(run.finished(0));
    assert_eq!(run.outcome(0), Outcome::Code(0));
}

#[test]
fn both_hostings_leave_the_same_trace() {
    for arguments in ["well-behaved", "well-behaved --forked"] {
        let run = run_program(&ranks(arguments), &spec(3, 10));
        let (mut spawned, mut ready, mut exited) = (0, 0, 0);
        for event in run.events() {
            match event {
                Event::RankSpawned { .. } => spawned += 1,
                Event::RankReady { .. } => ready += 1,
                Event::RankExited { outcome: Outcome::Code(0), .. } => exited += 1,
                Event::RunStarted { .. } | Event::Finished => {}
                event => panic!("{arguments}: {event:?}"),
            }
        }
        assert_eq!((spawned, ready, exited), (3, 3, 3), "{arguments}");
        assert!((0..3).all(|rank| run.finished(rank)), "{arguments}");
    }
}

#[test]
fn lines_longer_than_a_pipe_arrive_whole() {
    let run = run("sends-much");
    for rank in 0..2 {
        let long = run
            .said(rank)
            .iter()
            .filter(
                |event| matches!(event, Event::Failed { message } if message.len() == 3_000_000),
            )
            .count();
        assert_eq!((long, run.finished(rank)), (3, true));
    }
}

#[test]
fn a_rank_gets_torchruns_variables_and_its_own_descriptors_only() {
    for (arguments, forked) in
        [("reports-environment", false), ("reports-environment --forked", true)]
    {
        let run = run(arguments);
        for rank in 0..2 {
            let Event::RankReady { versions: env, .. } = run.said(rank)[0] else { panic!() };
            let get = |name: &str| env.get(name).map(String::as_str);
            assert_eq!(get("MASTER_ADDR"), Some("127.0.0.1"));
            assert_ne!(get("MASTER_PORT"), Some("0"));
            assert_eq!((get("WORLD_SIZE"), get("LOCAL_WORLD_SIZE")), (Some("2"), Some("2")));
            assert!(get("OMP_NUM_THREADS").is_some());
            assert_eq!(get("stdin"), Some("/dev/null"));
            assert_eq!(get("ZPROBE_STORE_FD").is_some(), forked || rank == 0);
            assert_eq!(get("ZPROBE_HOST_FD").is_some(), forked);
            let number = rank.to_string();
            // A host that forks has the variables of its first rank.
            let own = Some(if forked { "0" } else { number.as_str() });
            assert_eq!((get("RANK"), get("LOCAL_RANK")), (own, own));
            assert_eq!(
                get("ZPROBE_SPEC"),
                Some(serde_json::to_string(&run.trace.spec).unwrap().as_str())
            );
            let given = get("descriptors").unwrap().split(',').map(|fd| fd.parse().unwrap());
            let ours = given.filter(|fd| *fd > 2 && !inheritable().contains(fd)).count();
            // The descriptors are the event channel and, for some processes, the socket of the store.
            assert_eq!(ours, 1 + usize::from(forked || rank == 0), "{env:?}");
        }
    }
}

#[test]
fn a_rank_looks_for_its_libraries_where_its_program_wants_it_to_and_then_where_the_user_does() {
    let library_path = vec!["/first".into(), "/second".into()];
    let program = RankProgram { library_path, ..ranks("reports-all-variables") };
    let run = run_program(&program, &spec(2, 60));
    let own = std::env::var("LD_LIBRARY_PATH").ok().filter(|path| !path.is_empty());
    let expected = own.map_or("/first:/second".to_owned(), |own| format!("/first:/second:{own}"));
    for rank in 0..2 {
        let Event::RankReady { versions: env, .. } = run.said(rank)[0] else { panic!() };
        assert_eq!(env.get("LD_LIBRARY_PATH"), Some(&expected));
    }
}

/// The descriptors that the program which runs the tests leaks into every process.
fn inheritable() -> Vec<u32> {
    const O_CLOEXEC: u32 = 0o2_000_000;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
        let Ok(info) = std::fs::read_to_string(entry.path()) else { continue };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        if u32::from_str_radix(flags.trim(), 8).unwrap() & O_CLOEXEC == 0 {
            found.push(entry.file_name().to_str().unwrap().parse().unwrap());
        }
    }
    found
}
