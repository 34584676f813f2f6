//! The variables of each launcher.

use super::{Job, Launcher};

/// Ids of Slurm's own steps (the batch script, interactive shells, …), which are not those of an srun
/// (`slurm.h`: `SLURM_BATCH_SCRIPT` is 0xfffffffb).
const FIRST_SPECIAL_STEP: u64 = 0xffff_fff0;

/// Variables from which the place of a process cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unclear {
    /// The number of a process is not below the number of processes.
    #[error(
        "{index}={place} with {size}={of}: the first counts from 0 and must be smaller; start the process \
         with its launcher, or remove both variables"
    )]
    Beyond {
        /// Variable with the number of the process.
        index: &'static str,
        /// Its value.
        place: usize,
        /// Variable with the number of processes.
        size: &'static str,
        /// Its value.
        of: usize,
    },
    /// A variable is missing beside one of the same launcher.
    #[error(
        "{present} is set and {missing} is not: a launcher sets both; set {missing}, or remove {present}"
    )]
    Missing {
        /// Variable that is set.
        present: &'static str,
        /// Variable that is not.
        missing: &'static str,
    },
    /// Nothing says where the processes of a job meet.
    #[error("nothing says where the processes of this job meet: {}", .launcher.advice_on_endpoint())]
    NoEndpoint {
        /// Launcher of the job.
        launcher: Launcher,
    },
    /// A variable names no endpoint.
    #[error("{name}={why}")]
    Endpoint {
        /// The variable.
        name: &'static str,
        /// Its value, and what is wrong with it.
        why: String,
    },
    /// The words of a launcher's command do not tell how many processes there are, or where they meet.
    #[error(
        "`{words}` in the command leaves open {what}: give zprobe --nnodes N, --node-rank I and --rdzv-endpoint HOST:PORT, before `--`"
    )]
    Words {
        /// The words.
        words: String,
        /// Fact that the words leave open.
        what: &'static str,
    },
    /// A launcher that starts processes on other machines stands behind zprobe.
    #[error(
        "{by} starts the other machines, where zprobe is not: put zprobe behind it, as in `{by} … zprobe exec -- \
         torchrun …`"
    )]
    Behind {
        /// Name of that launcher.
        by: String,
    },
    /// A variable is no number.
    #[error("{name}={value}: not a number; its launcher sets it to one")]
    NoNumber {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
}

/// Names of the variables of a launcher.
struct Names {
    launcher: Launcher,
    /// Variable with the number of this process, and the one with the number of all.
    job: [&'static str; 2],
    /// The same for the processes on this machine.
    machine: Option<[&'static str; 2]>,
}

const TORCHRUN: Names = Names {
    launcher: Launcher::Torchrun,
    job: ["RANK", "WORLD_SIZE"],
    machine: Some(["LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
};

const NODE: Names = Names { launcher: Launcher::Node, job: ["RANK", "WORLD_SIZE"], machine: None };

/// torchrun's flags as variables, with which operators start a process for each node.
const NODE_OF_TORCHRUN: Names =
    Names { launcher: Launcher::Node, job: ["PET_NODE_RANK", "PET_NNODES"], machine: None };

const SRUN: Names =
    Names { launcher: Launcher::Srun, job: ["SLURM_PROCID", "SLURM_NTASKS"], machine: None };

const OPEN_MPI: Names = Names {
    launcher: Launcher::OpenMpi,
    job: ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
    machine: Some(["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"]),
};

const PMI: Names = Names {
    launcher: Launcher::Pmi,
    job: ["PMI_RANK", "PMI_SIZE"],
    machine: Some(["MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
};

/// Environment variables, without those that are empty.
pub(super) struct Variables<'a>(pub(super) &'a dyn Fn(&str) -> Option<String>);

/// Reads the place of a process.
pub(super) fn read(variables: &Variables<'_>) -> Result<Option<Job>, Unclear> {
    if variables.are_set(&["LOCAL_RANK"]) || variables.are_set(&["TORCHELASTIC_RUN_ID"]) {
        return variables.place(&TORCHRUN);
    }
    for node in [NODE, NODE_OF_TORCHRUN] {
        if variables.are_set(&node.job) {
            return Ok(variables.place(&node)?.filter(|job| job.size > 1));
        }
    }
    let among_several = |job: &Job| job.size > 1;
    // srun sets no variables of Open MPI. PMI's are srun's own (`--mpi=pmi2`) where they agree with
    // Slurm's; where they differ, an mpirun used srun to start its daemons.
    let mpi =
        variables.place_if_set(&OPEN_MPI)?.or(variables.place_if_set(&PMI)?).filter(among_several);
    let srun = match variables.is_step_of_srun()? {
        true => variables
            .place_if_set(&SRUN)?
            .filter(among_several)
            .map(|job| Job { on_machine: variables.place_on_node_of_slurm(), ..job }),
        false => None,
    };
    Ok(match (srun, mpi) {
        (Some(srun), Some(mpi)) if (srun.index, srun.size) == (mpi.index, mpi.size) => Some(srun),
        (srun, mpi) => mpi.or(srun),
    })
}

impl Variables<'_> {
    /// The value of a variable, if it is not empty.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn are_set(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.get(name).is_some())
    }

    fn number(&self, name: &'static str) -> Result<Option<usize>, Unclear> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.trim().parse().map(Some).map_err(|_| Unclear::NoNumber { name, value })
    }

    /// True in a step that srun started, and not in a job's batch script.
    fn is_step_of_srun(&self) -> Result<bool, Unclear> {
        let step = self.number("SLURM_STEP_ID")?;
        Ok(step.is_some_and(|step| (step as u64) < FIRST_SPECIAL_STEP))
    }

    /// Number of this task of Slurm among those on its node, and their number, which Slurm writes as a list
    /// of all nodes: `2(x3),1` is two tasks on each of the first three nodes and one on the last.
    fn place_on_node_of_slurm(&self) -> Option<(usize, usize)> {
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

    /// The place that a launcher's variables tell, if the first of them is set.
    fn place_if_set(&self, names: &Names) -> Result<Option<Job>, Unclear> {
        if self.are_set(&names.job[..1]) { self.place(names) } else { Ok(None) }
    }

    /// The place that a launcher's variables tell, which must be there.
    fn place(&self, names: &Names) -> Result<Option<Job>, Unclear> {
        let (index, size) = match self.pair(names.job)? {
            [Some(index), Some(size)] => (index, size),
            [index, _] => {
                let [first, second] = names.job;
                let is_set = |name| self.get(name).is_some();
                let mut missing = [first, second];
                if index.is_some() {
                    missing.reverse();
                }
                let beside = [first, second, "LOCAL_RANK", "TORCHELASTIC_RUN_ID"];
                let present = beside.into_iter().find(|name| is_set(name)).unwrap_or(second);
                return Err(Unclear::Missing { present, missing: missing[0] });
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

    /// The number of a process and the number of all; the first is below the second.
    fn pair(&self, [index, size]: [&'static str; 2]) -> Result<[Option<usize>; 2], Unclear> {
        let pair = [self.number(index)?, self.number(size)?];
        match pair {
            [Some(place), Some(of)] if place >= of => {
                Err(Unclear::Beyond { index, place, size, of })
            }
            pair => Ok(pair),
        }
    }
}
