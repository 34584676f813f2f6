//! The address at which the processes of a job meet, and the token by which they know each other.

use std::fmt;

use nix::unistd::geteuid;

use super::variables::Variables;
use super::{Job, Launcher, Unclear};

/// Ports from which that of a job without one is chosen; below those that Linux gives to connections.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// Distance between the port at which the user's processes meet and that of zprobe's: the next ones may be taken by
/// further process groups.
const BESIDE: u16 = 71;

/// The address at which the processes of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The process of rank 0 listens here.
    At {
        /// Host of rank 0.
        host: String,
        /// Port, which is free there.
        port: u16,
    },
    /// torchrun's agent holds a TCPStore here, in which the process of rank 0 says where it listens.
    Store {
        /// Host of the store.
        host: String,
        /// Port of the store.
        port: u16,
        /// Key for this job and this attempt at it.
        key: String,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { host, port } => write!(f, "{host}:{port}"),
            Self::Store { host, port, .. } => write!(f, "the store at {host}:{port}"),
        }
    }
}

impl Endpoint {
    /// The endpoint beside this one, which the user's own processes leave free: the same host, and another port.
    #[must_use]
    pub fn beside(self) -> Self {
        match self {
            Self::At { host, port } => {
                let port = port.checked_add(BESIDE).unwrap_or(port - BESIDE);
                Self::At { host, port }
            }
            // zprobe uses a key of its own there.
            store @ Self::Store { .. } => store,
        }
    }

    /// The endpoint that `HOST:PORT` names.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn named(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{text}: {why}; give HOST:PORT, with the host of rank 0");
        let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("it has no port"))?;
        let host = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        match port.parse() {
            Ok(0) | Err(_) => Err(wrong("its port is no number from 1 to 65535")),
            Ok(port) => Ok(Self::At { host: host.to_owned(), port }),
        }
    }

    /// The endpoint that environment variables tell of.
    pub(super) fn told(job: &Job, variables: &Variables<'_>) -> Result<Self, Unclear> {
        let get = |name| variables.get(name);
        let by_torch = [["MASTER_ADDR", "MASTER_PORT"], ["PET_MASTER_ADDR", "PET_MASTER_PORT"]];
        for [address, port] in by_torch {
            let (Some(host), Some(number)) = (get(address), get(port)) else { continue };
            let port = number
                .trim()
                .parse()
                .map_err(|_| Unclear::NoNumber { name: port, value: number })?;
            if get("TORCHELASTIC_USE_AGENT_STORE").is_none_or(|it| it != "True") {
                return Ok(Self::At { host, port });
            }
            let words = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"]
                .map(|it| get(it).unwrap_or_default());
            return Ok(Self::Store { host, port, key: format!("zprobe/{}", words.join("/")) });
        }
        if let Some(endpoint) = get("PET_RDZV_ENDPOINT") {
            return Self::named(&endpoint)
                .map_err(|why| Unclear::Endpoint { name: "PET_RDZV_ENDPOINT", why });
        }
        let is_all_here = job.on_machine.is_some_and(|(_, here)| here == job.size);
        let nodes = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST"));
        let host = match nodes {
            _ if is_all_here => Some("127.0.0.1".to_owned()),
            nodes => nodes.as_deref().and_then(first_host),
        };
        match (host, identity(variables)) {
            (Some(host), Some(identity)) => Ok(Self::At { host, port: port_of(&identity) }),
            _ => Err(Unclear::NoEndpoint { launcher: job.launcher }),
        }
    }
}

/// A token for a job that was given none: what its processes alone have in common. It keeps jobs
/// apart, and is no secret on the machines of the job.
pub(super) fn token(endpoint: &Endpoint, variables: &Variables<'_>) -> String {
    let identity = identity(variables).unwrap_or_default();
    let (Endpoint::At { port, .. } | Endpoint::Store { port, .. }) = endpoint;
    format!("{identity}/{}/{port}", geteuid())
}

/// Text that the processes of a job, and no others, have in common.
fn identity(variables: &Variables<'_>) -> Option<String> {
    let of = |names: &[&str]| {
        let values: Option<Vec<String>> = names.iter().map(|name| variables.get(name)).collect();
        Some(values?.join("."))
    };
    // Open MPI's own names come first: its daemons may be steps of Slurm, one for each node.
    of(&["PMIX_NAMESPACE"])
        .or_else(|| of(&["OMPI_MCA_ess_base_jobid"]))
        .or_else(|| of(&["SLURM_JOB_ID", "SLURM_STEP_ID"]))
        .or_else(|| of(&["TORCHELASTIC_RUN_ID"]))
}

/// The port of a job, the same in all its processes.
fn port_of(identity: &str) -> u16 {
    // FNV-1a: any even spread does.
    let hash = identity.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    PORTS.start + (hash % u64::from(PORTS.end - PORTS.start)) as u16
}

/// The first host of a list as Slurm writes it: `node[03-05,9],other` begins with `node03`.
fn first_host(list: &str) -> Option<String> {
    let Some(open) = list.find(['[', ',']).filter(|&at| list.as_bytes()[at] == b'[') else {
        return list.split(',').next().filter(|host| !host.is_empty()).map(str::to_owned);
    };
    let (range, rest) = list[open + 1..].split_once(']')?;
    let number = range.split(['-', ',']).next()?;
    let end = rest.find(',').unwrap_or(rest.len());
    Some(format!("{}{number}{}", &list[..open], &rest[..end]))
}

impl Launcher {
    /// Advice for a job of which nothing says where its processes meet.
    pub(super) fn advice_on_endpoint(self) -> &'static str {
        match self {
            Self::OpenMpi => {
                "export MASTER_ADDR, the host of rank 0, and MASTER_PORT, a free port there, with `mpirun -x \
                 MASTER_ADDR -x MASTER_PORT`, or give --rdzv-endpoint HOST:PORT"
            }
            _ => {
                "set MASTER_ADDR, the host of rank 0, and MASTER_PORT, a free port there, or give \
                 --rdzv-endpoint HOST:PORT"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_slurms_lists() {
        for (list, first) in [
            ("alone", "alone"),
            ("a,b", "a"),
            ("node[03-05,9],other", "node03"),
            ("node7,node[8-9]", "node7"),
            ("r[1-2]c,x", "r1c"),
            ("n[12]", "n12"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!(first_host(""), None);
    }

    #[test]
    fn zprobe_leaves_the_port_of_the_users_processes_alone() {
        let at = |port| Endpoint::At { host: "a".to_owned(), port };
        assert_eq!(at(29500).beside(), at(29571));
        assert_eq!(at(65500).beside(), at(65429));
    }

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        let at = |host: &str, port| Ok(Endpoint::At { host: host.to_owned(), port });
        assert_eq!(Endpoint::named("node1:29500"), at("node1", 29500));
        assert_eq!(Endpoint::named("[::1]:5"), at("::1", 5));
        for wrong in ["node1", ":5", "node1:0", "node1:x", "node1:70000"] {
            assert!(Endpoint::named(wrong).is_err(), "{wrong}");
        }
    }
}
