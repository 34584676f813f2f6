//! Secrets in every part of a run that a bug report takes something from.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::calls::Call;
use super::{Campaign, Case, Survival, fixtures};

/// The campaign that plants every form of a secret in every place of a run.
pub const CAMPAIGN: Campaign = Campaign {
    name: "secrets",
    faults: "secrets in environment, configuration, arguments and logs, of which none may leave",
    full: FORMS.len() * PLACES.len(),
    short: 30,
    try_case,
};

/// A text with `@` in place of a secret, and the characters that the secret consists of.
struct Form {
    text: &'static str,
    /// The prefix by which such a secret is recognised; the rest is drawn at random.
    prefix: &'static str,
    alphabet: &'static str,
    length: usize,
    /// True if the secret is the name of a user or of a machine. Such a name stays in the exports that users
    /// make for themselves.
    is_name: bool,
}

const HEX: &str = "0123456789abcdef";
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";
const ALNUM: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const UPPER: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const PUNCTUATED: &str = "abcdefgh0123456789!#%&()*+-.:;=?[]^_~{}";

const fn form(
    text: &'static str,
    prefix: &'static str,
    alphabet: &'static str,
    length: usize,
) -> Form {
    Form { text, prefix, alphabet, length, is_name: false }
}

const fn name(text: &'static str, alphabet: &'static str, length: usize) -> Form {
    Form { text, prefix: "", alphabet, length, is_name: true }
}

/// Forms of secrets, with words around the secret.
const FORMS: &[Form] = &[
    form("password: @", "", ALNUM, 14),
    form("password=@", "", PUNCTUATED, 16),
    form("passwd = '@'", "", LETTERS, 12),
    form("Pwd=@;Server=db", "", ALNUM, 12),
    form("PASSPHRASE=@", "", LETTERS, 14),
    form("apiKey: '@'", "", ALNUM, 32),
    form("api_key=\"@\"", "", HEX, 40),
    form("client_secret: @", "", LETTERS, 24),
    form("--token @", "", ALNUM, 24),
    form("--password=@", "", LETTERS, 16),
    form("--api-key '@'", "", HEX, 32),
    form("Authorization: Bearer @", "", ALNUM, 30),
    form("Authorization: Basic @", "", ALNUM, 28),
    form("authorization: token @", "", ALNUM, 28),
    form("X-Api-Key: @", "", ALNUM, 32),
    form("X-Auth-Token: @", "", LETTERS, 24),
    form("Cookie: session=@; theme=dark", "", ALNUM, 32),
    form("Set-Cookie: sid=@; HttpOnly", "", HEX, 32),
    form("postgres://train:@@db.example:5432/runs", "", LETTERS, 12),
    form("DATABASE_URL=mysql://train:@@10.1.2.3/runs", "", ALNUM, 12),
    form("redis://:@@cache.example:6379/0", "", ALNUM, 16),
    form("SENTRY_DSN=https://@@o1.ingest.sentry.io/2", "", HEX, 32),
    form("https://user:@@proxy.example:3128", "", PUNCTUATED, 12),
    form("https://bucket.s3.amazonaws.com/x?X-Amz-Signature=@&X-Amz-Date=1", "", HEX, 64),
    form("https://x.blob.core.windows.net/c?sv=2022&sig=@&se=2030", "", ALNUM, 43),
    form("DefaultEndpointsProtocol=https;AccountName=x;AccountKey=@==;", "", ALNUM, 86),
    form("{\"auths\": {\"registry.example\": {\"auth\": \"@\"}}}", "", ALNUM, 40),
    form("aws_secret_access_key = @", "", ALNUM, 40),
    form("the id is @ today", "AKIA", UPPER, 16),
    form("found @ in it", "ghp_", ALNUM, 36),
    form("found @ in it", "github_pat_", ALNUM, 82),
    form("found @ in it", "glpat-", ALNUM, 20),
    form("found @ in it", "hf_", ALNUM, 34),
    form("found @ in it", "sk-proj-", ALNUM, 48),
    form("found @ in it", "sk_live_", ALNUM, 24),
    form("found @ in it", "rk_live_", ALNUM, 24),
    form("found @ in it", "xoxb-2345678901-2345678901-", ALNUM, 24),
    form("found @ in it", "SG.abcdefghijklmnopqrstuv.", ALNUM, 43),
    form("TWILIO_AUTH_TOKEN=@", "", HEX, 32),
    form("found @ in it", "SK", HEX, 32),
    form("found @ in it", "gsk_", ALNUM, 52),
    form("found @ in it", "nvapi-", ALNUM, 64),
    form("found @ in it", "dapi", HEX, 32),
    form("found @ in it", "dop_v1_", HEX, 64),
    form("found @ in it", "dckr_pat_", ALNUM, 27),
    form("found @ in it", "hvs.", ALNUM, 90),
    form("found @ in it", "AIza", ALNUM, 35),
    form("found @ in it", "ya29.", ALNUM, 60),
    form("found @ in it", "GOCSPX-", ALNUM, 28),
    form("https://api.telegram.org/bot123456789:@/send", "AA", ALNUM, 33),
    form("https://discord.com/api/webhooks/123456789012345678/@", "", ALNUM, 68),
    form("https://hooks.slack.com/services/T01234567/B01234567/@", "", ALNUM, 24),
    form("found @ in it", "npm_", ALNUM, 36),
    form("found @ in it", "pypi-AgEIcHlwaS5vcmc", ALNUM, 60),
    form("wandb: using key @", "", HEX, 40),
    form("WANDB_API_KEY=@", "", HEX, 40),
    form("COMET_API_KEY=@", "", ALNUM, 25),
    form("found @ in it", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.", ALNUM, 43),
    form("-----BEGIN RSA PRIVATE KEY-----\n@\n-----END RSA PRIVATE KEY-----", "", ALNUM, 64),
    form(
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n@\n-----END PGP PRIVATE KEY BLOCK-----",
        "",
        ALNUM,
        64,
    ),
    name("MASTER_ADDR=@", LETTERS, 12),
    name("[W] connect to [@]:29500 failed", LETTERS, 12),
    name("mail to @@cluster.example", LETTERS, 9),
];

/// The forms of a report on standard output.
const FORMATS: &[&str] = &["full", "concise", "json", "markdown", "junit", "github", "sarif"];

/// A place where a secret may stand.
struct Place {
    name: &'static str,
    /// Plants the secret: `text` has the secret within words, `secret` is the bare secret.
    plant: fn(&mut Planting, text: &str, secret: &str),
}

/// The parts of a run in which a secret may be planted.
struct Planting {
    records: Vec<Value>,
    logs: Vec<(&'static str, String)>,
    variables: Vec<(String, String)>,
    /// True if the secret is the name of a user or of a machine.
    is_name: bool,
    rng: fastrand::Rng,
}

/// All places where a secret may stand.
const PLACES: &[Place] = &[
    Place { name: "log of a rank", plant: Planting::log },
    Place { name: "variable", plant: Planting::variable },
    Place { name: "DeepSpeed file", plant: Planting::deepspeed_file },
    Place { name: "message of a rank", plant: Planting::message },
    Place { name: "facts of an engine", plant: Planting::fact },
    Place { name: "arguments", plant: Planting::argument },
];

impl Planting {
    fn log(&mut self, text: &str, _: &str) {
        let names = ["rank-0.stderr.log", "rank-1.stdout.log", "host.stderr.log"];
        let line = format!("step 0 is over\n{text}\nstep 1 begins\n");
        self.logs.push((names[self.rng.usize(..names.len())], line));
    }

    fn variable(&mut self, text: &str, secret: &str) {
        // Prefixes of the variables whose values the report shows.
        let prefixes = ["NCCL_", "TORCH_", "ZPROBE_", "DS_", "MASTER_"];
        let prefix = prefixes[self.rng.usize(..prefixes.len())];
        let (ending, value) =
            [("NOTE", text), ("AUTH", secret), ("PASSPHRASE", secret)][self.rng.usize(..3)];
        self.variables.push((format!("{prefix}X_{ending}"), value.to_owned()));
        self.log(&format!("the environment says {value} here"), secret);
    }

    fn deepspeed_file(&mut self, text: &str, secret: &str) {
        let keys = ["api_key", "apiKey", "token", "password", "secret", "auth"];
        let key = keys[self.rng.usize(..keys.len())];
        let mut config = json!({
            "train_batch_size": 8,
            "comet": {"enabled": true},
            "wandb": {"note": text},
            "gradient_accumulation_steps": 2,
        });
        // A name of a user or a machine is no API key or password.
        if !self.is_name {
            config["comet"][key] = json!(secret);
        }
        self.records[0]["event"]["spec"]["deepspeed_config"] = config;
        self.records[0]["event"]["spec"]["engine"] = json!("deepspeed");
    }

    fn message(&mut self, text: &str, _: &str) {
        let event = if self.rng.bool() {
            json!({"type": "failed", "message": format!("RuntimeError: {text}")})
        } else {
            json!({"type": "stderr", "rank": 1, "tail": format!("Traceback:\n{text}\n")})
        };
        self.append(event);
    }

    fn fact(&mut self, text: &str, secret: &str) {
        let event = if self.rng.bool() {
            json!({"type": "engine-described", "facts": {"setting": text, "api_key": secret}})
        } else {
            json!({"type": "not-observed", "what": "the norm", "why": text})
        };
        self.append(event);
    }

    /// Plants the secret in a command line, as the log of a launcher shows it.
    fn argument(&mut self, text: &str, secret: &str) {
        let command = format!("['python3', 'train.py', '--lr', '1', '--auth-token', '{secret}']");
        self.log(&format!("launch: cmd = {command}\nlaunch: {text}"), secret);
        self.fact(&format!("argv: {command}"), secret);
    }

    fn append(&mut self, event: Value) {
        let rank = if event["type"] == "stderr" { Value::Null } else { json!(0) };
        let run = self.records[0]["run"].clone();
        self.records.push(
            json!({"v": 1, "run": run, "rank": rank, "seq": 99999, "t_ns": 0, "event": event}),
        );
    }
}

fn try_case(case: &mut Case) -> Result<Survival> {
    let form = &FORMS[case.number % FORMS.len()];
    let place = &PLACES[case.number / FORMS.len()];
    let alphabet: Vec<char> = form.alphabet.chars().collect();
    let drawn: String = (0..form.length).map(|_| *case.one_of(&alphabet)).collect();
    let secret = format!("{}{drawn}", form.prefix);
    // Only the first `@` stands for the secret: a second one belongs to a URL.
    let text = form.text.replacen('@', &secret, 1);

    let fixture = fixtures::named("rank-dies")?;
    let records =
        (0..fixture.lines.len()).map(|line| fixture.record(line)).collect::<Result<_>>()?;
    let mut planting = Planting {
        records,
        logs: Vec::new(),
        variables: Vec::new(),
        is_name: form.is_name,
        rng: case.rng.fork(),
    };
    (place.plant)(&mut planting, &text, &secret);
    let Planting { records, logs, variables, .. } = planting;
    let run = case.dir.join("run");
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    fixtures::write(&run, lines.as_bytes())?;
    for (name, log) in logs {
        fs::write(run.join(name), log).context("cannot write a log")?;
    }

    let with_variables = |mut call: Call| {
        for (name, value) in &variables {
            call = call.env(name, value);
        }
        call
    };
    let call = case.zprobe(["report", "run", "--out", "a.zip", "--force", "--with-logs"])?;
    with_variables(call).ended()?.code_of(&[0])?;
    let unzip = case.call(Path::new("python3"));
    let unzipped = unzip.args(["-m", "zipfile", "-e", "a.zip", "leaving"]).ended()?;
    ensure!(unzipped.status.success(), "the attachment is no zip: {}", unzipped.stderr);
    if !form.is_name {
        let format = *case.one_of(FORMATS);
        let mut call = case.zprobe(["diagnose", "run", "--output-format", format])?;
        call = call.args(
            ["json", "html", "junit", "sarif"]
                .map(|it| format!("--export-{it}=leaving/export.{it}")),
        );
        let ended = with_variables(call).ended()?;
        ended.code_of(&[3])?;
        fs::write(case.dir.join("leaving/standard-output"), ended.stdout)
            .context("cannot write")?;
    }
    let leaks = leaks(&case.dir.join("leaving"), &secret)?;
    ensure!(
        leaks.is_empty(),
        "{}: `{}` (prefix `{}`) is in {}",
        place.name,
        form.text,
        form.prefix,
        leaks.join(", "),
    );
    Ok(Survival::Survived)
}

/// The files that contain the secret, either literally or as JSON, HTML or a URL encode it.
fn leaks(dir: &Path, secret: &str) -> Result<Vec<String>> {
    let json = json!(secret).to_string();
    let html = secret.replace('&', "&amp;").replace('\'', "&#x27;");
    let percent: String = secret.bytes().fold(String::new(), |text, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            text + char::from(byte).encode_utf8(&mut [0; 4])
        }
        _ => text + &format!("%{byte:02X}"),
    });
    let markdown: String = secret.chars().fold(String::new(), |text, c| {
        let escaped = "\\`*_{}[]()#+-.!|<>~".contains(c);
        text + if escaped { "\\" } else { "" } + c.encode_utf8(&mut [0; 4])
    });
    let forms = [secret, &json[1..json.len() - 1], &html, &percent, &markdown];
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).with_context(|| format!("no {}", dir.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let text = fs::read(&path).with_context(|| format!("no {}", path.display()))?;
            let text = String::from_utf8_lossy(&text);
            if forms.iter().any(|form| text.contains(*form)) {
                found.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}
