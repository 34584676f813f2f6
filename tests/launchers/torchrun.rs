//! torchrun with two agents, on two addresses of the loopback interface.

use std::net::TcpListener;
use std::path::Path;
use std::thread;

use crate::interpreter::python;
use crate::runs::{Case, Launched, command, compare, words};

#[test]
#[ignore = "needs an interpreter with torch, in ZPROBE_TEST_PYTHON"]
fn torchrun_with_two_agents() {
    compare("torchrun", &mut |case, dir| {
        let port = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap().port();
        thread::scope(|scope| {
            let agents = [0, 1].map(|node| scope.spawn(move || agent(case, dir, node, port)));
            let [first, second] = agents.map(|agent| agent.join().unwrap());
            assert_eq!(first.succeeded, second.succeeded, "{}\n{}", first.said, second.said);
            first
        })
    });
}

fn agent(case: &Case, dir: &Path, node: usize, port: u16) -> Launched {
    let torchrun = python().with_file_name("torchrun");
    let address = format!("127.0.0.{}", 2 + node);
    let (node, port) = (node.to_string(), port.to_string());
    let flags = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
        "--node-rank",
        &node,
        "--master-addr",
        "127.0.0.2",
        "--master-port",
        &port,
        "--local-addr",
        &address,
        "--no-python",
    ];
    let launcher = [torchrun.to_str().unwrap()].into_iter().chain(flags).map(str::to_owned);
    let all: Vec<String> = launcher.chain(words(case)).collect();
    Launched::of(&command(&all, dir).output().unwrap())
}
