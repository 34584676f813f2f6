//! The job that this process belongs to: whether a launcher started the process as one of several, and the number of
//! the process among them.
//!
//! A launcher tells each process its number in environment variables. The names of these variables differ between
//! launchers, and every descendant inherits them, so launchers nest: torchrun under srun leaves the variables of
//! both. The innermost launcher counts.
//!
//! If a command starts the ranks of one machine, the number of the machine is on the command line
//! (`launcher_command.rs`).

mod endpoint;
mod launcher_command;
mod variables;

use std::ffi::OsString;
use std::fmt;

pub use endpoint::Endpoint;
use variables::JobVariables;
pub use variables::UnclearRank;

/// The number of a process that does not have a number before the rendezvous with the other processes.
pub const UNNUMBERED: usize = usize::MAX;

/// The launcher that started this process as one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// torchrun, or another launcher that sets torchrun's variables for each rank, such as those of accelerate and
    /// DeepSpeed.
    Torchrun,
    /// Slurm's srun.
    Srun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// The mpirun of MPICH or of Intel MPI, or another launcher that implements PMI.
    Pmi,
    /// A cluster operator that starts one process for each node, such as Kubeflow's operator for PyTorchJob, or a
    /// user who starts the processes by hand.
    Node,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun, or a launcher like it",
            Self::Srun => "srun",
            Self::OpenMpi => "Open MPI's mpirun",
            Self::Pmi => "mpirun",
            Self::Node => "a cluster or by hand, once for each node",
        })
    }
}

/// The number of this process in its job, and the facts about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The launcher that started this process.
    pub launcher: Launcher,
    /// The number of this process among the processes of the job: its rank, the number of its node, or
    /// [`UNNUMBERED`].
    pub index: usize,
    /// The number of processes of the job.
    pub size: usize,
    /// The number of this process among the processes on its machine, and the number of these processes; `None` if
    /// the launcher does not set both.
    pub on_machine: Option<(usize, usize)>,
    /// The variables or flags from which the job was read, with their values.
    pub evidence: Vec<(&'static str, String)>,
    /// The rendezvous address that the command line names; `None` if environment variables name the address.
    pub endpoint: Option<Endpoint>,
}

/// The rendezvous of the processes of a job: its address, and the token by which the processes recognise each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRendezvous {
    /// The address of the rendezvous.
    pub endpoint: Endpoint,
    /// The token by which the processes of the job recognise each other.
    pub token: String,
}

impl Job {
    /// Returns the job of this process according to its environment, or `None` if the process was not started as one
    /// of several.
    ///
    /// # Errors
    /// Fails if the variables of a launcher contradict each other, or if a variable is missing or is not a number.
    pub fn of_this_process() -> Result<Option<Self>, UnclearRank> {
        variables::read(&JobVariables(&of_this_process))
    }

    /// Returns the job of a process that starts the launcher command `command`, read from the words of the command,
    /// or `None` if the words describe a single process.
    ///
    /// # Errors
    /// Fails if the words do not determine the number of processes or their rendezvous address.
    pub fn of_command(command: &[OsString]) -> Result<Option<Self>, UnclearRank> {
        launcher_command::read(command, &JobVariables(&of_this_process))
    }

    /// Returns the rendezvous address of this job's processes, from the words of the command or from the environment.
    ///
    /// # Errors
    /// Fails if neither the words nor the environment name the address.
    pub fn endpoint(&self) -> Result<Endpoint, UnclearRank> {
        match &self.endpoint {
            Some(endpoint) => Ok(endpoint.clone()),
            None => Endpoint::from_variables(self, &JobVariables(&of_this_process)),
        }
    }

    /// Returns the rendezvous of this job's processes at the address `endpoint`. If `token` is `None`, the token is
    /// made from facts that all processes of the job share.
    pub fn meeting(&self, endpoint: Endpoint, token: Option<String>) -> JobRendezvous {
        let own = || endpoint::token(&endpoint, &JobVariables(&of_this_process));
        let token = token.unwrap_or_else(own);
        JobRendezvous { endpoint, token }
    }

    /// True if the process is one rank, and false if it is a node that starts ranks.
    pub fn is_rank(&self) -> bool {
        self.launcher != Launcher::Node
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_rank() { "rank" } else { "node" };
        let Self { launcher, index, size, evidence, .. } = self;
        match *index {
            UNNUMBERED => write!(f, "one of {size} {kind}s")?,
            index => write!(f, "{kind} {index} of {size}")?,
        }
        write!(f, ", started by {launcher} (")?;
        for (position, (name, value)) in evidence.iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(f, "{comma}{name}={value}")?;
        }
        f.write_str(")")
    }
}

/// Returns an environment variable of this process.
fn of_this_process(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
