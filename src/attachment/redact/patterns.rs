//! What tokens, paths and addresses look like.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::Kind;

/// Patterns whose whole match, or whose group `private`, is taken out; none for one that cannot be read.
type Patterns = LazyLock<Vec<Option<Regex>>>;

macro_rules! patterns {
    ($($(#[$meta:meta])* $name:ident: [$($text:literal,)*];)*) => {
        $($(#[$meta])* static $name: Patterns =
            LazyLock::new(|| vec![$(Regex::new($text).ok(),)*]);)*
    };
}

patterns! {
    /// Tokens by their prefixes, keys, and what stands where passwords stand.
    SECRETS: [
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
        r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16}\b",
        r"\bgh[pousr]_[A-Za-z0-9]{20,}",
        r"\bgithub_pat_[A-Za-z0-9_]{20,}",
        r"\bglpat-[A-Za-z0-9_-]{16,}",
        r"\bhf_[A-Za-z0-9]{20,}",
        r"\bsk-[A-Za-z0-9_-]{20,}",
        r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
        r"\bAIza[0-9A-Za-z_-]{35}",
        r"\bnpm_[A-Za-z0-9]{30,}",
        r"\bpypi-[A-Za-z0-9_-]{30,}",
        r"\bwandb_v1_[A-Za-z0-9_]{20,}",
        r"(?i)wandb[^\n]{0,60}?\b(?P<private>[0-9a-f]{40})\b",
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        r"(?i)\b[a-z][a-z0-9+.-]*://(?P<private>[^\s/@<>]+)@",
        r"(?i)\b(?:bearer|basic)\s+(?P<private>[A-Za-z0-9._~+/-]{16,}=*)",
    ];
    /// What is assigned to something that is called a secret.
    ASSIGNED: [
        r#"(?i)(?:key|token|secret|passw(?:or)?d|credentials?)["']?\s*=\s*["']?(?P<private>[^\s"'<>,;&]{8,})"#,
        r#"(?i)(?:key|token|secret|passw(?:or)?d|credentials?)["']\s*:\s*["'](?P<private>[^"'<>\n]{8,})["']"#,
    ];
    /// Where an interpreter lies, up to its library.
    INTERPRETERS: [
        r#"(?P<private>/[^\s"'<>:;,()\[\]]+?)/lib(?:64)?/python\d"#,
    ];
    /// Homes, whoever's they are.
    HOMES: [
        r"(?P<private>/(?:home|Users)/[A-Za-z0-9._-]+)",
        r"(?i)\b(?P<private>[a-z]:\\+Users\\+[A-Za-z0-9._-]+)",
    ];
    /// Absolute paths, up to their last name.
    PATHS: [
        r#""(?P<private>/[^"\n<>]+)/[^"/\n]*""#,
        r#"'(?P<private>/[^'\n<>]+)/[^'/\n]*'"#,
        r#"(?:^|[\s"'`=(\[{,;:|@])(?P<private>/[\w.+@~%-]+(?:/[\w.+@~%-]+)*)/[\w.+@~%-]*"#,
    ];
    /// Hosts as torch names them: `[node-17]:29500`.
    HOSTS: [
        r"\[(?P<private>[A-Za-z][A-Za-z0-9.-]*)\]:\d{2,5}\b",
    ];
    /// E-mail addresses.
    EMAILS: [
        r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b",
    ];
    /// Addresses that have to be read before it is known that they are some.
    IPS: [
        // Not behind `==`, `-` and the like: a version of a package may have four parts.
        r"(?:^|[\s\[(/@,:'`|]|[^=]=)(?P<private>\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})\b",
        r"(?i)(?:^|[^0-9a-z:.])(?P<private>[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7})",
    ];
}

/// Directories that every machine has.
const COMMON: &[&str] =
    &["/usr", "/lib", "/lib64", "/bin", "/sbin", "/proc", "/sys", "/dev", "/etc", "/opt/conda"];

pub(super) fn secrets(text: &str, count: &mut dyn FnMut(Kind)) -> String {
    let text = each(&SECRETS, text, Kind::Secret, |_| true, count);
    each(&ASSIGNED, &text, Kind::Secret, is_no_code, count)
}

pub(super) fn interpreters(text: &str, count: &mut dyn FnMut(Kind)) -> String {
    each(&INTERPRETERS, text, Kind::Python, |path| !is_common(path), count)
}

pub(super) fn places(text: &str, count: &mut dyn FnMut(Kind)) -> String {
    let text = each(&HOMES, text, Kind::Home, |_| true, count);
    each(&PATHS, &text, Kind::Path, |path| !is_common(path), count)
}

pub(super) fn addresses(text: &str, count: &mut dyn FnMut(Kind)) -> String {
    let text = each(&HOSTS, text, Kind::Host, |host| host != "localhost", count);
    let text = each(&EMAILS, &text, Kind::Email, |_| true, count);
    each(&IPS, &text, Kind::Ip, is_address, count)
}

/// Replaces every match of every pattern that `is_private`.
fn each(
    patterns: &Patterns,
    text: &str,
    kind: Kind,
    is_private: fn(&str) -> bool,
    count: &mut dyn FnMut(Kind),
) -> String {
    let mut text = text.to_owned();
    for regex in patterns.iter().flatten() {
        if !regex.is_match(&text) {
            continue;
        }
        let replaced = regex.replace_all(&text, |found: &Captures<'_>| {
            let whole = &found[0];
            let private = found.name("private").map_or(whole, |group| group.as_str());
            // A placeholder is not private again.
            if private.starts_with('<') || !is_private(private) {
                return whole.to_owned();
            }
            count(kind);
            whole.replacen(private, &kind.placeholder(), 1)
        });
        text = replaced.into_owned();
    }
    text
}

/// Letters and digits, as passwords have them, and code like `key=lambda` or `token = tokens[0]` seldom.
fn is_no_code(value: &str) -> bool {
    let has = |what: fn(char) -> bool| value.contains(what);
    let is_call = value.contains(['(', '[', '.']);
    has(|c| c.is_ascii_digit()) && has(|c| c.is_ascii_alphabetic()) && !is_call
}

fn is_common(path: &str) -> bool {
    COMMON.iter().any(|common| {
        path.strip_prefix(common).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// An address that says something: not the own machine, not all of them, and no time of day.
fn is_address(text: &str) -> bool {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => !address.is_loopback() && !address.is_unspecified(),
        Ok(IpAddr::V6(address)) => is_global_or_local(address),
        Err(_) => false,
    }
}

/// Addresses that are given to machines: `2000::/3`, `fc00::/7` and `fe80::/10`. Everything else that
/// reads like an address is more likely a name of C++.
fn is_global_or_local(address: Ipv6Addr) -> bool {
    let first = address.segments()[0];
    first >> 13 == 1 || first >> 9 == 0x7e || first >> 6 == 0x3fa
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_can_be_read() {
        let all = [&SECRETS, &ASSIGNED, &INTERPRETERS, &HOMES, &PATHS, &HOSTS, &EMAILS, &IPS];
        for patterns in all {
            assert_eq!(patterns.iter().position(Option::is_none), None, "of {}", patterns.len());
        }
    }
}
