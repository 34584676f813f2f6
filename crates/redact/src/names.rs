//! The names to which secrets are assigned: names of variables, settings, headers and flags.

/// The certainty with which a name shows that its value is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tells {
    /// The value is a secret, whatever it looks like.
    Surely,
    /// The value is a secret only if it looks random: a `key` may also be the key of a dictionary.
    Maybe,
}

/// The last words of names that surely belong to secrets.
const SURE: &str = "apikey apitoken authtoken authorization accesskey bearer connectionstring connstr cookie cookies \
                    credential credentials creds dbpass dsn jwt otp passcode passphrase passwd password passwords \
                    passwort privatekey pswd pw pwd secret secrets secretkey token tokens userpass webhook";

/// The second-to-last words of names that surely belong to secrets, unless the last word is one of [`OTHERS`]:
/// `secret-id`, but not `password_file`.
const STRONG: &str = "passphrase passwd password secret";
const OTHERS: &str =
    "class count dir expires file length manager max min name path policy store type version";

/// The last words of names that may belong to secrets or to other values.
const AMBIGUOUS: &str = "auth key keys pass pat pin salt session sig signature";

/// The words before `key` or `keys` in names that surely belong to secrets, such as `ssh_key`.
const OF_A_LOCK: &str = "access account admin aes api app application auth aws azure client comet consumer deploy \
                         encrypt encryption gcp gpg hf hmac hub licence license master openai pgp private rsa secret \
                         service session shared sign signing ssh ssl storage subscription tls wandb";

/// The words before `tokens` in names of values that are not secrets, because the tokens are parts of a text.
const OF_A_TEXT: &str = "input max min new num of output per prompt special target total";

/// The last words of names that only say how a value is encoded; these words are skipped.
const ENCODINGS: &str = "b64 base base64 hex plain raw str string text url value";

/// The ends of compound words that are names of secrets: `pgpassword`, `githubtoken`.
const GLUED: &[&str] = &["apikey", "passphrase", "passwd", "password", "secret", "token"];

/// True if a list of words has this word.
pub(super) fn has(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|it| it == word)
}

/// The certainty with which a name belongs to a secret; `None` if the name does not belong to a secret.
pub(super) fn tells(name: &str) -> Option<Tells> {
    let mut words = words(name);
    if words.concat().ends_with("connectionstring") {
        return Some(Tells::Surely);
    }
    let is_encoding =
        |word: &String| has(ENCODINGS, word) || word.bytes().all(|it| it.is_ascii_digit());
    while words.len() > 1 && words.last().is_some_and(is_encoding) {
        words.pop();
    }
    let last = words.pop()?;
    let before = words.pop().unwrap_or_default();
    if last == "tokens" && has(OF_A_TEXT, &before) {
        return None;
    }
    let is_key = ["key", "keys"].contains(&last.as_str()) && has(OF_A_LOCK, &before);
    let is_strong = has(STRONG, &before) && !has(OTHERS, &last);
    let is_sure =
        is_strong || has(SURE, &last) || GLUED.iter().any(|end| last.ends_with(end)) || is_key;
    if is_sure { Some(Tells::Surely) } else { has(AMBIGUOUS, &last).then_some(Tells::Maybe) }
}

/// Returns true if the name of an environment variable shows that the value is a secret. Any word of the name can show
/// that. If the value is a path, the name must surely belong to a secret, and must not be `PWD` or `OLDPWD`.
pub(super) fn is_secret_variable(name: &str, value: &str) -> bool {
    if is_path(value) {
        return tells(name) == Some(Tells::Surely) && !is_directory(name);
    }
    let is_word = |word: &String| {
        let is_end = GLUED.iter().any(|end| word.ends_with(end));
        is_end || has(SURE, word) || has("auth key keys pass pat", word)
    };
    words(name).iter().any(is_word)
}

/// Returns true if a value is the path of a directory, under a name that can mean a directory or a password (`pwd`).
pub(super) fn is_place(name: &str, value: &str) -> bool {
    is_directory(name) && is_path(value)
}

fn is_directory(name: &str) -> bool {
    has("pwd oldpwd", &words(name).concat())
}

fn is_path(value: &str) -> bool {
    value.starts_with(['/', '~'])
}

/// Returns true if the value under this name is the rest of the line: the value of an HTTP header, or a passphrase,
/// which may have spaces.
pub(super) fn is_of_a_line(name: &str) -> bool {
    let words = words(name);
    has("authorization cookie proxyauthorization setcookie", &words.concat())
        || words.iter().any(|word| word.ends_with("passphrase"))
}

/// Returns true if a number under this name is secret: a PIN is, but a number of tokens is not.
pub(super) fn may_be_a_number(name: &str) -> bool {
    let ends = ["password", "passwd", "passcode", "pwd", "secret", "apikey", "accesskey", "pin"];
    ends.iter().any(|end| words(name).concat().ends_with(end))
}

/// The words of a name, in lowercase: `apiKey` and `API_KEY` both have the words `api` and `key`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() || c.is_ascii_uppercase() && before.is_ascii_lowercase() {
            words.push(String::new());
        }
        if let (true, Some(word)) = (c.is_ascii_alphanumeric(), words.last_mut()) {
            word.push(c.to_ascii_lowercase());
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
    fn names_tell_by_their_last_word() {
        let all = |names: &str, expected| {
            names.split_whitespace().for_each(|name| assert_eq!(tells(name), expected, "{name}"));
        };
        all(
            "password db_pwd apiKey API_KEY X-Api-Key SharedAccessKey AccountKey client-secret githubtoken PGPASSWORD \
             _authToken SECRET_KEY_BASE secretId Cookie SENTRY_DSN STORAGE_CONNECTION_STRING TOKEN_2 identitytoken hf_tokens",
            Some(Tells::Surely),
        );
        all("key auth sort_key pass signature", Some(Tells::Maybe));
        all(
            "KeyError tokenizer TOKENIZERS_PARALLELISM token_type keyboard monkey SharedAccessKeyName password_file bypass author \
             max_new_tokens num_tokens special-tokens total",
            None,
        );
    }

    #[test]
    fn variables_tell_by_any_word_and_paths_only_by_the_last() {
        for name in "AWS_SECRET_ACCESS_KEY GITHUBTOKEN my-password DBPASS ALERT_WEBHOOK".split(' ')
        {
            assert!(is_secret_variable(name, "x"), "{name}");
        }
        for name in "PATH NCCL_DEBUG KEYBOARD TOKENIZERS_PARALLELISM HOME".split(' ') {
            assert!(!is_secret_variable(name, "x"), "{name}");
        }
        for name in "PWD OLDPWD SSH_AUTH_SOCK HF_TOKEN_PATH".split(' ') {
            assert!(!is_secret_variable(name, "/srv/x"), "{name}");
        }
        assert!(
            is_secret_variable("MY_SECRET", "/+aB3dE5gH7jK9")
                && is_secret_variable("PWD", "hunter")
        );
    }
}
