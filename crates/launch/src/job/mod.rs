//! The job that this process belongs to: whether a launcher started it as one of several, and as
//! which one.
//!
//! A launcher tells each process its place in environment variables. Their names differ, and they
//! stay set in everything that a process starts, so that launchers nest: torchrun under srun leaves
//! both sets. The innermost launcher counts.
//!
//! A command that starts the ranks of one machine says in its words which machine that is (`words.rs`).

mod endpoint;
mod variables;
mod words;

use std::ffi::OsString;
use std::fmt;

pub use endpoint::Endpoint;
pub use variables::Unclear;
use variables::Variables;

/// Number of a process that gets its number when it meets the others.
pub const UNNUMBERED: usize = usize::MAX;

/// Launcher that started this process as one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// torchrun, or a launcher that sets its variables for each rank: accelerate's, DeepSpeed's.
    Torchrun,
    /// Slurm's srun.
    Srun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// mpirun of MPICH or of Intel MPI, or another launcher that speaks PMI.
    Pmi,
    /// A cluster's operator that starts one process for each node, such as Kubeflow's for PyTorchJob, or
    /// a user who does.
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

/// Place of this process in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Launcher that started this process.
    pub launcher: Launcher,
    /// Number of this process among those of the job: its rank, or that of its node; or [`UNNUMBERED`].
    pub index: usize,
    /// Number of processes of the job.
    pub size: usize,
    /// Number of this process among those on its machine, and their number, if the launcher says so.
    pub on_machine: Option<(usize, usize)>,
    /// Variables or flags that say so, with their values.
    pub evidence: Vec<(&'static str, String)>,
    /// Address that the words of a command name; none where environment variables tell of it.
    pub endpoint: Option<Endpoint>,
}

/// The address at which the processes of a job meet, and the token by which they know each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The address.
    pub endpoint: Endpoint,
    /// The token.
    pub token: String,
}

impl Job {
    /// The job of this process, as its environment tells it; none if it was started by itself.
    ///
    /// # Errors
    /// When variables of one launcher contradict each other, or one is missing or is no number.
    pub fn of_this_process() -> Result<Option<Self>, Unclear> {
        variables::read(&Variables(&of_this_process))
    }

    /// The job of a process that starts this command of a launcher, read from the command's words. None if the words
    /// tell of a single process.
    ///
    /// # Errors
    /// When the words leave open how many processes there are, or where they meet.
    pub fn of_command(command: &[OsString]) -> Result<Option<Self>, Unclear> {
        words::read(command, &Variables(&of_this_process))
    }

    /// The address at which the processes of this job meet, as the words or the environment tell it.
    ///
    /// # Errors
    /// When nothing says where the processes meet.
    pub fn endpoint(&self) -> Result<Endpoint, Unclear> {
        match &self.endpoint {
            Some(endpoint) => Ok(endpoint.clone()),
            None => Endpoint::told(self, &Variables(&of_this_process)),
        }
    }

    /// The meeting of the processes of this job at an address, with `token` if there is one.
    pub fn meeting(&self, endpoint: Endpoint, token: Option<String>) -> Meeting {
        let own = || endpoint::token(&endpoint, &Variables(&of_this_process));
        let token = token.unwrap_or_else(own);
        Meeting { endpoint, token }
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
        for (place, (name, value)) in evidence.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{name}={value}")?;
        }
        f.write_str(")")
    }
}

/// An environment variable of this process.
fn of_this_process(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
