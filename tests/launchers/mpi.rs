//! Runs under Open MPI.

use crate::runs::{Launched, RANKS, command, compare, program, words};

#[test]
#[ignore = "needs Open MPI, and an interpreter with torch in ZPROBE_TEST_PYTHON"]
fn open_mpi() {
    let Some(mpirun) = program("mpirun") else { return };
    compare("mpirun", &mut |case, dir| {
        let ranks = RANKS.to_string();
        let flags = ["--allow-run-as-root", "--oversubscribe", "-n", &ranks];
        let launcher = [mpirun.to_str().unwrap()].into_iter().chain(flags).map(str::to_owned);
        let all: Vec<String> = launcher.chain(words(case)).collect();
        Launched::of(&command(&all, dir).output().unwrap())
    });
}
