//! The private facts about this machine: its environment variables, directories, users and hosts.

use std::collections::HashSet;
use std::env;
use std::path::PathBuf;
use std::sync::LazyLock;

use nix::unistd::{User, gethostname, getuid};

use super::names::has;
use super::{Kind, Known};

/// The names of users and hosts that many machines have. These names are not private, and are words of other texts.
pub(super) const COMMON_NAMES: &str = "root user admin ubuntu debian ec2-user runner nobody app docker jovyan azureuser \
                                       opc centos fedora worker service test dev localhost localhost.localdomain";

/// The environment variables that name this machine or other machines of the same run.
const HOSTS: &str = "HOSTNAME HOST COMPUTERNAME LSB_HOSTS MASTER_ADDR PBS_O_HOST PET_MASTER_ADDR PET_RDZV_ENDPOINT \
                     RDZV_ENDPOINT SLURMD_NODENAME SLURM_JOB_NODELIST SLURM_NODELIST SLURM_STEP_NODELIST \
                     SLURM_SUBMIT_HOST";

/// The beginnings of the names of environment variables whose values are harmless, or are paths and names that
/// [`Private`] has in its other fields.
const HARMLESS: &str = "_ ACCELERATE_ CARGO CI COLORTERM COLUMNS CONDA_ CUDA_ CUDNN_ DEBIAN_FRONTEND DEEPSPEED_ DISPLAY \
                        DS_ EDITOR FI_ FORCE_COLOR GITHUB_ GLOO_ GPG_TTY GROUP_RANK HOME HOST KMP_ LANG LANGUAGE LC_ \
                        LD_LIBRARY_PATH LESS LIBRARY_PATH LINES LOCAL_ LOGNAME LS_COLORS MAIL MANPATH MASTER_ MKL_ NCCL_ \
                        NO_COLOR NVIDIA_ OLDPWD OMP_ PAGER PATH PET_ PWD PYTHON PYTORCH_ RANK RDZV_ ROLE_ RUNNER_ \
                        RUST SHELL SHLVL SLURM TERM TMPDIR TMUX TORCH TP_SOCKET_ TRITON_ TZ UCX_ USER VIRTUAL_ENV \
                        VISUAL WINDOWID WORLD_SIZE XDG_ ZPROBE_";

/// The smallest number of bytes of a name that is removed (`LEAST_NAME`), and the smallest number of characters of a
/// value that is removed (`LEAST_VALUE`).
const LEAST_NAME: usize = 2;
const LEAST_VALUE: usize = 8;

/// The JSON schemas of the report and of the trace's records, whose words are not private.
const SCHEMAS: [&str; 2] = [
    include_str!("../schema/report.v1.schema.json"),
    include_str!("../schema/record.v1.schema.json"),
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
        let text = |it: std::ffi::OsString| it.to_string_lossy().into_owned();
        let value = |name: &str| env::var_os(name).map(text);
        let account = User::from_uid(getuid()).ok().flatten();
        let homes = value("HOME").map(PathBuf::from).into_iter();
        let users = ["USER", "LOGNAME", "USERNAME", "SUDO_USER"].into_iter().filter_map(value);
        let hosts = HOSTS.split_whitespace().filter_map(value).flat_map(|value| nodes(&value));
        Self {
            homes: homes.chain(account.iter().map(|account| account.dir.clone())).collect(),
            working_directory: env::current_dir().ok(),
            directories,
            users: users.chain(account.map(|account| account.name)).collect(),
            hosts: hosts.chain(gethostname().ok().map(text)).collect(),
            variables: env::vars_os().map(|(name, value)| (text(name), text(value))).collect(),
        }
    }

    /// Adds to `known` the secrets in the environment variables.
    pub(super) fn secrets(&self, known: &mut Known) {
        self.variables.iter().for_each(|(name, value)| known.variable(name, value));
    }

    /// Adds to `known` the values of all environment variables that are not known to be harmless, except for paths,
    /// numbers and single words.
    pub(super) fn values(&self, known: &mut Known) {
        let is_harmless = |name: &str| {
            HARMLESS.split_whitespace().any(|it| match it.len() {
                1 => name == it,
                _ => name.starts_with(it),
            })
        };
        let is_plain = |value: &str| {
            value.starts_with(['/', '~', '.'])
                || value.chars().all(char::is_alphabetic)
                || value.parse::<f64>().is_ok()
        };
        let values = self.variables.iter().filter(|(name, _)| !is_harmless(name));
        let values = values.map(|(_, value)| value.trim());
        let values = values.filter(|it| it.chars().count() >= LEAST_VALUE && !is_plain(it));
        values.for_each(|value| known.value(value));
    }

    /// The private directories, with their kinds.
    pub(super) fn places(&self) -> Vec<(String, Kind)> {
        let homes = self.homes.iter().map(|path| (path, Kind::Home));
        let here = self.working_directory.iter().map(|path| (path, Kind::WorkingDirectory));
        let others = self.directories.iter().map(|path| (path, Kind::Path));
        let all = homes.chain(here).chain(others).flat_map(|(path, kind)| {
            let paths = [Some(path.clone()), path.canonicalize().ok()].into_iter().flatten();
            paths.map(move |path| (path, kind))
        });
        let all = all.filter(|(path, _)| path.is_absolute() && path.parent().is_some());
        let text = |path: PathBuf| path.to_string_lossy().trim_end_matches('/').to_owned();
        all.map(|(path, kind)| (text(path), kind)).collect()
    }

    /// The private names of users and of hosts, with their kinds. A host has a name with and a name without its domain.
    pub(super) fn names(&self) -> Vec<(String, Kind)> {
        let short = |host: &String| host.split('.').next().unwrap_or_default().to_owned();
        let hosts = self.hosts.iter().flat_map(|host| [host.clone(), short(host)]);
        let users = self.users.iter().map(|name| (name.clone(), Kind::User));
        let is_private = |(name, _): &(String, Kind)| {
            let name = name.to_lowercase();
            let is_common = vocabulary().contains(&name) || has(COMMON_NAMES, &name);
            name.len() >= LEAST_NAME && !is_common
        };
        users.chain(hosts.map(|name| (name, Kind::Host))).filter(is_private).collect()
    }
}

/// The host names in the value of a variable: `a:29500`, `node[1-4],login` or `a b`. A range such as `node[1-4]` gives
/// only the common beginning of its names.
fn nodes(list: &str) -> Vec<String> {
    let mut inside = false;
    let parts = list.split(|c: char| {
        inside = (inside || c == '[') && c != ']';
        matches!(c, ' ' | '[' | ']') || (c == ',' && !inside)
    });
    let names = parts.map(|part| part.split(':').next().unwrap_or_default());
    let names = names.map(|name| name.trim_end_matches(['-', '.']));
    names
        .filter(|it| it.starts_with(|c: char| c.is_ascii_alphabetic()))
        .map(str::to_owned)
        .collect()
}

/// The words of the schemas, and the names that consist of several words, all in lowercase.
pub(super) fn vocabulary() -> &'static HashSet<String> {
    static WORDS: LazyLock<HashSet<String>> = LazyLock::new(|| {
        let words = SCHEMAS.iter().flat_map(|text| text.split(|c: char| !c.is_alphanumeric()));
        let names = SCHEMAS.iter().flat_map(|text| text.split(['"', '`', ' ']));
        words.chain(names).map(str::to_lowercase).collect()
    });
    &WORDS
}
