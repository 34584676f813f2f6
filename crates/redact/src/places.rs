//! The patterns of paths, hosts, users and addresses.

use std::net::IpAddr;
use std::sync::LazyLock;

use regex::Regex;

use super::Kind;
use super::names::has;
use super::private::COMMON_NAMES;

/// The public hosts of software, documentation and models, whose names are not private.
const KNOWN_HOSTS: &str = "anaconda.org apache.org arxiv.org deepspeed.ai docker.com docker.io github.com github.io \
                           githubusercontent.com gitlab.com gnu.org huggingface.co intel.com kernel.org localhost \
                           localhost.localdomain microsoft.com nvidia.com nvcr.io oasis-open.org pypi.org python.org \
                           pythonhosted.org pytorch.org quay.io readthedocs.io schemastore.org stackoverflow.com w3.org";

/// The last labels of domain names that belong to machines.
const MACHINES_ARE_IN: &str = "at au be ca ch cloud cluster cn co com corp cz de dk edu es eu example fi fr gov home in \
                               int internal intra intranet io it jp kr lan local localdomain mil net nl no org pl \
                               private se sg svc tw uk us";

/// The directories that every machine has, whose paths are not private.
const COMMON_DIRECTORIES: &str = "/usr /lib /lib64 /bin /sbin /proc /sys /dev /etc /opt/conda";

/// A kind of private text, its pattern, and the function that decides whether a match is private. The group `private`
/// of a match is removed, or the whole match if the pattern has no such group.
type Place = (Kind, &'static str, fn(&str) -> bool);

/// The patterns of the directories of Python interpreters, up to the directory `lib`.
const INTERPRETERS: &[Place] =
    &[(Kind::Python, r#"(?P<private>/[^\s"'<>:;,()\[\]]+?)/lib(?:64)?/python\d"#, is_own)];

/// The patterns of the home directories of all users, and of absolute paths up to the last component.
const PATHS: &[Place] = &[
    (Kind::Home, r"(?P<private>/(?:home|Users)/[A-Za-z0-9._-]+)", always),
    (Kind::Home, r"(?i)\b(?P<private>[a-z]:\\+Users\\+[A-Za-z0-9._-]+)", always),
    (Kind::Path, r#""(?P<private>/[^"\n<>]+)/[^"/\n]*""#, is_own),
    (Kind::Path, r#"'(?P<private>/[^'\n<>]+)/[^'/\n]*'"#, is_own),
    (
        Kind::Path,
        r#"(?:^|[\s"'`=(\[{,;:|@])(?P<private>/[\w.+@~%-]+(?:/[\w.+@~%-]+)*)/[\w.+@~%-]*"#,
        is_own,
    ),
];

/// The patterns of users, mail addresses, hosts and addresses of machines.
const ADDRESSES: &[Place] = &[
    (Kind::User, r"\b[ug]id=\d+\((?P<private>[A-Za-z_][\w.-]*)\)", is_user),
    (
        Kind::User,
        r#"\b(?:USER|LOGNAME|USERNAME|[Uu]ser_?[Nn]ame)[\\"']*\s*[=:]\s*[\\"']*(?P<private>[A-Za-z_][\w.-]*)"#,
        is_user,
    ),
    (Kind::User, r#"(?:^|[\s"'=:(])~(?P<private>[a-z_][a-z0-9_-]*)/"#, is_user),
    (
        Kind::User,
        r"\b(?P<private>[a-z_][a-z0-9_.-]*)@(?:<host>|[A-Za-z][A-Za-z0-9.-]*):[~/]",
        is_user,
    ),
    (Kind::Email, r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b", always),
    // The form of torch: `[node-17]:29500`.
    (Kind::Host, r"\[(?P<private>[A-Za-z][A-Za-z0-9.-]*)\]:\d{2,5}\b", is_host),
    // The prefix of NCCL's log lines: `node-17:1234:5678 [0] NCCL INFO`.
    (Kind::Host, r"(?m)(?:^|\s)(?P<private>[A-Za-z][A-Za-z0-9.-]*):\d+:\d+ \[\d+\] NCCL", is_host),
    (
        Kind::Host,
        r#"(?i)\b(?:master_addr(?:ess)?|hostname|host_name|nodename|node_name|rdzv[-_](?:endpoint|host))[\\"']*\s*[=:]\s*[\\"']*(?P<private>[a-z][a-z0-9.-]*)"#,
        is_host,
    ),
    (Kind::Host, r"(?i)\b[a-z][a-z0-9+.-]*://(?:<secret>@)?(?P<private>[a-z][a-z0-9.-]*)", is_host),
    // The prompt of a shell: `alice@node-17:~$`.
    (Kind::Host, r"@(?P<private>[A-Za-z][A-Za-z0-9.-]*):[~/]", is_host),
    (Kind::Host, r"(?i)\b(?P<private>[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,11})\b", is_machine),
    (Kind::Host, r"(?i)\b(?P<private>[a-z][a-z0-9]*(?:-[a-z0-9]+)+):\d{4,5}\b", is_machine),
    (Kind::Host, r"(?i)\b(?P<private>ip(?:-\d{1,3}){4})\b", is_machine),
    (
        Kind::Mac,
        r"(?i)(?:^|[^0-9a-z:-])(?P<private>[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5,19})\b",
        is_card,
    ),
    // An address does not follow `==` or `-`: there, four numbers are the version of a package.
    (
        Kind::Ip,
        r"(?:^|[\s\[(/@,:'`|]|[^=]=)(?P<private>\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})\b",
        is_address,
    ),
    (
        Kind::Ip,
        r"(?i)(?:^|[^0-9a-z:.])(?P<private>[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7})",
        is_address,
    ),
];

/// A kind of private text, its compiled pattern, and the function that decides whether a match is private.
type CompiledPlace = (Kind, Regex, fn(&str) -> bool);

static ALL: [LazyLock<Vec<CompiledPlace>>; 3] = [
    LazyLock::new(|| compiled(INTERPRETERS)),
    LazyLock::new(|| compiled(PATHS)),
    LazyLock::new(|| compiled(ADDRESSES)),
];

fn compiled(places: &[Place]) -> Vec<CompiledPlace> {
    let regex = |text: &str| Regex::new(text).unwrap_or_else(|error| unreachable!("{error}"));
    places.iter().map(|&(kind, text, is_private)| (kind, regex(text), is_private)).collect()
}

pub(super) fn interpreters(text: &str, count: &mut dyn FnMut(Kind)) -> String {
    each(&ALL[0], text, count)
}

pub(super) fn paths(text: &str, count: &mut dyn FnMut(Kind)) -> String {
    each(&ALL[1], text, count)
}

pub(super) fn addresses(text: &str, count: &mut dyn FnMut(Kind)) -> String {
    each(&ALL[2], text, count)
}

/// Replaces every private match of these patterns, one pattern after the other.
fn each(patterns: &[CompiledPlace], text: &str, count: &mut dyn FnMut(Kind)) -> String {
    let mut text = text.to_owned();
    for (kind, regex, is_private) in patterns {
        let mut replaced = String::new();
        let mut written = 0;
        for found in regex.captures_iter(&text) {
            let Some(private) = found.name("private").or_else(|| found.get(0)) else { continue };
            // A placeholder of an earlier replacement is not replaced again.
            if private.as_str().starts_with('<') || !is_private(private.as_str()) {
                continue;
            }
            replaced.push_str(&text[written..private.start()]);
            replaced.push_str(&kind.placeholder());
            written = private.end();
            count(*kind);
        }
        if written > 0 {
            replaced.push_str(&text[written..]);
            text = replaced;
        }
    }
    text
}

fn always(_: &str) -> bool {
    true
}

/// Returns true if a path is in none of the directories that every machine has.
fn is_own(path: &str) -> bool {
    !COMMON_DIRECTORIES.split_whitespace().any(|common| {
        path.strip_prefix(common).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

fn is_user(name: &str) -> bool {
    !has(COMMON_NAMES, name)
}

/// Returns true if a host is not one of the [`KNOWN_HOSTS`].
fn is_host(name: &str) -> bool {
    let name = name.trim_end_matches(['.', '-']).to_lowercase();
    let known = |known: &str| {
        name.strip_suffix(known).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !name.is_empty() && !KNOWN_HOSTS.split_whitespace().any(known)
}

/// Returns true if the form of a name shows that the name belongs to a host: the first label has letters and digits,
/// and a name of several labels ends with one of [`MACHINES_ARE_IN`]. The check is strict, because names of modules and
/// of files have dots, too.
fn is_machine(name: &str) -> bool {
    let name = name.to_lowercase();
    let labels: Vec<&str> = name.split('.').collect();
    let (first, last) = (labels[0], labels[labels.len() - 1]);
    let is_numbered = first.contains(|c: char| c.is_ascii_digit())
        && first.contains(|c: char| c.is_ascii_alphabetic());
    // Names of two labels need a last label of three letters or more: a parameter may be called `fc1.in`.
    let is_long = labels.len() > 2 || last.len() > 2;
    let in_domain = labels.len() == 1 || is_long && has(MACHINES_ARE_IN, last);
    in_domain && is_numbered && is_host(&name)
}

/// Returns true if a MAC address belongs to a network card: it is not the broadcast address, and not all zeros.
fn is_card(text: &str) -> bool {
    let is_all = |digit: &str| text.split([':', '-']).all(|it| it.eq_ignore_ascii_case(digit));
    !is_all("ff") && !is_all("00")
}

/// Returns true if a text is an IP address that identifies a machine: not the loopback address, not the unspecified
/// address, and not a time of day. An IPv6 address must be in a range that is assigned to machines (`2000::/3`,
/// `fc00::/7` or `fe80::/10`), because other texts of this form are more likely C++ names.
fn is_address(text: &str) -> bool {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => !address.is_loopback() && !address.is_unspecified(),
        Ok(IpAddr::V6(address)) => {
            let first = address.segments()[0];
            first >> 13 == 1 || first >> 9 == 0x7e || first >> 6 == 0x3fa
        }
        Err(_) => false,
    }
}
