//! Determines this process's part in a job on several machines, from the launcher's variables and the flags.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use zprobe_lab::agents::{AgentRole, FollowOutcome};
use zprobe_lab::console::say;
use zprobe_launch::agents::{JobPart, Leader, Team};
use zprobe_launch::job::{Endpoint, Job, JobRendezvous, Launcher};
use zprobe_model::spec::{DEFAULT_WORLD_SIZE, Gpus, SpecRequest};
use zprobe_report::Exit;

/// The flags for runs on several machines.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Many machines")]
pub struct Nodes {
    /// Number of machines of the run (start zprobe once on each); also read from a launcher's variables
    #[arg(long, value_name = "N", env = "ZPROBE_NNODES")]
    nnodes: Option<usize>,

    /// Number of this machine, from 0
    #[arg(long, value_name = "I", env = "ZPROBE_NODE_RANK")]
    node_rank: Option<usize>,

    /// Host of rank 0 and a free port there, for the rendezvous of the run's processes
    #[arg(long, value_name = "HOST:PORT", env = "ZPROBE_RDZV_ENDPOINT", value_parser = Endpoint::named)]
    rdzv_endpoint: Option<Endpoint>,

    /// Shared secret of the run's processes, the same on all machines; set it in the variable to hide it from
    /// other users
    #[arg(long, value_name = "WORD", env = "ZPROBE_RDZV_TOKEN", hide_env_values = true)]
    rdzv_token: Option<String>,

    /// Seconds for which the processes wait for each other before the run begins
    #[arg(long, value_name = "SECS", default_value_t = 300, env = "ZPROBE_RDZV_TIMEOUT")]
    rdzv_timeout: u64,
}

impl Nodes {
    /// The job that this process belongs to; `None` if the process runs by itself.
    pub fn job(&self) -> Result<Option<Job>> {
        self.job_beside(Job::of_this_process()?)
    }

    /// The job of a process that starts a launcher's command: from the environment or the flags, or else from the words
    /// of the command. `None` if the process runs by itself.
    pub fn job_of_command(&self, command: &[OsString]) -> Result<Option<Job>> {
        let told = match Job::of_this_process()?.filter(|job| job.size > 1) {
            Some(job) if job.launcher == Launcher::Torchrun => bail!(
                "zprobe exec watches all ranks of a machine, but this process is {job}: put zprobe exec before the \
                 launcher, as in `zprobe exec -- torchrun … train.py`"
            ),
            None if self.nnodes.is_none() => Job::of_command(command)?,
            told => told,
        };
        self.job_beside(told)
    }

    /// The job `told` by the environment or the command, which flags must not contradict; without it, the job that the
    /// flags describe.
    fn job_beside(&self, told: Option<Job>) -> Result<Option<Job>> {
        let flags = [("--nnodes", self.nnodes), ("--node-rank", self.node_rank)];
        let given: Vec<(&'static str, usize)> =
            flags.into_iter().filter_map(|(flag, value)| Some((flag, value?))).collect();
        let Some(job) = told else { return self.by_flags() };
        for (flag, value) in given {
            let says = if flag == "--nnodes" { job.size } else { job.index };
            ensure!(
                job.launcher == Launcher::Node,
                "{flag} {value}, but this process is {job}: leave {flag} out"
            );
            ensure!(
                value == says,
                "{flag} {value}, but this process is {job}: leave {flag} out, or correct one"
            );
        }
        Ok(Some(job))
    }

    fn by_flags(&self) -> Result<Option<Job>> {
        let (size, index) = match (self.nnodes, self.node_rank) {
            (None | Some(1), None) => {
                ensure!(
                    self.rdzv_endpoint.is_none(),
                    "--rdzv-endpoint is for a run on several machines: give --nnodes and --node-rank, or use a \
                     launcher"
                );
                return Ok(None);
            }
            (Some(0), _) => bail!("--nnodes 0: must be at least 1"),
            (None, Some(_)) => bail!("--node-rank without --nnodes: give both"),
            (Some(_), None) => bail!("--nnodes without --node-rank: give both"),
            (Some(size), Some(index)) => (size, index),
        };
        ensure!(index < size, "--node-rank {index} of --nnodes {size}: node ranks count from 0");
        ensure!(
            size == 1 || self.rdzv_endpoint.is_some(),
            "--nnodes {size} without --rdzv-endpoint: give HOST:PORT, the host of node 0 and a free port there"
        );
        let evidence = vec![("--nnodes", size.to_string()), ("--node-rank", index.to_string())];
        let launcher = Launcher::Node;
        let job = Job { launcher, index, size, on_machine: None, evidence, endpoint: None };
        Ok((size > 1).then_some(job))
    }

    /// The address and the token for the rendezvous of the job's processes.
    pub fn meeting(&self, job: &Job) -> Result<JobRendezvous> {
        self.meeting_at(job, |told| told)
    }

    /// The address and the token for zprobe's own rendezvous. The job's own rendezvous is at the launcher's address.
    pub fn meeting_beside(&self, job: &Job) -> Result<JobRendezvous> {
        self.meeting_at(job, Endpoint::beside)
    }

    fn meeting_at(
        &self,
        job: &Job,
        own: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<JobRendezvous> {
        let endpoint = match &self.rdzv_endpoint {
            Some(endpoint) => endpoint.clone(),
            None => own(job.endpoint()?),
        };
        Ok(job.meeting(endpoint, self.rdzv_token.clone()))
    }

    /// The time for which the processes of the job wait for each other.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.rdzv_timeout)
    }
}

/// Fills in the number of ranks of the job and the GPUs of all its machines, and returns the part of this
/// process.
pub fn take_part(job: &Job, request: &mut SpecRequest) -> Result<JobPart> {
    if !job.is_rank() {
        let here = request.gpus.as_ref().map_or(0, Gpus::count);
        let ranks = match (request.world_size, request.rank_per_gpu) {
            (Some(0), _) => bail!("--nproc-per-node 0: must be at least 1"),
            (Some(ranks), _) => ranks,
            (None, true) => here,
            (None, false) if here > 0 => here,
            (None, false) => DEFAULT_WORLD_SIZE,
        };
        (request.world_size, request.rank_per_gpu) = (Some(ranks * job.size), false);
        multiply(&mut request.gpus, job.size);
        return Ok(JobPart::new(job.index, job.size, ranks, (0, ranks)));
    }
    let here = job.on_machine.map(|(_, here)| here);
    match (request.world_size, here) {
        (Some(asked), Some(here)) if asked == here => {}
        (Some(asked), _) => {
            bail!("--nproc-per-node {asked}, but this process is {job}: leave --nproc-per-node out")
        }
        (None, _) => {}
    }
    ensure!(
        !request.rank_per_gpu,
        "--nproc-per-node gpu, but this process is {job}: leave --nproc-per-node out"
    );
    request.world_size = Some(job.size);
    multiply(&mut request.gpus, here.map_or(1, |here| job.size.div_ceil(here)));
    Ok(JobPart::new(job.index, job.size, 1, job.on_machine.unwrap_or((0, 1))))
}

/// Assumes that the other machines have the same GPUs as this one.
fn multiply(gpus: &mut Option<Gpus>, machines: usize) {
    if let Some(names) = gpus.as_mut().and_then(|gpus| gpus.names.as_mut().ok()) {
        *names = std::iter::repeat_n(names.iter().cloned(), machines).flatten().collect();
    }
}

/// Runs this process as the leader or a follower of its job. All processes exit with the leader's code; if the leader
/// is lost, `alone` reports on the records in this process's directory.
pub fn play(
    role: AgentRole,
    lead: impl FnOnce(&mut Team) -> Result<Exit>,
    follow: impl FnOnce(Leader) -> Result<FollowOutcome>,
    alone: impl FnOnce(&Path) -> Result<Exit>,
) -> Result<Exit> {
    match role {
        AgentRole::Leads(mut team) => {
            let led = lead(&mut team);
            match &led {
                Ok(exit) => team.over(exit.code()),
                Err(error) => team.refuse(&format!("{error:#}")),
            }
            led
        }
        AgentRole::Follows(leader) => match follow(*leader)? {
            FollowOutcome::Over(code) => Ok(Exit::of_code(code)),
            FollowOutcome::Alone(dir) => {
                say(format_args!(
                    "the process of rank 0 is lost; the records of this machine's ranks are in {}",
                    dir.display()
                ));
                alone(&dir)
            }
        },
    }
}

/// Refuses to run under a launcher, because each of its processes would do all of `command` by itself.
pub fn refuse_launcher(command: &str) -> Result<()> {
    if let Some(job) = Job::of_this_process()? {
        bail!(
            "zprobe {command} starts the ranks of its runs itself, but this process is {job}: start zprobe once, \
             without a launcher"
        );
    }
    Ok(())
}
