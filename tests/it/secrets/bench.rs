//! A run with planted secrets, and all outputs of zprobe for the run.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::Engine as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Place, Planted};

/// A directory with a recorded run, in which `zprobe` is called.
pub struct Bench {
    dir: TempDir,
    variables: Vec<(String, String)>,
}

/// A text without the escapes of HTML, Markdown and JSON.
pub fn plain(text: &str) -> String {
    let mut text = text.to_owned();
    for _ in 0..2 {
        for (escape, meant) in [
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&quot;", "\""),
            ("&#39;", "'"),
            ("&#34;", "\""),
            ("&#60;", "<"),
            ("&#62;", ">"),
            ("&#38;", "&"),
            ("&#x27;", "'"),
            ("&amp;", "&"),
            ("&apos;", "'"),
        ] {
            text = text.replace(escape, meant);
        }
    }
    text.replace('\\', "")
}

/// A text with the escapes of URLs.
fn percent(text: &str) -> String {
    let escaped = |byte: u8| match byte {
        _ if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escaped).collect()
}

impl Bench {
    /// A bench with a run in which a rank died, and in which the secrets are planted.
    pub fn with(planted: &[&Planted]) -> Self {
        let bench = Self::of("rank-dies", planted);
        bench.write(planted);
        bench
    }

    /// A bench with a copy of a recorded run.
    pub fn of(fixture: &str, planted: &[&Planted]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join(".zprobe/runs/run");
        fs::create_dir_all(&run).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces").join(fixture);
        fs::copy(source.join("trace.jsonl"), run.join("trace.jsonl")).unwrap();
        let variable = |it: &&Planted| match it.row.place {
            Place::Environment(name) | Place::Variable(name) | Place::NameVariable(name) => {
                Some((name.to_owned(), it.text.clone()))
            }
            _ => None,
        };
        Self { dir, variables: planted.iter().filter_map(variable).collect() }
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join(".zprobe/runs/run")
    }

    /// The text of the trace file.
    pub fn trace(&self) -> String {
        fs::read_to_string(self.run_dir().join("trace.jsonl")).unwrap()
    }

    /// Appends a record of a rank or, with `None`, of the launcher.
    pub fn append(&self, rank: Option<usize>, event: &Value) {
        let mut trace = self.trace();
        let first: Value = serde_json::from_str(trace.lines().next().unwrap()).unwrap();
        let run = &first["run"];
        let record =
            json!({"v": 1, "run": run, "rank": rank, "seq": 9999, "t_ns": 0, "event": event});
        trace += &format!("{record}\n");
        fs::write(self.run_dir().join("trace.jsonl"), trace).unwrap();
    }

    /// The directory in which `zprobe` is called.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Plants the secrets in the logs, the trace and `minimised.json`.
    fn write(&self, planted: &[&Planted]) {
        let mut stderr = String::new();
        let mut stdout = String::new();
        let (mut message, mut tail, mut command) = (String::new(), String::new(), String::new());
        let (mut facts, mut versions) = (serde_json::Map::new(), json!({"torch": "2.11.0"}));
        let mut config = json!({});
        for it in planted {
            let (text, secret) = (&it.text, &it.secret);
            match it.row.place {
                Place::Environment(_) => {
                    let whole = if it.row.text == "{}" { text } else { secret };
                    let encoded =
                        base64::engine::general_purpose::STANDARD.encode(format!("u:{whole}@h"));
                    stderr += &format!(
                        "seen {whole} there\n{}\ngot%20{}%20so\n{encoded}\n",
                        json!({"x": whole}),
                        percent(whole),
                    );
                    tail += &format!("as {whole} again\n");
                }
                Place::Config(pointer) => {
                    place(&mut config, pointer, text);
                    stderr += &format!("the monitor got {secret} of it\n");
                    message += &format!("cannot use {secret} for it\n");
                }
                Place::Fact(name) => {
                    facts.insert(name.to_owned(), text.as_str().into());
                }
                Place::Version => versions["planted"] = text.as_str().into(),
                Place::Log | Place::LogLines | Place::NameInLog => {
                    stderr += &format!("{text}\n");
                }
                Place::Stdout => stdout += &format!("{text}\n"),
                Place::Message | Place::NameInMessage => message += &format!("{text}\n"),
                Place::Tail => tail += &format!("{text}\n"),
                Place::Argument => command += &format!(" {text}"),
                Place::Variable(_) => {}
                Place::Known => {
                    stderr += &format!("{text}\n");
                    stdout += &format!("then it said {secret} as if it were nothing\n");
                    message += &format!("and {secret} again\n");
                }
                Place::NameVariable(_) => stderr += &format!("reached {secret} at last\n"),
            }
        }
        fs::write(self.run_dir().join("rank-0.stderr.log"), stderr).unwrap();
        fs::write(self.run_dir().join("rank-0.stdout.log"), stdout).unwrap();
        let minimised = json!({
            "code": "ZP901", "command": format!("zprobe run --rank-program x --{command}"),
            "complete": true, "trials": [],
        });
        fs::write(self.run_dir().join("minimised.json"), minimised.to_string()).unwrap();
        let mut records: Vec<Value> =
            self.trace().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if config != json!({}) {
            records[0]["event"]["spec"]["engine"] = "deepspeed".into();
            records[0]["event"]["spec"]["dataflow"] = Value::Null;
            records[0]["event"]["spec"]["deepspeed_config"] = config;
        }
        let run = records[0]["run"].clone();
        for (rank, event) in [
            (Some(0), json!({"type": "rank-ready", "versions": versions, "device": "cpu"})),
            (Some(0), json!({"type": "engine-described", "facts": facts})),
            (Some(1), json!({"type": "failed", "message": message})),
            (None, json!({"type": "stderr", "rank": 1, "tail": tail})),
        ] {
            records.push(
                json!({"v": 1, "run": run, "rank": rank, "seq": 9999, "t_ns": 0, "event": event}),
            );
        }
        let text: String = records.iter().map(|record| format!("{record}\n")).collect();
        fs::write(self.run_dir().join("trace.jsonl"), text).unwrap();
    }

    /// Calls `zprobe` with only the variables of the test in its environment.
    pub fn zprobe(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
        command.args(words).current_dir(self.dir.path());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.output().unwrap()
    }

    /// Every file of the attachments for all projects, with its name.
    pub fn attachments(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        for project in ["plain", "deepspeed", "pytorch"] {
            let out = format!("{project}.zip");
            let words = ["report", "--for", project, "--out", &out, "--force", "--with-logs"];
            let output = self.zprobe(&words);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            files.push((format!("{project}, what it said"), said(&output)));
            let file = fs::File::open(self.dir.path().join(&out)).unwrap();
            let mut zip = zip::ZipArchive::new(file).unwrap();
            for at in 0..zip.len() {
                let mut entry = zip.by_index(at).unwrap();
                let name = entry.name().unwrap().into_owned();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                files.push((name, text));
            }
        }
        files
    }

    /// Every form of a report that `zprobe show` prints or exports, by name.
    pub fn exports(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        for form in ["full", "brief", "concise", "json", "markdown", "github", "junit", "sarif"] {
            let output = self.zprobe(&["diagnose", ".zprobe/runs/run", "--output-format", form]);
            assert!(output.status.code().is_some_and(|code| code != 2), "{}", said(&output));
            files.push((form.to_owned(), said(&output)));
        }
        let exports = [
            "--export-html",
            "--export-json",
            "--export-junit",
            "--export-sarif",
            "--export-trace",
        ];
        let mut words = vec!["diagnose", ".zprobe/runs/run"];
        words.extend(exports.iter().flat_map(|flag| [*flag, &flag[2..]]));
        self.zprobe(&words);
        for flag in exports {
            let text = fs::read_to_string(self.dir.path().join(&flag[2..])).unwrap();
            files.push((flag.to_owned(), text));
        }
        files
    }
}

/// The standard output and the standard error of a program, one after the other.
pub fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// Puts a value at a JSON pointer, and makes all parents of the value.
fn place(config: &mut Value, pointer: &str, text: &str) {
    let mut at = config;
    for name in pointer.split('/').skip(1) {
        let in_list = name.bytes().all(|byte| byte.is_ascii_digit());
        if at.is_null() {
            *at = if in_list { json!([]) } else { json!({}) };
        }
        if in_list {
            let list = at.as_array_mut().unwrap();
            list.push(Value::Null);
            at = list.last_mut().unwrap();
        } else {
            at = at.as_object_mut().unwrap().entry(name).or_insert(Value::Null);
        }
    }
    *at = match text.parse::<u64>() {
        Ok(number) => number.into(),
        Err(_) => text.into(),
    };
}
