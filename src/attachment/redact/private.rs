//! What is private on this machine.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use nix::unistd::{User, gethostname, getuid};

use super::Kind;

/// Parts of the name of a variable that holds a secret.
const SECRET_NAMES: &[&str] = &[
    "KEY",
    "KEYS",
    "TOKEN",
    "TOKENS",
    "SECRET",
    "SECRETS",
    "PASSWORD",
    "PASSWORDS",
    "PASSWD",
    "PASS",
    "CREDENTIAL",
    "CREDENTIALS",
    "AUTH",
    "PAT",
];

/// Users that many machines have: their names say nothing, and are words of other texts.
const COMMON_USERS: &[&str] = &[
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

/// Hosts that are no machine in particular.
const COMMON_HOSTS: &[&str] = &["localhost", "localhost.localdomain"];

/// Values that many variables have.
const COMMON_VALUES: &[&str] = &["true", "false", "yes", "none", "null", "default", "auto"];

/// Fewest characters of a secret and of a name.
const LEAST_SECRET: usize = 4;
const LEAST_NAME: usize = 2;

/// The schemas, whose words are not private.
const SCHEMAS: [&str; 2] = [
    include_str!("../../../schema/report.v1.schema.json"),
    include_str!("../../../schema/record.v1.schema.json"),
];

/// What is private on a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Private {
    /// Environment variables, of which those count whose names sound like a secret.
    pub variables: Vec<(String, String)>,
    /// Home directories.
    pub homes: Vec<PathBuf>,
    /// The working directory.
    pub working_directory: Option<PathBuf>,
    /// Other directories that are not to be known.
    pub directories: Vec<PathBuf>,
    /// Names of users.
    pub users: Vec<String>,
    /// Names of hosts.
    pub hosts: Vec<String>,
}

impl Private {
    /// What is private here; `directories` are not to be known, either.
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
        let hosts = ["HOSTNAME", "HOST", "SLURMD_NODENAME"].into_iter().filter_map(value);
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

    /// Secrets: values of variables, and each line of those that have several.
    pub(super) fn secrets(&self) -> Vec<(String, Kind)> {
        let common = vocabulary();
        let mut secrets = Vec::new();
        for (_, value) in self.variables.iter().filter(|(name, _)| is_secret(name)) {
            let lines = value.lines().filter(|line| line.len() >= 16);
            for text in [value.as_str()].into_iter().chain(lines).map(str::trim) {
                let number = text.len() < 6 && text.bytes().all(|byte| byte.is_ascii_digit());
                let word = text.to_lowercase();
                let said_often = common.contains(&word) || COMMON_VALUES.contains(&word.as_str());
                if text.len() >= LEAST_SECRET && !number && !said_often {
                    secrets.push((text.to_owned(), Kind::Secret));
                }
            }
        }
        secrets
    }

    /// Directories.
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

    /// Users and hosts, and hosts without their domain.
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

/// Whether a variable of this name holds a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_uppercase();
    name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| {
        let glued = |end: &&str| end.len() >= 5 && part.ends_with(*end);
        SECRET_NAMES.contains(&part) || part.ends_with("APIKEY") || SECRET_NAMES.iter().any(glued)
    })
}

/// A path without a slash at its end.
fn trimmed(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.trim_end_matches('/').to_owned()
}

/// Words of the schemas, in lowercase.
fn vocabulary() -> HashSet<String> {
    let words = SCHEMAS.iter().flat_map(|text| text.split(|c: char| !c.is_alphanumeric()));
    words.map(str::to_lowercase).collect()
}
