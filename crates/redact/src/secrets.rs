//! Finds secrets in a text: values under the names of secrets, a short list of known forms, and random tokens.
//!
//! The list of forms is short on purpose, because no list is complete. Every token of at least [`LEAST_RANDOM`]
//! characters that looks random counts as a secret, whatever its form.

use std::ops::Range;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::names::{self, Tells, has};

/// Values that are not secrets even under the name of a secret, and names of types.
const NO_SECRETS: &str = "any auto bool bytes default disabled dict empty enabled false float int invalid missing nil \
                          no none null optional required secretstr set str string true undefined unset yes";

/// The smallest number of characters of a value under the name of a secret.
const LEAST: usize = 3;

/// The smallest number of characters of a random token (`LEAST_RANDOM`), and of a part of a token without punctuation
/// (`LEAST_PART`).
const LEAST_RANDOM: usize = 20;
const LEAST_PART: usize = 12;

/// The names of objects with which expressions for stored values begin, as in `self.token`.
const OWNERS: &str = "args cfg config env environ kwargs opts os params self settings";

/// The schemes before the secret part of an `Authorization` header.
const SCHEMES: &[&str] = &["apikey", "basic", "bearer", "digest", "negotiate", "token"];

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|error| unreachable!("{error}"))
}

/// A name, and the sign after which the value follows: `=`, `:` (also at the end of a line of YAML), an attribute
/// `value` of XML, the column of a table, or the dots with which DeepSpeed prints settings.
static NAMES: LazyLock<Regex> = LazyLock::new(|| {
    let signs = r#"[ \t]*(?:(?P<compares>==)|=>|:=|=|:[ \t]*\r?\n[ \t]+|:|(?P<cell>\|)|[ \t]\.{3,}[ \t])[ \t]*|\s+value\s*=\s*|(?P<column>\t+|[ ]{2,})"#;
    pattern(&format!(
        r#"(?P<name>(?:(?i:access|api|private|secret) )?[A-Za-z_][\w.-]*)(?P<quote>\\*["'`])?(?:{signs})"#
    ))
});

/// A flag whose value is the next word, or the next item of a list.
static FLAGS: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r#"(?:^|[\s"'`=,\[(])--?(?P<name>[A-Za-z][\w-]*)(?:(?P<quote>\\*["'`]),?)?(?P<flag>[ \t]+)"#,
    )
});

/// The parameters of a URL, and the elements of XML.
static PARAMETERS: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"[?&;](?P<name>[\w.-]+)=(?P<secret>[^&\s"'`<>#\\]{3,})"#));
static ELEMENTS: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"<(?P<name>[\w.:-]+)[^<>]*>\s*(?P<secret>[^<>]{3,}?)\s*</"));

/// The known forms of secrets. The group `secret` of a match is removed, or the whole match if the pattern has no such
/// group.
static FORMS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    [
        // The part of a URL before the host. A password may contain an `@`, and the password of a database may also
        // contain a `/`.
        r#"(?i)\b[a-z][a-z0-9+.-]*://(?P<secret>[^\s/@:<>'"]*:[^\s/<>'"]+|[^\s/@<>'"]+)@"#,
        r#"(?i)\b(?:\w*sql|postgres|maria|mongo|redis|amqp|nats|ldap|oracle)\w*(?:\+\w+)?://(?P<secret>[^\s:@<>'"]*:[^\s<>'"]+)@"#,
        r"(?i)%3A%2F%2F(?P<secret>[A-Za-z0-9._~%-]+?)%40",
        // Passwords after words without a sign of assignment: netrc, curl, and the flag `-p`.
        r"\blogin\s+\S+\s+password\s+(?P<secret>\S+)",
        r"\b(?:sshpass|mysql\w*|docker|podman|helm|oras)\b[^\n]*?\s-p\s*(?P<secret>\S+)",
        r#"\bcurl\b[^\n]*\s(?:-u|--user)[ =]["']?[^\s:"']+:(?P<secret>[^\s"']+)"#,
        r"(?i)\b(?:bearer|basic)\s+(?P<secret>[A-Za-z0-9._~+/-]{16,}=*)",
        // Private keys in several lines, whole or cut.
        r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY.*?(?:-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----|\z)",
        r"(?:[^\n]*?[A-Za-z0-9+/=]{40,}\s*?\n)+[^\n]*-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----",
        r"(?s)Private-Lines:.*?(?:Private-MAC:[^\n]*|\z)",
        // Tokens with the prefix of a service, which may have too few digits to look random.
        r"\b(?:[a-z][a-z0-9]{1,9}_)?(?:gh[pousr]|gl[a-z]{2,5}|hf|api_org|[op]at|[prs]k|xox[a-z]|xapp|npm|pypi|nvapi|gsk|pplx|xai|hv[bsr]|r8|fw|rpa|v1|shp[a-z]{2}|sbp|pul|rubygems|lsv2|PMAK|GOCSPX|SG|ya29)[-_.](?:[A-Za-z0-9]{1,14}[-_])*[A-Za-z0-9]{16,}[\w=-]*",
        r"\b(?:gl(?:pat|rt|dt|ptt|ft|soat|imt|agent|cbt)-|dckr_[op]at_|GOCSPX-|ya29\.|hv[bs]\.|SG\.|nvapi-|sk-ant-|HRKU-|pscale_tkn_)[\w.-]{16,}",
        r"1//0[\w-]{30,}",
        r"(?:\b|bot)[0-9]{8,10}:[\w-]{30,}",
        r"\b(?:(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{16,}(?:\.[\w-]+)*)",
        // Hexadecimal keys look like digests, so an earlier word on the same line must show that a key follows.
        r"(?i)\b(?:api.?key|key|login|password|secret|token|wandb)\b[^\n]{0,60}?\b(?P<secret>[0-9a-f]{32,64})\b",
        // The path of a webhook.
        r"(?i)\b(?:hooks\.[\w.-]+|[\w.-]+/api/webhooks)/(?P<secret>[\w/-]{20,})",
    ]
    .iter()
    .map(|form| pattern(form))
    .collect()
});

/// Texts that may be random tokens.
static TOKENS: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?P<secret>[A-Za-z0-9+/_=.~-]{19,}[A-Za-z0-9+/_=-])"));

/// The byte ranges of all secrets in a text.
pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    // Most short texts without separators are words of the trace's format.
    if text.len() < LEAST_RANDOM && !text.contains([':', '=', '@', ' ', '"', '/', '\t', '|', '>']) {
        return Vec::new();
    }
    let named = NAMES.captures_iter(text).filter(|it| it.name("compares").is_none());
    let mut found: Vec<_> =
        named.chain(FLAGS.captures_iter(text)).filter_map(|name| value(text, &name)).collect();
    let is_secret =
        |it: &Captures<'_>| names::tells(&it["name"]).is_some() || has("code sas", &it["name"]);
    let elements = ELEMENTS.captures_iter(text);
    let parameters = PARAMETERS.captures_iter(text).chain(elements).filter(is_secret);
    let forms = FORMS.iter().flat_map(|form| form.captures_iter(text));
    let tokens = TOKENS.captures_iter(text).filter(|it| is_random(&it["secret"]));
    let matched = parameters.chain(forms).chain(tokens);
    found.extend(matched.filter_map(|it| it.name("secret").or(it.get(0))).map(|it| it.range()));
    found.retain(|range| !text[range.clone()].starts_with('<'));
    found
}

/// Returns true if a value under this name is secret.
pub(super) fn is_secret_under(name: &str, value: &str) -> bool {
    let tells = names::tells(name).filter(|_| !names::is_place(name, value));
    tells.is_some_and(|tells| is_secret(value, tells))
}

/// Returns true if a value under the name of a secret looks like a secret.
pub(super) fn is_secret(value: &str, tells: Tells) -> bool {
    let nothing = value.chars().count() < LEAST
        || has(NO_SECRETS, &value.to_lowercase())
        || value.starts_with(['<', '$', '{', '%'])
        || value.chars().all(|c| "*xX.-_|".contains(c));
    !nothing && (tells == Tells::Surely || is_drawn(value))
}

/// The password in `user:password`, the part of a URL before its host.
pub(super) fn password(before_host: &str) -> Option<&str> {
    before_host.split_once(':').map(|(_, password)| password)
}

/// The byte range of the value after a name; `None` if the value is not secret.
fn value(text: &str, found: &Captures<'_>) -> Option<Range<usize>> {
    let name = &found["name"];
    let tells = names::tells(name)?;
    let is_flag = found.name("flag").is_some();
    let start = found.get(0)?.end();
    let rest = &text[start..];
    let escapes = rest.len() - rest.trim_start_matches('\\').len();
    let quote = rest[escapes..].starts_with(['"', '\'', '`']).then(|| &rest[..=escapes]);
    let mut range = match quote {
        Some(quote) => {
            let inside = start + quote.len();
            inside..inside + closing(&text[inside..], quote)
        }
        None if found.name("cell").or(found.name("column")).is_some() => {
            let end = [Some(rest.len()), rest.find(['|', '\t', '\n']), rest.find("  ")];
            let cell = rest[..end.into_iter().flatten().min()?].trim_end();
            // A cell of several words is prose.
            if tells == Tells::Maybe || cell.contains(' ') {
                return None;
            }
            start..start + cell.len()
        }
        None if is_flag && rest.starts_with('-') => return None,
        None if !is_flag && names::is_of_a_line(name) => {
            start..start + rest.find(['\n', '\r', '"', '\'', '`']).unwrap_or(rest.len())
        }
        // A quoted text is a value; a text without quotes may be an expression in code, which is not secret.
        None if is_code(rest) => return None,
        None => start..start + word(rest, found.name("quote").is_some()),
    };
    let scheme = |scheme: &&&str| {
        let begins = text[range.clone()].get(..scheme.len());
        begins.is_some_and(|begins| begins.eq_ignore_ascii_case(scheme))
            && text[range.start + scheme.len()..range.end].starts_with(' ')
    };
    if let Some(scheme) = SCHEMES.iter().find(scheme) {
        range.start += scheme.len() + 1;
    }
    is_secret_under(name, &text[range.clone()]).then_some(range)
}

/// The number of bytes up to the closing quotation mark, or to the end of the line.
fn closing(rest: &str, quote: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices() {
        if !escaped && rest[at..].starts_with(quote) || c == '\n' {
            return at;
        }
        escaped = quote.len() == 1 && c == '\\' && !escaped;
    }
    rest.len()
}

/// The number of bytes of a value without quotes. A punctuation mark may be part of a password, unless the mark is at
/// the end or is followed by another name.
fn word(rest: &str, in_list: bool) -> usize {
    let end = rest.find(|c: char| c.is_whitespace() || "\"'`<>".contains(c)).unwrap_or(rest.len());
    let ends = |&(at, mark): &(usize, char)| {
        ",;&|".contains(mark) && (in_list || is_name(&rest[at + mark.len_utf8()..]))
    };
    let end = rest[..end].char_indices().find(ends).map_or(end, |(at, _)| at);
    rest[..end].trim_end_matches([',', ';', ')', ']', '}']).len()
}

/// Returns true if the text begins with a name and a sign of assignment.
fn is_name(rest: &str) -> bool {
    let rest = rest.trim_start();
    let name = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "_-. ".contains(c));
    rest.len() > name.len() && name.starts_with(['=', ':'])
}

/// Returns true if a short value looks random: it has letters and digits, unlike most code such as `key=lambda`.
fn is_drawn(value: &str) -> bool {
    let is_call = value.contains(['(', '[', '.', '/', ' ']);
    let has_both = value.contains(|c: char| c.is_ascii_digit())
        && value.contains(|c: char| c.is_ascii_alphabetic());
    value.len() >= 8 && has_both && !is_call
}

/// Returns true if a token looks random: in a part of the token without punctuation, letters and digits or lowercase
/// and uppercase alternate more often than in words. All parts together must alternate in both ways, because names of
/// settings have many digits. A hexadecimal number is more likely a digest, and a C++ symbol begins with `_Z`.
fn is_random(token: &str) -> bool {
    let parts = || token.split(['+', '/', '_', '=', '.', '~', '-']);
    let is_part = |part: &str| {
        let (digits, cases) = changes(part);
        part.len() >= LEAST_PART && is_mixed(part) && (digits + cases) * 5 >= part.len()
    };
    let all = parts().collect::<String>();
    let (digits, cases) = changes(&all);
    let is_all = is_mixed(&all) && digits >= 4 && cases >= 3 && (digits + cases) * 4 >= all.len();
    !token.starts_with("_Z") && (is_all || parts().any(is_part))
}

/// The number of places where letters and digits alternate, and the number of places where an uppercase letter follows
/// a lowercase letter.
fn changes(text: &str) -> (usize, usize) {
    let count = |is_change: fn(&[u8]) -> bool| {
        text.as_bytes().windows(2).filter(|pair| is_change(pair)).count()
    };
    let digits = count(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit());
    (digits, count(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase()))
}

/// Returns true if a text has many different characters and is no hexadecimal number.
fn is_mixed(text: &str) -> bool {
    let mut kinds = text.as_bytes().to_vec();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.len() >= 10 && !text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns true if the text begins with an expression: `tokens[0]`, `getpass()`, `self.token` or `["a", "b"]`.
fn is_code(rest: &str) -> bool {
    let end = rest.find(|c: char| c.is_whitespace() || ",;".contains(c)).unwrap_or(rest.len());
    let behind = rest.trim_start_matches(|c: char| c.is_ascii_alphabetic() || "_.".contains(c));
    let name = &rest[..rest.len() - behind.len()];
    let owner = name.split('.').next().unwrap_or_default();
    let is_bracketed = [('[', ']'), ('(', ')'), ('{', '}')].iter().any(|(open, close)| {
        behind.starts_with(*open) && (name.is_empty() || rest[..end].contains(*close))
    });
    is_bracketed || name.len() == end && name.len() > owner.len() && has(OWNERS, owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        find(text).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn values_end_where_the_next_name_begins() {
        for (text, expected) in [
            ("password: hunter", "hunter"),
            ("password=a,b;c&d", "a,b;c&d"),
            ("Server=x;Pwd=abc;Encrypt=yes", "abc"),
            ("f(user='x', password='a, b', port=3)", "a, b"),
            (r#"{\"api_key\": \"abc\", \"n\": 1}"#, "abc"),
            ("apiKey: 'it\\'s', x", "it\\'s"),
            ("Authorization: Bearer abc", "abc"),
            ("Cookie: a=b; sid=c", "a=b; sid=c"),
            ("PASSPHRASE=one two", "one two"),
            ("run --token abc --steps 3", "abc"),
            ("['--token', 'abc', '--x']", "abc"),
            ("api_key ........ abc", "abc"),
            ("(password=abc)", "abc"),
            ("/o?sv=1&sig=a%2Bc&se=2", "a%2Bc"),
            ("db:\n  password:\n    abc\n", "abc"),
            ("<password>a b</password>", "a b"),
            ("<add key=\"password\" value=\"abc\"/>", "abc"),
            ("| password | abc |", "abc"),
            ("api_token\tabc", "abc"),
            ("secret    abc  x", "abc"),
            ("mysql -uroot -pabc", "abc"),
            ("API Key = abc", "abc"),
        ] {
            let found = found(text);
            assert!(found.contains(&expected), "{text}: {found:?}");
        }
    }

    #[test]
    fn code_and_prose_are_no_values() {
        for text in [
            "sorted(params, key=lambda p: p.name)",
            "token = tokens[0]; KeyError: 'communication'",
            "token = os.environ[\"X\"]; password = getpass.getpass()",
            "def f(token: str = None, password: Optional[str] = None)",
            "if token == \"abc\":",
            "api_key=None, password='', token=<secret>, secret: ${SECRET}",
            "sort key: communication, keys: [1, 2], tokens: 12",
            "AttributeError: 'NoneType' object has no attribute 'x'",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn random_tokens_are_found_and_names_digests_and_paths_are_not() {
        for token in [
            "xK9pQ2mZ7vB4nR8tL3wY",
            "k3j9x0q2w8e7r6t5y4u1i0o9p8",
            "aB3dE5gH7jK9+mN1pQ2rS4tU6/vW8xY0zA==",
        ] {
            assert_eq!(found(&format!("got {token} there")), [token]);
        }
        for text in [
            "DistributedDataParallel AccumulateGradBackward0 zero_to_fp32_state_dict_keys_by_name",
            "sha256:5f2b8a1c9d3e4f60718293a4b5c6d7e8f90123456789abcdef0123456789abcd",
            "/data/checkpoints/global_step1000/mp_rank_00_model_states.pt 20261124T221358Z-19955",
            "_ZN4c10d16ProcessGroupNCCL8WorkNCCL17checkForNCCLErrorsEv NVIDIA-H100-80GB-HBM3-MIG-1g-10gb",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }
}
