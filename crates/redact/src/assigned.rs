//! Finds values that are assigned to the name of a secret: `password: x`, `apiKey='x'`, `--token x`, in a header, or in
//! a URL parameter.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::keys::{self, Tells};

/// Values under the names of secrets that are not secrets, and names of types.
const NO_SECRETS: &[&str] = &[
    "any",
    "auto",
    "bool",
    "bytes",
    "default",
    "disabled",
    "dict",
    "empty",
    "enabled",
    "false",
    "float",
    "int",
    "invalid",
    "missing",
    "nil",
    "no",
    "none",
    "null",
    "optional",
    "required",
    "secretstr",
    "set",
    "str",
    "string",
    "true",
    "undefined",
    "unset",
    "yes",
];

/// The smallest number of characters of a secret.
const LEAST: usize = 3;

/// A name and a sign of assignment. DeepSpeed prints settings with dots as the sign: `api_key ....... x`.
static NAMES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let name = r#"(?P<name>[A-Za-z_][\w.-]*)(?P<quote>\\*["'`])?"#;
    let sign = r"[ \t]*(?:(?P<compares>==)|=>|:=|=|:|[ \t]\.{3,}[ \t])[ \t]*";
    Regex::new(&format!("{name}{sign}")).ok()
});

/// A flag whose value is the next word, or the next item of a list.
static FLAGS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"(?:^|[\s"'`=,\[(])--?(?P<name>[A-Za-z][\w-]*)(?:(?P<quote>\\*["'`]),?)?[ \t]+"#)
        .ok()
});

/// The parameters of a URL.
static PARAMETERS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"[?&;](?P<name>[\w.-]+)=(?P<value>[^&\s"'`<>#\\]+)"#).ok());

/// Passwords after words without a sign of assignment.
static WORDS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let words = [
        // A line of `~/.netrc`.
        r"\blogin\s+\S+\s+password\s+(?P<value1>\S+)",
        r"\bsshpass\s+-p\s*(?P<value2>\S+)",
        r"\b(?:docker|podman|helm|oras)\b[^\n]*\blogin\b[^\n]*\s-p\s*(?P<value3>\S+)",
        r#"\bcurl\b[^\n]*\s(?:-u|--user)[ =]["']?[^\s:"']+:(?P<value4>[^\s"']+)"#,
        r#"(?i)\b(?:bearer|basic)\s+(?P<value5>[A-Za-z0-9._~+/-]{16,}=*)"#,
    ];
    Regex::new(&words.join("|")).ok()
});

/// The schemes before the secret part of an `Authorization` header.
const SCHEMES: &[&str] = &["apikey", "basic", "bearer", "digest", "negotiate", "token"];

/// The names of objects with which expressions for stored values begin, as in `self.token`.
const OWNERS: &[&str] = &[
    "args", "cfg", "config", "env", "environ", "kwargs", "opts", "os", "params", "self", "settings",
];

/// The byte ranges of all values that are assigned to the name of a secret.
pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for name in NAMES.iter().flat_map(|names| names.captures_iter(text)) {
        if name.name("compares").is_none() {
            found.extend(value(text, &name, false));
        }
    }
    for flag in FLAGS.iter().flat_map(|flags| flags.captures_iter(text)) {
        found.extend(value(text, &flag, true));
    }
    for parameter in PARAMETERS.iter().flat_map(|it| it.captures_iter(text)) {
        if keys::is_secret_parameter(&parameter["name"]) {
            found.extend(
                parameter.name("value").map(|it| it.range()).filter(|it| it.len() >= LEAST),
            );
        }
    }
    for words in WORDS.iter().flat_map(|words| words.captures_iter(text)) {
        found.extend(words.iter().skip(1).flatten().map(|it| it.range()));
    }
    found.retain(|range| !text[range.clone()].starts_with('<'));
    found
}

/// Returns true if the value under this name is secret.
pub(super) fn is_secret_under(name: &str, value: &str) -> bool {
    let is_directory = keys::is_directory(name) && keys::is_path(value);
    !is_directory && keys::tells(name).is_some_and(|tells| is_secret(value, tells))
}

/// Returns true if a value under the name of a secret looks like a secret.
pub(super) fn is_secret(value: &str, tells: Tells) -> bool {
    let word = value.to_lowercase();
    let nothing = value.chars().count() < LEAST
        || NO_SECRETS.contains(&word.as_str())
        || value.starts_with(['<', '$', '{', '%'])
        || value.chars().all(|c| matches!(c, '*' | 'x' | 'X' | '.' | '-' | '_'));
    !nothing && (tells == Tells::Surely || is_drawn(value))
}

/// The byte range of the value after a name; `None` if the value is not secret.
fn value(text: &str, name: &regex::Captures<'_>, is_flag: bool) -> Option<Range<usize>> {
    keys::tells(&name["name"])?;
    let start = name.get(0)?.end();
    let header = !is_flag && keys::is_header(&name["name"]);
    let quote = name.name("quote").map(|it| it.as_str());
    let mut range = match opening(&text[start..]) {
        Some(quote) => {
            let inside = start + quote.len();
            inside..inside + closing(&text[inside..], quote)
        }
        None if is_flag && text[start..].starts_with('-') => return None,
        None if header || keys::is_of_words(&name["name"]) => start..start + line(&text[start..]),
        None => {
            // A quoted text is a value; a text without quotes may be an expression in code, which is not secret.
            if is_code(&text[start..]) {
                return None;
            }
            start..start + word(&text[start..], quote.is_some())
        }
    };
    if header {
        let scheme = |scheme: &&&str| {
            let begins = text[range.clone()].get(..scheme.len());
            begins.is_some_and(|begins| begins.eq_ignore_ascii_case(scheme))
                && text[range.start + scheme.len()..range.end].starts_with(' ')
        };
        if let Some(scheme) = SCHEMES.iter().find(scheme) {
            range.start += scheme.len() + 1;
        }
    }
    is_secret_under(&name["name"], &text[range.clone()]).then_some(range)
}

/// The quotation mark at the beginning of a value, with its backslashes; `None` for a value without quotes.
fn opening(rest: &str) -> Option<&str> {
    let escapes = rest.len() - rest.trim_start_matches('\\').len();
    let quoted = rest[escapes..].starts_with(['"', '\'', '`']);
    quoted.then(|| &rest[..=escapes])
}

/// The number of bytes up to the closing quotation mark, or to the end of the line.
fn closing(rest: &str, quote: &str) -> usize {
    let mut at = 0;
    while at < rest.len() {
        let here = &rest[at..];
        if here.starts_with(quote) || here.starts_with('\n') {
            return at;
        }
        let escaped = quote.len() == 1 && here.starts_with('\\');
        let mut characters = here.chars();
        let first = characters.next().map_or(1, char::len_utf8);
        let second = characters.next().map_or(0, char::len_utf8);
        at += if escaped { first + second } else { first };
    }
    at.min(rest.len())
}

/// The number of bytes to the end of the line, or to the next quotation mark.
fn line(rest: &str) -> usize {
    rest.find(['\n', '\r', '"', '\'', '`']).unwrap_or(rest.len())
}

/// The number of bytes of a value without quotes. A punctuation mark may be part of a password, unless the mark is at
/// the end or is followed by another name.
fn word(rest: &str, in_list: bool) -> usize {
    let end = rest.find(|c: char| c.is_whitespace() || "\"'`<>".contains(c)).unwrap_or(rest.len());
    let mut end = end;
    for (at, mark) in rest[..end].char_indices() {
        let behind = &rest[at + mark.len_utf8()..];
        if ",;&|".contains(mark) && (in_list || is_name(behind)) {
            end = at;
            break;
        }
    }
    rest[..end].trim_end_matches([',', ';', ')', ']', '}']).len()
}

/// Returns true if the text begins with a name and a sign of assignment.
fn is_name(rest: &str) -> bool {
    let rest = rest.trim_start();
    let name = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "_-. ".contains(c));
    rest.len() > name.len() && name.starts_with(['=', ':'])
}

/// Returns true if a value looks random: it has letters and digits, unlike most code such as `key=lambda` or
/// `tokens[0]`.
fn is_drawn(value: &str) -> bool {
    let has = |what: fn(char) -> bool| value.contains(what);
    let is_call = value.contains(['(', '[', '.', '/', ' ']);
    value.len() >= 8 && has(|c| c.is_ascii_digit()) && has(|c| c.is_ascii_alphabetic()) && !is_call
}

/// Returns true if the text begins with an expression: `tokens[0]`, `getpass()`, `self.token` or `["a", "b"]`.
fn is_code(rest: &str) -> bool {
    let end = rest.find(|c: char| c.is_whitespace() || ",;".contains(c)).unwrap_or(rest.len());
    let behind = rest.trim_start_matches(|c: char| c.is_ascii_alphabetic() || "_.".contains(c));
    let name = &rest[..rest.len() - behind.len()];
    let owner = name.split('.').next().unwrap_or_default();
    let brackets = [('[', ']'), ('(', ')'), ('{', '}')];
    let is_bracketed = brackets.iter().any(|(open, close)| {
        behind.starts_with(*open) && (name.is_empty() || rest[..end].contains(*close))
    });
    is_bracketed || name.len() == end && name.len() > owner.len() && OWNERS.contains(&owner)
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
}
