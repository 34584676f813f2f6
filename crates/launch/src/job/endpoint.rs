//! The rendezvous address of a job's processes, and the token by which the processes recognise each other.

use std::fmt;

use nix::unistd::geteuid;

use super::variables::JobVariables;
use super::{Job, Launcher, UnclearRank};

/// The range of the rendezvous port of a job without a given port. The range is below the ports that Linux assigns to
/// outgoing connections.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// The distance between the rendezvous port of the user's processes and the rendezvous port of zprobe's processes.
/// Further process groups of the user may take the next ports.
const PORT_DISTANCE: u16 = 71;

/// The rendezvous address of a job's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The process of rank 0 listens at this address.
    At {
        /// The host of rank 0.
        host: String,
        /// A free port on the host of rank 0.
        port: u16,
    },
    /// torchrun's agent holds a TCPStore at this address. In the store, the process of rank 0 publishes the address
    /// at which it listens.
    Store {
        /// The host of the store.
        host: String,
        /// The port of the store.
        port: u16,
        /// The key in the store for this job and for this attempt to run the job.
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
    /// Returns the endpoint for zprobe's own rendezvous, which the user's processes leave free: the same host with
    /// another port.
    #[must_use]
    pub fn beside(self) -> Self {
        match self {
            Self::At { host, port } => {
                let port = port.checked_add(PORT_DISTANCE).unwrap_or(port - PORT_DISTANCE);
                Self::At { host, port }
            }
            // In a TCPStore, zprobe uses its own key.
            store @ Self::Store { .. } => store,
        }
    }

    /// Parses an endpoint of the form `HOST:PORT`.
    ///
    /// # Errors
    /// Returns a description of the mistake if the text is not an endpoint.
    pub fn named(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{text}: {why}; give HOST:PORT, with the host of rank 0");
        let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("it has no port"))?;
        let host = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        match port.parse() {
            Ok(0) | Err(_) => Err(wrong("its port is not a number from 1 to 65535")),
            Ok(port) => Ok(Self::At { host: host.to_owned(), port }),
        }
    }

    /// Returns the endpoint that the environment variables name.
    pub(super) fn from_variables(
        job: &Job,
        variables: &JobVariables<'_>,
    ) -> Result<Self, UnclearRank> {
        let get = |name| variables.get(name);
        let by_torch = [["MASTER_ADDR", "MASTER_PORT"], ["PET_MASTER_ADDR", "PET_MASTER_PORT"]];
        for [address, port] in by_torch {
            let (Some(host), Some(number)) = (get(address), get(port)) else { continue };
            let port = number
                .trim()
                .parse()
                .map_err(|_| UnclearRank::NoNumber { name: port, value: number })?;
            if get("TORCHELASTIC_USE_AGENT_STORE").is_none_or(|it| it != "True") {
                return Ok(Self::At { host, port });
            }
            let words = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"]
                .map(|it| get(it).unwrap_or_default());
            return Ok(Self::Store { host, port, key: format!("zprobe/{}", words.join("/")) });
        }
        if let Some(endpoint) = get("PET_RDZV_ENDPOINT") {
            return Self::named(&endpoint)
                .map_err(|why| UnclearRank::Endpoint { name: "PET_RDZV_ENDPOINT", why });
        }
        let is_all_here = job.on_machine.is_some_and(|(_, here)| here == job.size);
        let nodes = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST"));
        let host = match nodes {
            _ if is_all_here => Some("127.0.0.1".to_owned()),
            nodes => nodes.as_deref().and_then(first_host),
        };
        match (host, identity(variables)) {
            (Some(host), Some(identity)) => Ok(Self::At { host, port: port_of(&identity) }),
            _ => Err(UnclearRank::NoEndpoint { launcher: job.launcher }),
        }
    }
}

/// Returns the token for a job without a given token, made of facts that only the processes of the job share. The
/// token keeps jobs apart, and is not a secret on the machines of the job.
pub(super) fn token(endpoint: &Endpoint, variables: &JobVariables<'_>) -> String {
    let identity = identity(variables).unwrap_or_default();
    let (Endpoint::At { port, .. } | Endpoint::Store { port, .. }) = endpoint;
    format!("{identity}/{}/{port}", geteuid())
}

/// Returns a text that all processes of a job share, and that differs between jobs.
fn identity(variables: &JobVariables<'_>) -> Option<String> {
    let of = |names: &[&str]| {
        let values: Option<Vec<String>> = names.iter().map(|name| variables.get(name)).collect();
        Some(values?.join("."))
    };
    // Open MPI's own names come first, because its daemons may be steps of Slurm, one for each node.
    of(&["PMIX_NAMESPACE"])
        .or_else(|| of(&["OMPI_MCA_ess_base_jobid"]))
        .or_else(|| of(&["SLURM_JOB_ID", "SLURM_STEP_ID"]))
        .or_else(|| of(&["TORCHELASTIC_RUN_ID"]))
}

/// Returns the port of a job, which is the same in all its processes.
fn port_of(identity: &str) -> u16 {
    // The hash is FNV-1a; any hash with an even distribution would do.
    let hash = identity.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    PORTS.start + (hash % u64::from(PORTS.end - PORTS.start)) as u16
}

/// Returns the first host of a list in Slurm's format: `node[03-05,9],other` begins with `node03`.
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
    /// Returns advice for a job whose rendezvous address is unknown.
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
