//! The names to which secrets are assigned: names of variables, settings, headers and flags.

/// The certainty with which a name shows that its value is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tells {
    /// The value is a secret, whatever it looks like.
    Surely,
    /// The value is a secret only if it looks random: a `key` may also be the key of a dictionary.
    Maybe,
}

/// The last words of names that are surely those of secrets.
const SECRETS: &[&str] = &[
    "apikey",
    "apitoken",
    "authtoken",
    "authorization",
    "accesskey",
    "bearer",
    "connectionstring",
    "connstr",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "creds",
    "dbpass",
    "dsn",
    "jwt",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "privatekey",
    "pwd",
    "secret",
    "secrets",
    "secretkey",
    "token",
    "tokens",
    "userpass",
    "webhook",
];

/// The last words of names that are as often those of other values.
const AMBIGUOUS: &[&str] =
    &["auth", "key", "keys", "pass", "pat", "pin", "salt", "session", "sig", "signature"];

/// The words before `key` with which a name is surely that of a secret.
const OF_A_LOCK: &[&str] = &[
    "access",
    "account",
    "admin",
    "aes",
    "api",
    "app",
    "application",
    "auth",
    "aws",
    "azure",
    "client",
    "comet",
    "consumer",
    "deploy",
    "encrypt",
    "encryption",
    "gcp",
    "gpg",
    "hf",
    "hmac",
    "hub",
    "license",
    "licence",
    "master",
    "openai",
    "pgp",
    "private",
    "rsa",
    "secret",
    "service",
    "session",
    "shared",
    "sign",
    "signing",
    "ssh",
    "ssl",
    "storage",
    "subscription",
    "tls",
    "wandb",
];

/// The words before `tokens` with which the tokens are those of a text, and not secrets.
const OF_A_TEXT: &[&str] = &[
    "input", "max", "min", "new", "num", "of", "output", "per", "prompt", "special", "target",
    "total",
];

/// The ends of compound words that are names of secrets: `pgpassword`, `dpassword`, `githubtoken`.
const GLUED: &[&str] = &["apikey", "passphrase", "passwd", "password", "secret", "token"];

/// The last words of names that only say how a value is encoded; these words are skipped.
const FORMS: &[&str] =
    &["b64", "base", "base64", "hex", "plain", "raw", "str", "string", "text", "url", "value"];

/// The URL parameters that are secrets, in addition to those with the name of a secret.
const PARAMETERS: &[&str] =
    &["auth", "awsaccesskeyid", "code", "key", "pass", "sas", "session", "sig", "signature"];

/// The HTTP headers whose whole value is secret.
const HEADERS: &[&str] =
    &["authorization", "cookie", "proxyauthorization", "setcookie", "xamzsecuritytoken"];

/// The certainty with which a name is that of a secret; `None` if it is not the name of a secret.
pub(super) fn tells(name: &str) -> Option<Tells> {
    let mut words = words(name);
    if words.len() > 1 && words.join("").ends_with("connectionstring") {
        return Some(Tells::Surely);
    }
    let is_form = |word: &String| {
        FORMS.contains(&word.as_str()) || word.bytes().all(|byte| byte.is_ascii_digit())
    };
    while words.len() > 1 && words.last().is_some_and(is_form) {
        words.pop();
    }
    let last = words.last()?.as_str();
    let before = words.len().checked_sub(2).map(|at| words[at].as_str());
    // These are tokens of a text, and not of a service: `max_new_tokens`, "weights of target tokens".
    if last == "tokens" && before.is_some_and(|word| OF_A_TEXT.contains(&word)) {
        return None;
    }
    let of_a_lock = before.is_some_and(|word| OF_A_LOCK.contains(&word));
    if SECRETS.contains(&last)
        || GLUED.iter().any(|end| last.ends_with(end))
        || (["key", "keys"].contains(&last) && of_a_lock)
        || (last == "signature" && before == Some("amz"))
    {
        Some(Tells::Surely)
    } else {
        AMBIGUOUS.contains(&last).then_some(Tells::Maybe)
    }
}

/// Returns true if the value of an environment variable is a secret, which any word of the name can show. If the value
/// is a path (of a socket or a file), only a name that is surely that of a secret counts, and never the name of a
/// directory (`PWD`).
pub(super) fn is_secret_variable(name: &str, value: &str) -> bool {
    let is_word = |word: &String| {
        let word = word.as_str();
        SECRETS.contains(&word)
            || ["auth", "key", "keys", "pass", "pat"].contains(&word)
            || GLUED.iter().any(|end| word.ends_with(end))
    };
    match is_path(value) {
        true => tells(name) == Some(Tells::Surely) && !is_directory(name),
        false => words(name).iter().any(is_word),
    }
}

/// Returns true if this is the name of a working directory: `PWD`, which is also a name of passwords, or `OLDPWD`.
pub(super) fn is_directory(name: &str) -> bool {
    ["pwd", "oldpwd"].contains(&plain(name).as_str())
}

/// Returns true if a value looks like an absolute path.
pub(super) fn is_path(value: &str) -> bool {
    value.starts_with(['/', '~'])
}

/// Returns true if the URL parameter with this name, in any spelling, is secret.
pub(super) fn is_secret_parameter(name: &str) -> bool {
    let plain = plain(name);
    PARAMETERS.contains(&plain.as_str())
        || plain.starts_with("xamz") && !plain.ends_with("date") && !plain.ends_with("expires")
        || plain.starts_with("xgoog") && plain.ends_with("signature")
        || tells(name) == Some(Tells::Surely)
}

/// Returns true if this is the name of an HTTP header whose whole value is secret.
pub(super) fn is_header(name: &str) -> bool {
    HEADERS.contains(&plain(name).as_str())
}

/// Returns true if the value under this name may contain spaces, as a passphrase does.
pub(super) fn is_of_words(name: &str) -> bool {
    words(name).iter().any(|word| word.ends_with("passphrase"))
}

/// Returns true if a number under this name is secret: a PIN is, but a number of tokens is not.
pub(super) fn may_be_a_number(name: &str) -> bool {
    let ends = ["password", "passwd", "passcode", "pwd", "secret", "apikey", "accesskey", "pin"];
    ends.iter().any(|end| plain(name).ends_with(end))
}

/// The letters and digits of a name, in lowercase.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// The words of a name, in lowercase: `apiKey` and `API_KEY` both have the words `api` and `key`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        let starts =
            !c.is_ascii_alphanumeric() || (c.is_ascii_uppercase() && before.is_ascii_lowercase());
        if starts && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if c.is_ascii_alphanumeric() {
            words.last_mut().unwrap_or(&mut String::new()).push(c.to_ascii_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_text_are_no_secrets() {
        for name in ["max_new_tokens", "weights of target tokens", "num_tokens", "special-tokens"] {
            assert_eq!(tells(name), None, "{name}");
        }
        for name in ["tokens", "hf_tokens", "api tokens", "maxToken"] {
            assert!(tells(name).is_some(), "{name}");
        }
    }

    #[test]
    fn names_tell_by_their_last_word() {
        for name in [
            "password",
            "db_pwd",
            "apiKey",
            "API_KEY",
            "X-Api-Key",
            "SharedAccessKey",
            "AccountKey",
            "client-secret",
            "githubtoken",
            "PGPASSWORD",
            "_authToken",
            "SECRET_KEY_BASE",
            "Cookie",
            "SENTRY_DSN",
            "STORAGE_CONNECTION_STRING",
            "TOKEN_2",
            "comet api_key",
            "identitytoken",
        ] {
            assert_eq!(tells(name), Some(Tells::Surely), "{name}");
        }
        for name in ["key", "auth", "sort_key", "pass", "signature"] {
            assert_eq!(tells(name), Some(Tells::Maybe), "{name}");
        }
        for name in [
            "KeyError",
            "tokenizer",
            "TOKENIZERS_PARALLELISM",
            "token_type",
            "keyboard",
            "monkey",
            "random_ltd_layer_token_lr_schedule",
            "SharedAccessKeyName",
            "bypass",
            "author",
            "total",
        ] {
            assert_eq!(tells(name), None, "{name}");
        }
    }

    #[test]
    fn variables_tell_by_any_word() {
        for name in [
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "GITHUBTOKEN",
            "my-password",
            "OPENAI_APIKEY",
            "DBPASS",
            "HTTP_AUTHORIZATION",
            "ALERT_WEBHOOK",
        ] {
            assert!(is_secret_variable(name, "x"), "{name}");
        }
        for name in ["PATH", "NCCL_DEBUG", "KEYBOARD", "MONKEY", "TOKENIZERS_PARALLELISM", "HOME"] {
            assert!(!is_secret_variable(name, "x"), "{name}");
        }
    }

    #[test]
    fn a_path_is_a_secret_only_under_the_name_of_one() {
        for name in ["PWD", "OLDPWD", "SSH_AUTH_SOCK", "HF_TOKEN_PATH", "XDG_SESSION_CLASS"] {
            assert!(!is_secret_variable(name, "/srv/x"), "{name}");
        }
        assert!(is_secret_variable("MY_SECRET", "/+aB3dE5gH7jK9"));
        assert!(is_secret_variable("PWD", "hunter"));
    }

    #[test]
    fn parameters_of_urls_tell_more() {
        for name in ["sig", "X-Amz-Signature", "X-Goog-Signature", "key", "code", "access_token"] {
            assert!(is_secret_parameter(name), "{name}");
        }
        for name in ["sv", "se", "X-Amz-Expires", "v", "page", "q"] {
            assert!(!is_secret_parameter(name), "{name}");
        }
    }
}
