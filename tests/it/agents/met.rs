//! Processes that meet, and the report on their ranks.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::job::{Job, free_port, zprobe};

/// A report without the parts that differ from run to run: the process ids and logs of ranks.
fn lasting(report: &Value) -> Value {
    let mut report = report.clone();
    for rank in report["ranks"].as_array_mut().unwrap() {
        rank["pid"] = Value::Null;
        rank["stderr"] = Value::Null;
    }
    report
}

#[test]
fn the_report_is_that_of_one_machine_and_the_process_of_rank_0_alone_prints() {
    let dir = TempDir::new().unwrap();
    let flags = ["--nproc-per-node", "4"];
    let plain = zprobe(dir.path(), "stepping.py", &flags).output().unwrap();
    let plain_report = serde_json::from_slice(&plain.stdout).unwrap();
    let mut job = Job::start("stepping.py", &[], [&[], &[]]);
    let nodes = job.end();
    assert_eq!(lasting(&nodes[0].report()), lasting(&plain_report));
    assert_eq!(nodes[0].code, plain.status.code());
    assert_eq!((nodes[1].code, &*nodes[1].stdout), (nodes[0].code, ""), "{}", nodes[1].stderr);
    let joined = job
        .records(0)
        .into_iter()
        .filter(|it| serde_json::to_value(&it.event).unwrap()["type"] == "agent-joined");
    assert_eq!(joined.count(), 2);
    assert!(!job.has_left(1, "run/agent-1/trace.jsonl"), "rank 0's trace has everything");
}

#[test]
fn every_launchers_variables_are_understood() {
    let port = free_port().to_string();
    let torchrun = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
    let open_mpi = [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ];
    let srun = ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID"];
    for names in [torchrun, open_mpi, srun] {
        let mut job = Job::start_with(3, |node, dir| {
            let mut command = zprobe(dir, "stepping.py", &[]);
            let node = node.to_string();
            for (name, value) in names.iter().zip([&*node, "3", &*node, "3"]) {
                command.env(name, value);
            }
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            command
        });
        let nodes = job.end();
        let codes: Vec<_> = nodes.iter().map(|node| node.code).collect();
        assert_eq!(nodes[0].report()["ranks"].as_array().unwrap().len(), 3, "{names:?}");
        assert!(codes.iter().all(|code| *code == codes[0]), "{codes:?}");
    }
}

#[test]
fn strangers_at_the_port_hold_nothing_up() {
    let port = free_port();
    let endpoint = format!("127.0.0.1:{port}");
    let mut job = Job::start_with(2, |node, dir| {
        if node == 1 {
            // Two strangers connect before the second process: one sends a request, and one sends nothing.
            let stranger = || loop {
                match TcpStream::connect(&endpoint) {
                    Ok(stream) => return stream,
                    Err(_) => thread::sleep(Duration::from_millis(20)),
                }
            };
            stranger().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            std::mem::forget(stranger());
        }
        let node = node.to_string();
        let flags = ["--nnodes", "2", "--node-rank", &node, "--rdzv-endpoint", &endpoint];
        zprobe(dir, "stepping.py", &flags)
    });
    let nodes = job.end();
    assert_eq!(nodes[0].report()["ranks"].as_array().unwrap().len(), 4);
    assert_eq!(nodes[0].code, nodes[1].code);
}

#[test]
fn repeats_are_made_by_all_processes() {
    let mut job = Job::start("stepping.py", &["--repeat", "2"], [&[], &[]]);
    let nodes = job.end();
    assert!((0..2).all(|number| job.has_left(0, &format!("run/repeat-{number}/trace.jsonl"))));
    assert_eq!(nodes[0].code, nodes[1].code);
}
