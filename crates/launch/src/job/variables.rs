//! The environment variables of each launcher.

use super::{Job, Launcher};

/// The first id of Slurm's special steps (the batch script, interactive shells, …), which srun did not start
/// (`slurm.h`: `SLURM_BATCH_SCRIPT` is 0xfffffffb).
const FIRST_SPECIAL_STEP: u64 = 0xffff_fff0;

/// The reasons why the number of a process in its job cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnclearRank {
    /// The number of a process is not below the number of processes.
    #[error(
        "{index}={place} with {size}={of}: {index} counts from 0 and must be below {size}; start the process \
         with its launcher, or remove both variables"
    )]
    Beyond {
        /// The variable with the number of the process.
        index: &'static str,
        /// The number of the process, as the variable says.
        place: usize,
        /// The variable with the number of processes.
        size: &'static str,
        /// The number of processes, as the variable says.
        of: usize,
    },
    /// A variable is missing although another variable of the same launcher is set.
    #[error(
        "{present} is set and {missing} is not: a launcher sets both; set {missing}, or remove {present}"
    )]
    Missing {
        /// The variable that is set.
        present: &'static str,
        /// The variable that is not set.
        missing: &'static str,
    },
    /// The rendezvous address of the job's processes is unknown.
    #[error("the rendezvous address of this job is unknown: {}", .launcher.advice_on_endpoint())]
    NoEndpoint {
        /// The launcher of the job.
        launcher: Launcher,
    },
    /// The value of a variable or flag is not an endpoint.
    #[error("{name}={why}")]
    Endpoint {
        /// The name of the variable or flag.
        name: &'static str,
        /// The value, and the mistake in it.
        why: String,
    },
    /// The words of a launcher's command do not determine the number of processes, or their rendezvous address.
    #[error(
        "`{words}` in the command does not determine {what}: give zprobe --nnodes N, --node-rank I and --rdzv-endpoint HOST:PORT, before `--`"
    )]
    Words {
        /// The words in question.
        words: String,
        /// The fact that the words do not determine.
        what: &'static str,
    },
    /// The command starts a launcher for other machines, which must come before zprobe and not after it.
    #[error(
        "{by} starts processes on other machines, without zprobe: put zprobe after {by}, as in `{by} … zprobe exec -- \
         torchrun …`"
    )]
    Behind {
        /// The name of the launcher that starts processes on other machines.
        by: String,
    },
    /// The value of a variable is not a number.
    #[error("{name}={value} is not a number; set {name} to one")]
    NoNumber {
        /// The name of the variable.
        name: &'static str,
        /// The value of the variable.
        value: String,
    },
}

/// The names of a launcher's variables.
struct VariableNames {
    launcher: Launcher,
    /// The variable with the number of this process in the job, and the variable with the number of all processes.
    job: [&'static str; 2],
    /// The variable with the number of this process on its machine, and the variable with the number of all processes
    /// on this machine; `None` if the launcher sets neither.
    machine: Option<[&'static str; 2]>,
}

const TORCHRUN: VariableNames = VariableNames {
    launcher: Launcher::Torchrun,
    job: ["RANK", "WORLD_SIZE"],
    machine: Some(["LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
};

const NODE: VariableNames =
    VariableNames { launcher: Launcher::Node, job: ["RANK", "WORLD_SIZE"], machine: None };

/// The variables that replace flags of torchrun. Cluster operators set these variables to start one process for each
/// node.
const NODE_OF_TORCHRUN: VariableNames =
    VariableNames { launcher: Launcher::Node, job: ["PET_NODE_RANK", "PET_NNODES"], machine: None };

const SRUN: VariableNames = VariableNames {
    launcher: Launcher::Srun,
    job: ["SLURM_PROCID", "SLURM_NTASKS"],
    machine: None,
};

const OPEN_MPI: VariableNames = VariableNames {
    launcher: Launcher::OpenMpi,
    job: ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
    machine: Some(["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"]),
};

const PMI: VariableNames = VariableNames {
    launcher: Launcher::Pmi,
    job: ["PMI_RANK", "PMI_SIZE"],
    machine: Some(["MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
};

/// The environment variables of a process. Empty variables count as unset.
pub(super) struct JobVariables<'a>(pub(super) &'a dyn Fn(&str) -> Option<String>);

/// Reads the number of a process in its job from the environment variables.
pub(super) fn read(variables: &JobVariables<'_>) -> Result<Option<Job>, UnclearRank> {
    if variables.are_set(&["LOCAL_RANK"]) || variables.are_set(&["TORCHELASTIC_RUN_ID"]) {
        return variables.read_job(&TORCHRUN);
    }
    for node in [NODE, NODE_OF_TORCHRUN] {
        if variables.are_set(&node.job) {
            return Ok(variables.read_job(&node)?.filter(|job| job.size > 1));
        }
    }
    let among_several = |job: &Job| job.size > 1;
    // srun sets no variables of Open MPI. The variables of PMI are srun's own (`--mpi=pmi2`) if they agree with
    // Slurm's; if they differ, an mpirun used srun to start its daemons.
    let mpi = variables
        .read_job_if_set(&OPEN_MPI)?
        .or(variables.read_job_if_set(&PMI)?)
        .filter(among_several);
    let srun = match variables.is_step_of_srun()? {
        true => variables
            .read_job_if_set(&SRUN)?
            .filter(among_several)
            .map(|job| Job { on_machine: variables.task_on_node_of_slurm(), ..job }),
        false => None,
    };
    Ok(match (srun, mpi) {
        (Some(srun), Some(mpi)) if (srun.index, srun.size) == (mpi.index, mpi.size) => Some(srun),
        (srun, mpi) => mpi.or(srun),
    })
}

impl JobVariables<'_> {
    /// Returns the value of a variable, or `None` if the variable is unset or empty.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn are_set(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.get(name).is_some())
    }

    fn number(&self, name: &'static str) -> Result<Option<usize>, UnclearRank> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.trim().parse().map(Some).map_err(|_| UnclearRank::NoNumber { name, value })
    }

    /// True in a step that srun started, and false in the batch script of a job.
    fn is_step_of_srun(&self) -> Result<bool, UnclearRank> {
        let step = self.number("SLURM_STEP_ID")?;
        Ok(step.is_some_and(|step| (step as u64) < FIRST_SPECIAL_STEP))
    }

    /// Returns the number of this Slurm task among the tasks on its node, and the number of these tasks. Slurm writes
    /// the task counts as a list over all nodes: `2(x3),1` means two tasks on each of the first three nodes and one
    /// task on the last.
    fn task_on_node_of_slurm(&self) -> Option<(usize, usize)> {
        let [local, mut node] = ["SLURM_LOCALID", "SLURM_NODEID"].map(|name| self.number(name));
        let list = self.get("SLURM_STEP_TASKS_PER_NODE")?;
        for tasks in list.split(',') {
            let (count, nodes) = match tasks.split_once("(x") {
                Some((count, nodes)) => (count, nodes.strip_suffix(')')?.parse().ok()?),
                None => (tasks, 1),
            };
            match node.as_mut().ok()?.as_mut()? {
                node if *node < nodes => {
                    let (local, count) = (local.ok()??, count.parse().ok()?);
                    return (local < count).then_some((local, count));
                }
                node => *node -= nodes,
            }
        }
        None
    }

    /// Returns the job that a launcher's variables describe, or `None` if the first of the variables is not set.
    fn read_job_if_set(&self, names: &VariableNames) -> Result<Option<Job>, UnclearRank> {
        if self.are_set(&names.job[..1]) { self.read_job(names) } else { Ok(None) }
    }

    /// Returns the job that a launcher's variables describe. The variables must be set.
    fn read_job(&self, names: &VariableNames) -> Result<Option<Job>, UnclearRank> {
        let (index, size) = match self.pair(names.job)? {
            [Some(index), Some(size)] => (index, size),
            [index, _] => {
                let [first, second] = names.job;
                let is_set = |name| self.get(name).is_some();
                let mut missing = [first, second];
                if index.is_some() {
                    missing.reverse();
                }
                let candidates = [first, second, "LOCAL_RANK", "TORCHELASTIC_RUN_ID"];
                let present = candidates.into_iter().find(|name| is_set(name)).unwrap_or(second);
                return Err(UnclearRank::Missing { present, missing: missing[0] });
            }
        };
        let on_machine = match names.machine.map(|names| self.pair(names)).transpose()? {
            Some([Some(index), Some(size)]) => Some((index, size)),
            _ => None,
        };
        let all = names.job.into_iter().chain(names.machine.into_iter().flatten());
        let evidence = all.filter_map(|name| Some((name, self.get(name)?))).collect();
        let launcher = names.launcher;
        Ok(Some(Job { launcher, index, size, on_machine, evidence, endpoint: None }))
    }

    /// Returns the number of a process and the number of processes. The first must be below the second.
    fn pair(&self, [index, size]: [&'static str; 2]) -> Result<[Option<usize>; 2], UnclearRank> {
        let pair = [self.number(index)?, self.number(size)?];
        match pair {
            [Some(place), Some(of)] if place >= of => {
                Err(UnclearRank::Beyond { index, place, size, of })
            }
            pair => Ok(pair),
        }
    }
}
