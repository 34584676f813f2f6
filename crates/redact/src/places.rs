//! The patterns of paths, hosts, users and addresses.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

use super::Kind;
use super::private::COMMON_USERS;

/// The public hosts of software, its documentation and models, whose names are not private.
const KNOWN_HOSTS: &[&str] = &[
    "anaconda.org",
    "apache.org",
    "arxiv.org",
    "deepspeed.ai",
    "docker.com",
    "docker.io",
    "github.com",
    "github.io",
    "githubusercontent.com",
    "gitlab.com",
    "gnu.org",
    "huggingface.co",
    "intel.com",
    "kernel.org",
    "localhost",
    "localhost.localdomain",
    "microsoft.com",
    "nvidia.com",
    "nvcr.io",
    "oasis-open.org",
    "pypi.org",
    "python.org",
    "pythonhosted.org",
    "pytorch.org",
    "quay.io",
    "readthedocs.io",
    "schemastore.org",
    "stackoverflow.com",
    "w3.org",
];

/// The last labels that the domain names of machines have.
const MACHINES_ARE_IN: &[&str] = &[
    "at",
    "au",
    "be",
    "ca",
    "ch",
    "cloud",
    "cluster",
    "cn",
    "co",
    "com",
    "corp",
    "cz",
    "de",
    "dk",
    "edu",
    "es",
    "eu",
    "example",
    "fi",
    "fr",
    "gov",
    "home",
    "in",
    "int",
    "internal",
    "intra",
    "intranet",
    "io",
    "it",
    "jp",
    "kr",
    "lan",
    "local",
    "localdomain",
    "mil",
    "net",
    "nl",
    "no",
    "org",
    "pl",
    "private",
    "se",
    "sg",
    "svc",
    "tw",
    "uk",
    "us",
];

/// Compiled patterns; `None` for a pattern that cannot be compiled. The group `private` of a match is removed, or the
/// whole match without this group.
type Patterns = LazyLock<Vec<Option<Regex>>>;

macro_rules! patterns {
    ($($(#[$meta:meta])* $name:ident: [$($text:literal,)*];)*) => {
        $($(#[$meta])* static $name: Patterns =
            LazyLock::new(|| vec![$(Regex::new($text).ok(),)*]);)*
    };
}

patterns! {
    /// The directories of Python interpreters, up to the directory `lib`.
    INTERPRETERS: [
        r#"(?P<private>/[^\s"'<>:;,()\[\]]+?)/lib(?:64)?/python\d"#,
    ];
    /// The home directories of any user.
    HOMES: [
        r"(?P<private>/(?:home|Users)/[A-Za-z0-9._-]+)",
        r"(?i)\b(?P<private>[a-z]:\\+Users\\+[A-Za-z0-9._-]+)",
    ];
    /// Absolute paths, up to their last component.
    PATHS: [
        r#""(?P<private>/[^"\n<>]+)/[^"/\n]*""#,
        r#"'(?P<private>/[^'\n<>]+)/[^'/\n]*'"#,
        r#"(?:^|[\s"'`=(\[{,;:|@])(?P<private>/[\w.+@~%-]+(?:/[\w.+@~%-]+)*)/[\w.+@~%-]*"#,
    ];
    /// Host names, recognised by the text around them.
    HOSTS: [
        // The form of torch: `[node-17]:29500`.
        r"\[(?P<private>[A-Za-z][A-Za-z0-9.-]*)\]:\d{2,5}\b",
        // The prefix of NCCL's log lines: `node-17:1234:5678 [0] NCCL INFO`.
        r"(?m)(?:^|\s)(?P<private>[A-Za-z][A-Za-z0-9.-]*):\d+:\d+ \[\d+\] NCCL",
        r#"(?i)\b(?:master_addr(?:ess)?|hostname|host_name|nodename|node_name|rdzv[-_](?:endpoint|host))[\\"']*\s*[=:]\s*[\\"']*(?P<private>[a-z][a-z0-9.-]*)"#,
        r"(?i)\b[a-z][a-z0-9+.-]*://(?:<secret>@)?(?P<private>[a-z][a-z0-9.-]*)",
        // The prompt of a shell: `alice@node-17:~$`.
        r"@(?P<private>[A-Za-z][A-Za-z0-9.-]*):[~/]",
    ];
    /// Words that may be host names; [`is_machine`] decides which of the words are.
    MACHINES: [
        r"(?i)\b(?P<private>[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,11})\b",
        r"(?i)\b(?P<private>[a-z][a-z0-9]*(?:-[a-z0-9]+)+):\d{4,5}\b",
        r"(?i)\b(?P<private>ip(?:-\d{1,3}){4})\b",
    ];
    /// User names, recognised by the text around them.
    USERS: [
        r"\b[ug]id=\d+\((?P<private>[A-Za-z_][\w.-]*)\)",
        r#"\b(?:USER|LOGNAME|USERNAME|[Uu]ser_?[Nn]ame)[\\"']*\s*[=:]\s*[\\"']*(?P<private>[A-Za-z_][\w.-]*)"#,
        r#"(?:^|[\s"'=:(])~(?P<private>[a-z_][a-z0-9_-]*)/"#,
        r"\b(?P<private>[a-z_][a-z0-9_.-]*)@(?:<host>|[A-Za-z][A-Za-z0-9.-]*):[~/]",
    ];
    /// The MAC addresses of network cards.
    MACS: [
        r"(?i)(?:^|[^0-9a-z:-])(?P<private>[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5,19})\b",
    ];
    /// E-mail addresses.
    EMAILS: [
        r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b",
    ];
    /// Texts that may be IP addresses; [`is_address`] decides which of the texts are.
    IPS: [
        // An address does not follow `==` or `-`: there, four numbers are the version of a package.
        r"(?:^|[\s\[(/@,:'`|]|[^=]=)(?P<private>\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})\b",
        r"(?i)(?:^|[^0-9a-z:.])(?P<private>[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7})",
    ];
}

/// The directories that every machine has, whose paths are not private.
const COMMON: &[&str] =
    &["/usr", "/lib", "/lib64", "/bin", "/sbin", "/proc", "/sys", "/dev", "/etc", "/opt/conda"];

pub(super) fn interpreters(text: &str, count: &mut dyn FnMut(Kind)) -> String {
    each(&INTERPRETERS, text, Kind::Python, |path| !is_common(path), count)
}

pub(super) fn places(text: &str, count: &mut dyn FnMut(Kind)) -> String {
    let text = each(&HOMES, text, Kind::Home, |_| true, count);
    each(&PATHS, &text, Kind::Path, |path| !is_common(path), count)
}

pub(super) fn addresses(text: &str, count: &mut dyn FnMut(Kind)) -> String {
    let text = each(&USERS, text, Kind::User, |user| !COMMON_USERS.contains(&user), count);
    let text = each(&EMAILS, &text, Kind::Email, |_| true, count);
    let text = each(&HOSTS, &text, Kind::Host, is_host, count);
    let text = each(&MACHINES, &text, Kind::Host, is_machine, count);
    let text = each(&MACS, &text, Kind::Mac, is_card, count);
    each(&IPS, &text, Kind::Ip, is_address, count)
}

/// Replaces every match of these patterns for which `is_private` returns true.
fn each(
    patterns: &Patterns,
    text: &str,
    kind: Kind,
    is_private: fn(&str) -> bool,
    count: &mut dyn FnMut(Kind),
) -> String {
    let mut text = text.to_owned();
    for regex in patterns.iter().flatten() {
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
            count(kind);
        }
        if written > 0 {
            replaced.push_str(&text[written..]);
            text = replaced;
        }
    }
    text
}

fn is_common(path: &str) -> bool {
    COMMON.iter().any(|common| {
        path.strip_prefix(common).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Returns true if a host is not one of the [`KNOWN_HOSTS`].
fn is_host(name: &str) -> bool {
    let name = name.trim_end_matches(['.', '-']).to_lowercase();
    let known = |known: &&str| {
        name.strip_suffix(*known).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !name.is_empty() && !KNOWN_HOSTS.iter().any(known)
}

/// Returns true if a name itself shows that it names a host: the first label has letters and digits, and a name of
/// several labels ends with one of [`MACHINES_ARE_IN`]. The check is strict, because names of modules and of files have
/// dots, too.
fn is_machine(name: &str) -> bool {
    let name = name.to_lowercase();
    let labels: Vec<&str> = name.split('.').collect();
    let numbered = |label: &str| {
        label.contains(|c: char| c.is_ascii_digit())
            && label.contains(|c: char| c.is_ascii_alphabetic())
    };
    let first = labels.first().copied().unwrap_or_default();
    let last = labels.last().copied().unwrap_or_default();
    // Names of two labels need a last label of three letters or more: a parameter may be called `fc1.in`.
    let is_long = labels.len() > 2 || last.len() > 2;
    let in_domain = labels.len() == 1 || is_long && MACHINES_ARE_IN.contains(&last);
    in_domain && numbered(first) && is_host(&name)
}

/// Returns true if a MAC address is that of a network card, and not the broadcast address or all zeros.
fn is_card(text: &str) -> bool {
    let digits = || text.chars().filter(char::is_ascii_hexdigit).map(|c| c.to_ascii_lowercase());
    !digits().all(|c| c == 'f') && !digits().all(|c| c == '0')
}

/// Returns true if a text is an IP address that identifies a machine: not the loopback address, not the unspecified
/// address, and not a time of day.
fn is_address(text: &str) -> bool {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => !address.is_loopback() && !address.is_unspecified(),
        Ok(IpAddr::V6(address)) => is_global_or_local(address),
        Err(_) => false,
    }
}

/// Returns true if an IPv6 address is in a range that is assigned to machines: `2000::/3`, `fc00::/7` or `fe80::/10`.
/// Any other text in the form of an address is more likely a C++ name.
fn is_global_or_local(address: Ipv6Addr) -> bool {
    let first = address.segments()[0];
    first >> 13 == 1 || first >> 9 == 0x7e || first >> 6 == 0x3fa
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_can_be_read() {
        let all = [&INTERPRETERS, &HOMES, &PATHS, &HOSTS, &MACHINES, &USERS, &MACS, &EMAILS, &IPS];
        for patterns in all {
            assert_eq!(patterns.iter().position(Option::is_none), None, "of {}", patterns.len());
        }
    }
}
