//! Jobs whose processes do not fit together: every process exits with 2, and prints the reason.

use std::process::Command;

use super::job::{Job, Node, zprobe};

fn refusals(job: &mut Job) -> Vec<String> {
    let nodes = job.end();
    let refused = |node: Node| {
        assert_eq!((node.code, &*node.stdout), (Some(2), ""), "{}", node.stderr);
        node.stderr
    };
    nodes.into_iter().map(refused).collect()
}

#[test]
fn different_settings_are_named_with_both_values() {
    let mut job = Job::start("stepping.py", &[], [&["--ga", "4"], &["--ga", "2", "--seed", "7"]]);
    for said in refusals(&mut job) {
        assert!(said.contains("spec.gradient_accumulation_steps is 4 and 2"), "{said}");
        assert!(said.contains("spec.seed is 0 and 7"), "{said}");
    }
}

#[test]
fn a_process_with_another_token_does_not_count() {
    let tokens: [&[&str]; 2] = [&["--rdzv-token", "one"], &["--rdzv-token", "two"]];
    let mut job = Job::start("stepping.py", &["--rdzv-timeout", "1"], tokens);
    let said = refusals(&mut job);
    assert!(
        said[0].contains("1 of 2 processes of this job did not connect within 1 s: process 1"),
        "{}",
        said[0]
    );
    assert!(said[1].contains("no process with the token of this job answered"), "{}", said[1]);
}

#[test]
fn two_processes_with_one_number_are_named() {
    let endpoint = format!("127.0.0.1:{}", super::job::free_port());
    let mut job = Job::start_with(3, |node, dir| {
        let node = node.min(1).to_string();
        let flags = ["--nnodes", "3", "--node-rank", &node, "--rdzv-endpoint", &endpoint];
        zprobe(dir, "stepping.py", &[&flags[..], &["--rdzv-timeout", "20"]].concat())
    });
    let said = refusals(&mut job);
    assert!(said[0].contains("two processes of this job have the number 1"), "{}", said[0]);
}

#[test]
fn a_script_is_watched_from_before_its_launcher() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    command.args(["exec", "--", "true"]).current_dir(dir.path());
    let variables = ["RANK", "WORLD_SIZE", "LOCAL_RANK"].into_iter().zip(["1", "4", "1"]);
    let output = command.envs(variables).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("put zprobe exec before the launcher"), "{said}");
}

/// Variables of a launcher, flags in addition to them, and a part of the refusal.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a str);

#[test]
fn flags_that_contradict_the_environment_are_named_with_both_values() {
    let torchrun =
        [("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
    let kubeflow = [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "here")];
    let cases: [Case<'_>; 7] = [
        (&torchrun, &["--nproc-per-node", "4"], "LOCAL_WORLD_SIZE=2"),
        (
            &torchrun,
            &["--nnodes", "2", "--node-rank", "0"],
            "--nnodes 2, but this process is rank 1 of 4",
        ),
        (&kubeflow, &["--nnodes", "2"], "--nnodes 2, but this process is node 1 of 4"),
        (&kubeflow, &["--node-rank", "3"], "--node-rank 3, but this process is node 1 of 4"),
        (
            &[("RANK", "5"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")],
            &[],
            "RANK=5 with WORLD_SIZE=4",
        ),
        (&[], &["--nnodes", "2"], "--nnodes without --node-rank"),
        (&[], &["--nnodes", "2", "--node-rank", "1"], "without --rdzv-endpoint"),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (variables, flags, expected) in cases {
        let mut command = zprobe(dir.path(), "stepping.py", flags);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{expected}: {said}");
    }
}
