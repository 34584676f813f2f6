//! Slurm with two nodes, both on this machine: a controller and a daemon for each node, which the test starts
//! and ends.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid, gethostname};
use tempfile::TempDir;

use crate::interpreter::python;
use crate::runs::{Launched, command, compare, left, program, words};

#[test]
#[ignore = "needs Slurm and root, and an interpreter with torch in ZPROBE_TEST_PYTHON"]
fn srun_with_two_nodes() {
    let Some(cluster) = Cluster::start() else { return };
    compare("srun", &mut |case, dir| {
        let flags = ["srun", "--nodes", "2", "--ntasks-per-node", "2"].map(str::to_owned);
        let all: Vec<String> = flags.into_iter().chain(words(case)).collect();
        let mut command = command(&all, dir);
        command.env("SLURM_CONF", cluster.configuration());
        Launched::of(&command.output().unwrap())
    });
    a_script_with_a_task_on_each_node(&cluster);
}

/// Watches a script on two nodes; on each node srun starts zprobe, and zprobe starts torchrun.
fn a_script_with_a_task_on_each_node(cluster: &Cluster) {
    let dir = TempDir::new().unwrap();
    let torchrun = python().with_file_name("torchrun").display().to_string();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/train/ddp.py");
    let port = free_ports()[0];
    let train = format!(
        "exec {torchrun} --nnodes 2 --node-rank $SLURM_PROCID --nproc-per-node 1 --master-addr 127.0.0.1 \
         --master-port {port} {} --accumulate 2",
        script.display()
    );
    let flags = ["srun", "--nodes", "2", "--ntasks-per-node", "1"];
    let zprobe = [env!("CARGO_BIN_EXE_zprobe"), "exec", "--out", "run", "--", "sh", "-c", &train];
    let words: Vec<String> = flags.into_iter().chain(zprobe).map(str::to_owned).collect();
    let mut command = command(&words, dir.path());
    command.env("SLURM_CONF", cluster.configuration()).env("GLOO_SOCKET_IFNAME", "lo");
    let launched = Launched::of(&command.output().unwrap());
    assert!(launched.succeeded, "{}", launched.said);
    assert!(launched.said.contains("all 8 gradients of 2 steps"), "{}", launched.said);
    assert_eq!(left(dir.path()), Vec::<PathBuf>::new());
}

/// A running Slurm.
struct Cluster {
    dir: TempDir,
}

impl Cluster {
    /// Starts Slurm's daemons; `None` if they are not installed, or if the user may not start them.
    fn start() -> Option<Self> {
        let programs = ["munged", "slurmctld", "slurmd", "srun"].map(program);
        let [Some(munged), Some(slurmctld), Some(slurmd), Some(_)] = programs else { return None };
        if !geteuid().is_root() {
            eprintln!("skipped: only root can start Slurm's daemons");
            return None;
        }
        let cluster = Self { dir: TempDir::new().unwrap() };
        cluster.write();
        let file = |name: &str| cluster.path(name).display().to_string();
        let mut daemon = Command::new(munged);
        daemon.args(["--force", "--key-file", &file("key"), "--socket", &file("munge.socket")]);
        daemon.args(["--pid-file", &file("munged.pid"), "--log-file", &file("munged.log")]);
        run(daemon.args(["--seed-file", &file("seed")]));
        let start = |program: &Path, flags: &[&str]| {
            run(Command::new(program).args(flags).env("SLURM_CONF", cluster.configuration()));
        };
        start(&slurmctld, &["-c"]);
        for node in NODES {
            start(&slurmd, &["-N", node]);
        }
        cluster.wait_for_nodes();
        Some(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn configuration(&self) -> PathBuf {
        self.path("slurm.conf")
    }

    /// Writes the key and the configuration of Slurm.
    fn write(&self) {
        let mut key = fs::OpenOptions::new();
        let mut key = key.write(true).create_new(true).mode(0o400).open(self.path("key")).unwrap();
        key.write_all(&fs::read("/proc/sys/kernel/random/uuid").unwrap().repeat(8)).unwrap();
        let host = gethostname().unwrap().into_string().unwrap();
        let dir = self.dir.path().display();
        let [controller, first, second] = free_ports();
        for name in ["state", NODES[0], NODES[1]] {
            fs::create_dir(self.path(name)).unwrap();
        }
        let [node_1, node_2] = NODES;
        let text = format!(
            "ClusterName=zprobe\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\n\
             SlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nCredType=cred/munge\n\
             AuthInfo=socket={dir}/munge.socket\nMpiDefault=none\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nSwitchType=switch/none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_CPU\nSlurmdParameters=config_overrides\nReturnToService=2\n\
             StateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/%n\nSlurmctldPidFile={dir}/slurmctld.pid\n\
             SlurmdPidFile={dir}/slurmd-%n.pid\nSlurmctldLogFile={dir}/slurmctld.log\n\
             SlurmdLogFile={dir}/slurmd-%n.log\n\
             NodeName={node_1} NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4\n\
             NodeName={node_2} NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=4\n\
             PartitionName=all Nodes={node_1},{node_2} Default=YES State=UP\n"
        );
        fs::write(self.configuration(), text).unwrap();
    }

    fn wait_for_nodes(&self) {
        loop {
            let mut sinfo = Command::new("sinfo");
            sinfo.args(["-h", "-o", "%D %T"]).env("SLURM_CONF", self.configuration());
            let said = String::from_utf8(sinfo.output().unwrap().stdout).unwrap();
            if said.trim() == "2 idle" {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for name in ["slurmctld", "munged"]
            .map(str::to_owned)
            .into_iter()
            .chain(NODES.map(|it| format!("slurmd-{it}")))
        {
            let text = fs::read_to_string(self.path(&format!("{name}.pid"))).unwrap_or_default();
            if let Ok(pid) = text.trim().parse() {
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
    }
}

/// The names of the nodes, which are addresses of the loopback interface, so that they need no entry in a
/// table of hosts.
const NODES: [&str; 2] = ["127.0.0.2", "127.0.0.3"];

fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
