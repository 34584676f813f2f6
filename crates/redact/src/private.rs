//! The private facts about this machine: its environment variables, directories, users and hosts.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use nix::unistd::{User, gethostname, getuid};

use super::Kind;

/// The users that many machines have: their names are not private, and are words of other texts.
pub(super) const COMMON_USERS: &[&str] = &[
    "root",
    "user",
    "admin",
    "ubuntu",
    "debian",
    "ec2-user",
    "runner",
    "nobody",
    "app",
    "docker",
    "jovyan",
    "azureuser",
    "opc",
    "centos",
    "fedora",
    "worker",
    "service",
    "test",
    "dev",
];

/// The host names that do not identify a machine.
const COMMON_HOSTS: &[&str] = &["localhost", "localhost.localdomain"];

/// The environment variables that name this machine or other machines of the same run.
const HOSTS: &[&str] = &[
    "HOSTNAME",
    "HOST",
    "COMPUTERNAME",
    "LSB_HOSTS",
    "MASTER_ADDR",
    "PBS_O_HOST",
    "PET_MASTER_ADDR",
    "PET_RDZV_ENDPOINT",
    "RDZV_ENDPOINT",
    "SLURMD_NODENAME",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "SLURM_STEP_NODELIST",
    "SLURM_SUBMIT_HOST",
];

/// The smallest number of bytes of a name that is removed.
const LEAST_NAME: usize = 2;

/// The JSON schemas of the report and of the trace's records, whose words are not private.
const SCHEMAS: [&str; 2] = [
    include_str!("../../../schema/report.v1.schema.json"),
    include_str!("../../../schema/record.v1.schema.json"),
];

/// The private facts about a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Private {
    /// The environment variables, some of which contain secrets.
    pub variables: Vec<(String, String)>,
    /// The home directories.
    pub homes: Vec<PathBuf>,
    /// The working directory; `None` if it cannot be determined.
    pub working_directory: Option<PathBuf>,
    /// The other private directories.
    pub directories: Vec<PathBuf>,
    /// The names of users.
    pub users: Vec<String>,
    /// The names of hosts.
    pub hosts: Vec<String>,
}

impl Private {
    /// Collects the private facts about this machine; `directories` are further private directories.
    pub fn here(directories: Vec<PathBuf>) -> Self {
        let variables: Vec<(String, String)> = std::env::vars_os()
            .map(|(name, value)| {
                (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
            })
            .collect();
        let value = |wanted: &str| {
            let found = variables.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.clone())
        };
        let account = User::from_uid(getuid()).ok().flatten();
        let homes = value("HOME").map(PathBuf::from).into_iter();
        let users = ["USER", "LOGNAME", "USERNAME", "SUDO_USER"].into_iter().filter_map(value);
        let hosts = HOSTS.iter().filter_map(|name| value(name)).flat_map(|value| nodes(&value));
        let host = gethostname().ok().map(|name| name.to_string_lossy().into_owned());
        Self {
            homes: homes.chain(account.iter().map(|account| account.dir.clone())).collect(),
            working_directory: std::env::current_dir().ok(),
            directories,
            users: users.chain(account.map(|account| account.name)).collect(),
            hosts: hosts.chain(host).collect(),
            variables,
        }
    }

    /// The private directories, with their kinds.
    pub(super) fn places(&self) -> Vec<(String, Kind)> {
        let homes = self.homes.iter().map(|path| (path, Kind::Home));
        let here = self.working_directory.iter().map(|path| (path, Kind::WorkingDirectory));
        let others = self.directories.iter().map(|path| (path, Kind::Path));
        homes
            .chain(here)
            .chain(others)
            .flat_map(|(path, kind)| {
                let real = path.canonicalize().ok();
                [Some(path.clone()), real].into_iter().flatten().map(move |path| (path, kind))
            })
            .filter(|(path, _)| path.is_absolute() && path.parent().is_some())
            .map(|(path, kind)| (trimmed(&path), kind))
            .collect()
    }

    /// The private names of users and of hosts, with and without their domain, and their kinds.
    pub(super) fn names(&self) -> Vec<(String, Kind)> {
        let common = vocabulary();
        let is_private = |name: &str, known: &[&str]| {
            let name = name.to_lowercase();
            name.len() >= LEAST_NAME && !common.contains(&name) && !known.contains(&name.as_str())
        };
        let users = self.users.iter().filter(|name| is_private(name, COMMON_USERS));
        let short = |host: &String| host.split('.').next().unwrap_or_default().to_owned();
        let hosts = self.hosts.iter().flat_map(|host| [host.clone(), short(host)]);
        let hosts = hosts.filter(|name| is_private(name, COMMON_HOSTS));
        users
            .map(|name| (name.clone(), Kind::User))
            .chain(hosts.map(|name| (name, Kind::Host)))
            .collect()
    }
}

/// The host names in the value of a variable: `a:29500`, `node[1-4],login` or `a b`. For a range such as `node[1-4]`,
/// the common beginning is taken.
fn nodes(list: &str) -> Vec<String> {
    let mut nodes = Vec::new();
    let mut inside = false;
    for part in list.split(|c: char| {
        inside = (inside || c == '[') && c != ']';
        matches!(c, ' ' | '[' | ']') || (c == ',' && !inside)
    }) {
        let name = part.split(':').next().unwrap_or_default().trim_end_matches(['-', '.']);
        if name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            nodes.push(name.to_owned());
        }
    }
    nodes
}

/// A path without trailing slashes.
fn trimmed(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.trim_end_matches('/').to_owned()
}

/// The words of the schemas in lowercase, and their names of several words.
pub(super) fn vocabulary() -> &'static HashSet<String> {
    static WORDS: LazyLock<HashSet<String>> = LazyLock::new(|| {
        let words = SCHEMAS.iter().flat_map(|text| text.split(|c: char| !c.is_alphanumeric()));
        let names = SCHEMAS.iter().flat_map(|text| text.split(['"', '`', ' ']));
        words.chain(names).map(str::to_lowercase).collect()
    });
    &WORDS
}
