//! The patterns of credentials in URLs, and of tokens that the rules of gitleaks do not find, or find only next to a
//! certain word.

use std::ops::Range;
use std::sync::LazyLock;

use regex::{Regex, RegexSet};

/// The patterns of token families, by their prefixes, and of URLs. The group `secret` of a match is removed, or the
/// whole match without this group.
const FAMILIES: &[&str] = &[
    r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16}\b",
    // Tokens of GitHub and GitLab.
    r"\bgh[pousr]_[A-Za-z0-9]{20,}",
    r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bgl[a-z]{2,5}-[A-Za-z0-9_-]{16,}",
    // Tokens of Hugging Face, of OpenAI, Anthropic and others with the same form, of NVIDIA, Groq and others.
    r"\bhf_[A-Za-z0-9]{20,}",
    r"\bapi_org_[A-Za-z0-9]{20,}",
    r"\bsk-[A-Za-z0-9_-]{20,}",
    r"\bnvapi-[A-Za-z0-9_-]{20,}",
    r"\bgsk_[A-Za-z0-9]{20,}",
    r"\bpplx-[A-Za-z0-9]{20,}",
    r"\bxai-[A-Za-z0-9]{20,}",
    r"\br8_[A-Za-z0-9]{30,}",
    r"\bfw_[A-Za-z0-9]{22,}",
    r"\brpa_[A-Za-z0-9]{30,}",
    r"\bpcsk_[A-Za-z0-9_]{30,}",
    r"\blsv2_(?:pt|sk)_[0-9a-f_]{30,}",
    r"\bwandb_v1_[A-Za-z0-9_]{20,}",
    r"(?i)wandb[^\n]{0,60}?\b(?P<secret>[0-9a-f]{40})\b",
    // Tokens of Google and Azure.
    r"\bAIza[0-9A-Za-z_-]{35}",
    r"\bya29\.[0-9A-Za-z_-]{20,}",
    r"\bGOCSPX-[0-9A-Za-z_-]{20,}",
    r"\b1//0[0-9A-Za-z_-]{30,}",
    r"\b[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}\b",
    // Tokens and webhooks of Slack, Telegram and Discord.
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"\bxapp-[A-Za-z0-9-]{20,}",
    r"\bhooks\.slack\.com/(?:services|workflows|triggers)/(?P<secret>[A-Za-z0-9_/-]{20,})",
    r"\bdiscord(?:app)?\.com/api/webhooks/(?P<secret>[0-9]+/[A-Za-z0-9_-]+)",
    r"\b(?:bot)?(?P<secret>[0-9]{8,10}:AA[A-Za-z0-9_-]{32,})",
    r"\b[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",
    // Tokens of other services and of package registries.
    r"\b[rs]k_(?:live|test)_[0-9A-Za-z]{16,}",
    r"\bwhsec_[A-Za-z0-9+/=]{20,}",
    r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"\bSK[0-9a-f]{32}\b",
    r"\bNR(?:AA|AK|II|JS)-[A-Za-z0-9-]{20,}",
    r"\bdapi[0-9a-f]{32}\b",
    r"\bdo[opr]_v1_[0-9a-f]{32,}",
    r"\bdckr_[a-z]{3}_[A-Za-z0-9_-]{20,}",
    r"\bhv[bsr]\.[A-Za-z0-9_-]{20,}",
    r"\bnpm_[A-Za-z0-9]{30,}",
    r"\bpypi-[A-Za-z0-9_-]{30,}",
    r"\bcio[A-Za-z0-9]{32}\b",
    r"\bsbp_[0-9a-f]{32,}",
    r"\btskey-[a-z]+-[A-Za-z0-9-]{16,}",
    r"\bntn_[A-Za-z0-9]{30,}",
    // JSON Web Tokens.
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    // The part of a URL before the host. A password may contain an `@`, and the password of a database a `/`.
    r"(?i)\b[a-z][a-z0-9+.-]*://(?P<secret>[^\s/@<>'\x22]+)@",
    r"(?i)\b[a-z][a-z0-9+.-]*://(?P<secret>[^\s/@:<>'\x22]*:[^\s/<>'\x22]+)@",
    r"(?i)\b(?:postgres|postgresql|mysql|mariadb|mongodb|redis|rediss|amqp|amqps|mssql|oracle|clickhouse|cockroachdb|snowflake|nats|ldaps?)(?:\+[a-z0-9]+)?://(?P<secret>[^\s:@<>'\x22]*:[^\s<>'\x22]+)@",
    r"(?i)%3A%2F%2F(?P<secret>[A-Za-z0-9._~%-]+?)%40",
];

/// The set of all families, which finds the families that match a text.
static ALL: LazyLock<Option<RegexSet>> = LazyLock::new(|| RegexSet::new(FAMILIES).ok());

/// The compiled patterns of the families, in the order of [`FAMILIES`].
static EACH: LazyLock<Vec<Option<Regex>>> =
    LazyLock::new(|| FAMILIES.iter().map(|family| Regex::new(family).ok()).collect());

/// The byte ranges of all tokens, and of credentials in URLs.
pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    let tried = ALL.iter().flat_map(|all| all.matches(text));
    let mut found = Vec::new();
    for regex in tried.filter_map(|at| EACH[at].as_ref()) {
        for matched in regex.captures_iter(text) {
            let secret = matched.name("secret").or_else(|| matched.get(0));
            found.extend(secret.map(|secret| secret.range()));
        }
    }
    found
}

/// The password in `user:password`, the part of a URL before its host.
pub(super) fn password(before_host: &str) -> Option<&str> {
    before_host.split_once(':').map(|(_, password)| password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_can_be_read() {
        assert!(ALL.is_some());
        assert_eq!(EACH.iter().position(Option::is_none), None);
    }
}
