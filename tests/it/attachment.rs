//! `zprobe issue`: the required and the forbidden contents of a bug report's attachment.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use regex::Regex;
use serde_json::{Value, json};
use tempfile::TempDir;
use zprobe_diagnose::diagnose;
use zprobe_model::trace::Trace;
use zprobe_report::{Report, Verdict};

/// GitHub's limit on the text of an issue, in characters.
const MOST_BODY: usize = 65_536;

/// The maximum number of lines of an issue that are not folded.
const MOST_LINES: usize = 120;

/// The headings of the projects' issue templates, in order.
const DEEPSPEED: &[&str] = &[
    "**Describe the bug**",
    "**To Reproduce**",
    "**Expected behavior**",
    "**ds_report output**",
    "**Screenshots**",
    "**System info (please complete the following information):**",
    "**Launcher context**",
    "**Docker context**",
    "**Additional context**",
];
const PYTORCH: &[&str] = &["### 🐛 Describe the bug", "### Versions"];
const PLAIN: &[&str] = &[
    "### Describe the bug",
    "### To reproduce",
    "### Expected behavior",
    "### Environment",
    "### Additional context",
];

/// A directory in which `zprobe issue` is called, and the variables of the call.
struct Bench {
    dir: TempDir,
    variables: Vec<(String, String)>,
}

impl Bench {
    /// A bench with a copy of a recorded run in `.zprobe/runs/run`.
    fn with(fixture: &str) -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap(), variables: Vec::new() };
        let run = bench.run_dir();
        fs::create_dir_all(&run).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces").join(fixture);
        fs::copy(source.join("trace.jsonl"), run.join("trace.jsonl")).unwrap();
        bench
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join(".zprobe/runs/run")
    }

    fn zprobe(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
        command.args(words).current_dir(self.dir.path());
        // The environment has only the variables of the test, so that the counts in the output are those of
        // the test.
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.output().unwrap()
    }

    /// The contents of the zip, by path.
    fn attachment(&self, words: &[&str]) -> BTreeMap<String, String> {
        let words = [&["issue", "--out", "a.zip", "--overwrite", "--force"], words].concat();
        let output = self.zprobe(&words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        entries(&self.dir.path().join("a.zip"))
    }

    /// Appends a record of a rank or, with `None`, of the launcher.
    fn append(&self, rank: Option<usize>, event: Value) {
        let path = self.run_dir().join("trace.jsonl");
        let mut text = fs::read_to_string(&path).unwrap();
        let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let record = json!({"v": 1, "run": first["run"], "rank": rank, "seq": 9999, "t_ns": 0, "event": event});
        text += &format!("{record}\n");
        fs::write(path, text).unwrap();
    }
}

fn entries(path: &Path) -> BTreeMap<String, String> {
    let mut zip = zip::ZipArchive::new(fs::File::open(path).unwrap()).unwrap();
    let mut entries = BTreeMap::new();
    for at in 0..zip.len() {
        let mut file = zip.by_index(at).unwrap();
        let name = file.name().unwrap().into_owned();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        entries.insert(name, text);
    }
    entries
}

fn in_order(text: &str, headings: &[&str]) {
    let mut rest = text;
    for heading in headings {
        let at = rest.lines().position(|line| line == *heading);
        let at = at.unwrap_or_else(|| panic!("{heading} is not where it should be in\n{text}"));
        rest = rest.splitn(at + 2, '\n').last().unwrap();
    }
}

#[test]
fn nothing_private_leaves_the_machine() {
    let token = concat!("gh", "p_abcdefghijABCDEFGHIJ0123456789abcdef");
    let hugging = concat!("h", "f_qwertyuiopasdfghjklzxcvbnm123456");
    let secret = "pl4nted/s\"ecret value";
    let mut bench = Bench::with("rank-dies");
    let home = bench.dir.path().join("homes/plantedalice");
    for (name, value) in [
        ("HOME", home.to_str().unwrap()),
        ("USER", "plantedalice"),
        ("HOSTNAME", "planted-node-7.planted.example"),
        ("MY_SERVICE_PASSWORD", secret),
        ("NCCL_SECRET_KEY", "nccl-planted-0123"),
        ("NCCL_SOCKET_IFNAME", "ib0"),
        ("ZPROBE_NOTE", "see /mnt/planteddisk/plantedalice and 10.77.1.2"),
        ("UNRELATED", "planted-unrelated"),
    ] {
        bench.variables.push((name.to_owned(), value.to_owned()));
    }
    let escaped = json!(secret).to_string();
    let encoded = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        format!("plantedalice:{secret}"),
    );
    let cwd = fs::canonicalize(bench.dir.path()).unwrap();
    let told = format!(
        "File \"{}/.venv/lib/python3.11/site-packages/x.py\", line 3, in f of {0}/.cache\n\
         {cwd}/train.py by plantedalice@planted-node-7: token={token} {hugging}\n\
         {escaped} {secret} pl4nted%2Fs%22ecret%20value {encoded} nccl-planted-0123\n\
         https://plantedbob:plantedpw@10.77.1.3/x planted.mail@planted.example\n\
         [planted-node-9]:29500 /mnt/planteddisk/plantedproject/data.bin [::ffff]\n",
        home.display(),
        cwd = cwd.display(),
    );
    fs::write(bench.run_dir().join("rank-0.stderr.log"), &told).unwrap();
    fs::write(bench.run_dir().join("host.stdout.log"), &told).unwrap();
    bench.append(None, json!({"type": "stderr", "rank": 1, "tail": told}));
    bench.append(
        Some(0),
        json!({"type": "engine-described", "facts": {"home of plantedalice": told}}),
    );
    bench.append(Some(1), json!({"type": "failed", "message": told}));

    for words in [
        &["--with-logs", "--for", "plain"][..],
        &["--with-logs", "--for", "deepspeed"],
        &["--with-logs", "--for", "pytorch"],
        &["--for", "plain"],
    ] {
        let entries = bench.attachment(words);
        for (path, text) in &entries {
            // The parts of secrets are searched for, so that a half-redacted secret is found, too.
            for private in [
                "plantedalice",
                "planted-node",
                "plantedbob",
                "plantedpw",
                "planteddisk",
                "plantedproject",
                "planted.mail",
                "pl4nted",
                "ecret value",
                "nccl-planted",
                "10.77.",
                token,
                hugging,
                &encoded[16..32],
                "planted-unrelated",
                &cwd.display().to_string(),
            ] {
                assert!(!text.contains(private), "{words:?}: {path} tells {private}:\n{text}");
            }
        }
        let environment = &entries["environment.txt"];
        if words[0] != "--with-logs" {
            assert!(environment.contains("NCCL_SOCKET_IFNAME=<left out>"), "{environment}");
            continue;
        }
        for path in [
            "report.md",
            "report.html",
            "run/report.json",
            "run/trace.jsonl",
            "run/rank-0.stderr.log",
        ] {
            for placeholder in ["secret", "home", "user", "host", "ip", "path"] {
                let text = &entries[path];
                let found = ["<{}>", "\\<{}>", "&lt;{}&gt;", "&#60;{}&#62;"]
                    .map(|form| form.replace("{}", placeholder));
                assert!(found.iter().any(|it| text.contains(it)), "{path}: {placeholder}\n{text}");
            }
        }
        assert!(environment.contains("NCCL_SOCKET_IFNAME=ib0"), "{environment}");
        assert!(environment.contains("ZPROBE_NOTE=see <path>/<user> and <ip>"), "{environment}");
        serde_json::from_str::<Report>(&entries["run/report.json"]).unwrap();
        assert!(entries["README.md"].contains("secret "), "{}", entries["README.md"]);
    }
}

#[test]
fn what_the_user_wrote_is_left_out_unless_logs_are_asked_for() {
    let mut bench = Bench::with("rank-dies");
    let word = "hunterspassword";
    bench.variables.push(("NCCL_NOTE".to_owned(), word.to_owned()));
    fs::write(bench.run_dir().join("rank-1.stderr.log"), format!("it is {word}\n")).unwrap();
    bench
        .append(Some(1), json!({"type": "failed", "message": format!("ValueError: it is {word}")}));
    bench.append(None, json!({"type": "stderr", "rank": 1, "tail": format!("it is {word}")}));
    let line = format!("it is {word}");
    bench.append(
        None,
        json!({"type": "protocol-violated", "rank": 0, "violation": "not-json", "line": line}),
    );
    let path = bench.run_dir().join("trace.jsonl");
    let trace = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<String> = trace.lines().map(str::to_owned).collect();
    let mut first: Value = serde_json::from_str(&lines[0]).unwrap();
    first["event"]["spec"]["engine"] = "deepspeed".into();
    first["event"]["spec"]["dataflow"] = Value::Null;
    first["event"]["spec"]["deepspeed_config"] = json!({"bf16": {"enabled": true}, "wandb": {"project": word}, "optimizer": {"type": "SGD"}});
    lines[0] = first.to_string();
    fs::write(&path, lines.join("\n") + "\n").unwrap();

    let entries = bench.attachment(&[]);
    for (path, text) in &entries {
        assert!(!text.contains(word), "{path}:\n{text}");
    }
    assert!(!entries.contains_key("run/rank-1.stderr.log"));
    assert!(entries["deepspeed-as-passed.json"].contains("SGD"));
    let left_out = [
        "run/rank-1.stderr.log",
        "messages of the ranks in the trace",
        "texts in the configuration of DeepSpeed",
        "the values of NCCL_NOTE",
    ];
    let said = String::from_utf8(bench.zprobe(&["issue", "--force", "--dry-run"]).stdout).unwrap();
    for text in [&entries["README.md"], &said] {
        assert!(
            left_out.iter().all(|it| text.contains(it)) && text.contains("--with-logs"),
            "{text}"
        );
    }
    // The report that is made from the zip is the report of the zip.
    let report: Report = serde_json::from_str(&entries["run/report.json"]).unwrap();
    let unpacked = tempfile::tempdir().unwrap();
    fs::write(unpacked.path().join("trace.jsonl"), &entries["run/trace.jsonl"]).unwrap();
    let again = diagnose(&Trace::read(unpacked.path()).unwrap());
    assert_eq!((again.findings, again.ranks), (report.findings, report.ranks));

    let output = bench.zprobe(&["issue", "--force", "--dry-run", "--with-logs"]);
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.contains("read its text and every file of the zip"), "{warning}");
    let entries = bench.attachment(&["--with-logs"]);
    for path in ["run/rank-1.stderr.log", "run/trace.jsonl", "environment.txt", "spec.json"] {
        assert!(entries[path].contains(word), "{path}:\n{}", entries[path]);
    }
}

#[test]
fn what_is_not_private_survives_bit_for_bit() {
    for fixture in ["boundary-leak", "clean-three-ranks", "infinity-on-one-rank"] {
        let bench = Bench::with(fixture);
        let entries = bench.attachment(&[]);
        let trace = fs::read_to_string(bench.run_dir().join("trace.jsonl")).unwrap();
        assert_eq!(entries["run/trace.jsonl"], trace);
        let report = bench.zprobe(&["diagnose", ".zprobe/runs/run", "--output-format", "json"]);
        assert_eq!(entries["run/report.json"], String::from_utf8(report.stdout).unwrap());
        let readme = &entries["README.md"];
        assert!(readme.contains("replaced by placeholders: nothing."), "{readme}");
    }
}

#[test]
fn the_page_is_the_one_that_a_run_without_anything_private_exports() {
    for fixture in ["boundary-leak", "rank-hangs"] {
        let mut bench = Bench::with(fixture);
        // These values are also words of the page's tags, styles and script.
        bench.variables.push(("USER".to_owned(), "li".to_owned()));
        bench.variables.push(("MY_TOKEN".to_owned(), "stroke".to_owned()));
        let page = &bench.attachment(&[])["report.html"];
        bench.zprobe(&["diagnose", ".zprobe/runs/run", "--export-html", "page.html"]);
        assert!(*page == fs::read_to_string(bench.dir.path().join("page.html")).unwrap());
    }
}

#[test]
fn runs_that_ended_badly_have_a_report_like_all_others() {
    for fixture in ["rank-dies", "rank-hangs", "rank-rubbish", "boundary-leak", "clean-ipg-bucket"]
    {
        let bench = Bench::with(fixture);
        let diagnosed = diagnose(&Trace::read(&bench.run_dir()).unwrap());
        assert_eq!(diagnosed.findings.is_empty(), fixture.starts_with("clean"), "{fixture}");
        let entries = bench.attachment(&[]);
        let report: Report = serde_json::from_str(&entries["run/report.json"]).unwrap();
        assert_eq!(report.verdict, diagnosed.verdict, "{fixture}");
        in_order(&entries["report.md"], PLAIN);
        for finding in &diagnosed.findings {
            assert!(entries["report.md"].contains(&*finding.code), "{fixture}");
        }
    }
}

#[test]
fn a_trace_that_was_cut_in_the_middle_of_a_line_has_a_report() {
    let bench = Bench::with("clean-accumulator");
    let path = bench.run_dir().join("trace.jsonl");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let entries = bench.attachment(&[]);
    let report: Report = serde_json::from_str(&entries["run/report.json"]).unwrap();
    assert_eq!(report.verdict, Verdict::Inconclusive);
    let trace = entries["run/trace.jsonl"].as_bytes();
    assert!(whole.starts_with(trace) && trace.ends_with(b"\n"));
    assert!(entries["report.md"].contains("The run ended without an answer"));
}

#[test]
fn a_report_has_the_headings_of_the_projects_own_template() {
    let bench = Bench::with("boundary-leak");
    for (project, headings) in [("deepspeed", DEEPSPEED), ("pytorch", PYTORCH), ("plain", PLAIN)] {
        in_order(&bench.attachment(&["--for", project])["report.md"], headings);
    }
}

#[test]
fn every_report_fits_into_an_issue() {
    let folds = Regex::new("(?s)<details>.*?</details>").unwrap();
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces");
    for fixture in fs::read_dir(traces).unwrap() {
        let fixture = fixture.unwrap().file_name().into_string().unwrap();
        let bench = Bench::with(&fixture);
        for rank in 0..2 {
            let log = bench.run_dir().join(format!("rank-{rank}.stderr.log"));
            fs::write(log, "a long line of a log that never ends, ".repeat(1000) + "\n").unwrap();
        }
        let entries = bench.attachment(&["--for", "deepspeed", "--with-logs"]);
        let text = &entries["report.md"];
        assert!(text.len() <= MOST_BODY, "{fixture}");
        let open = folds.replace_all(text, "");
        let lines = open.lines().count();
        assert!(lines <= MOST_LINES, "{fixture}: {lines} lines");
    }
}

#[test]
fn a_trace_is_cut_in_whole_lines_and_the_attachment_says_so() {
    let bench = Bench::with("clean-three-ranks");
    let whole = fs::read_to_string(bench.run_dir().join("trace.jsonl")).unwrap();
    let entries = bench.attachment(&["--max-trace-size", "48K"]);
    let cut = &entries["run/trace.jsonl"];
    assert!(cut.len() <= 48 << 10 && cut.len() > 32 << 10, "{}", cut.len());
    let mut lines = whole.lines();
    assert!(cut.lines().all(|line| lines.any(|it| it == line)), "lines of the trace, in its order");
    assert!(entries["README.md"].contains("run/trace.jsonl is cut to"), "{}", entries["README.md"]);
    let unpacked = tempfile::tempdir().unwrap();
    fs::write(unpacked.path().join("trace.jsonl"), cut).unwrap();
    let trace = Trace::read(unpacked.path()).unwrap();
    for rank in 0..3 {
        let finished = trace.events().any(|(from, event)| {
            from == Some(rank) && *event == zprobe_model::trace::Event::Finished
        });
        assert!(finished, "what is small stays, to the end of rank {rank}");
    }
}

#[test]
fn the_same_run_makes_the_same_bytes() {
    let bench = Bench::with("boundary-leak");
    let zip = || {
        bench.attachment(&[]);
        fs::read(bench.dir.path().join("a.zip")).unwrap()
    };
    assert_eq!(zip(), zip());
}

#[test]
fn a_dry_run_lists_everything_and_writes_nothing() {
    let mut bench = Bench::with("rank-dies");
    bench.variables.push(("MY_TOKEN".to_owned(), "planted-token-1".to_owned()));
    fs::write(bench.run_dir().join("rank-1.stderr.log"), "planted-token-1\n").unwrap();
    let output = bench.zprobe(&["issue", "--dry-run", "--force", "--with-logs"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for wanted in ["README.md", "report.md", "run/trace.jsonl", "run/rank-1.stderr.log", "secret 1"]
    {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    let left: Vec<_> = fs::read_dir(bench.dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only .zprobe is there");
}

#[test]
fn a_file_is_not_replaced_unless_that_is_asked_for() {
    let bench = Bench::with("boundary-leak");
    let first = bench.zprobe(&["issue", "--force"]);
    assert_eq!(String::from_utf8(first.stdout).unwrap(), "zprobe-report-run.zip\n");
    let written = fs::read(bench.dir.path().join("zprobe-report-run.zip")).unwrap();
    let second = bench.zprobe(&["issue", "--force", "--for", "pytorch"]);
    assert_eq!(second.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&second.stderr).contains("--overwrite"));
    assert_eq!(fs::read(bench.dir.path().join("zprobe-report-run.zip")).unwrap(), written);
}

#[test]
fn a_run_that_no_maintainer_wants_to_hear_of_is_refused_unless_forced() {
    for (fixture, reason) in [
        ("boundary-leak", "injected into zprobe's own engine"),
        ("clean-accumulator", "nothing is wrong in this run"),
        ("script-noise", "ZP605 gradient-changed is a mistake in your own script"),
        ("interrupted", "the run was interrupted"),
    ] {
        let bench = Bench::with(if fixture == "interrupted" { "boundary-leak" } else { fixture });
        if fixture == "interrupted" {
            bench.append(None, json!({"type": "interrupted"}));
        }
        let output = bench.zprobe(&["issue"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{fixture}: {said}");
        assert!(said.contains(reason) && said.contains("--force"), "{fixture}: {said}");
        assert!(output.stdout.is_empty());
        assert_eq!(bench.zprobe(&["issue", "--force"]).status.code(), Some(0), "{fixture}");
    }
}

#[test]
fn a_run_with_a_bug_of_an_engine_is_not_refused() {
    let bench = Bench::with("boundary-leak");
    let trace = bench.run_dir().join("trace.jsonl");
    let text = fs::read_to_string(&trace).unwrap();
    let without_fault = text.replace("\"inject\":\"boundary-leak\"", "\"inject\":null");
    assert_ne!(without_fault, text);
    fs::write(&trace, without_fault).unwrap();
    let output = bench.zprobe(&["issue", "--dry-run"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
}

#[test]
fn the_printed_text_is_that_of_the_zip_and_the_title_is_above_it() {
    let bench = Bench::with("boundary-leak");
    let entries = bench.attachment(&["--for", "deepspeed"]);
    let printed = bench.zprobe(&["issue", "--force", "--for", "deepspeed", "--print"]);
    assert_eq!(String::from_utf8_lossy(&printed.stdout), entries["report.md"]);
    let title = entries["title.txt"].trim_end();
    assert!(
        title.starts_with("[BUG] ZeRO-1 bf16: the boundary microbatch 1 was not averaged"),
        "{title}"
    );
    assert_eq!(entries["report.md"].lines().next().unwrap(), format!("<!-- Title: {title} -->"));
    let said = String::from_utf8_lossy(&printed.stderr).into_owned();
    assert!(said.contains(&format!("title: {title}")), "{said}");
    let together = bench.zprobe(&["issue", "--print", "--dry-run"]);
    assert_eq!(together.status.code(), Some(2));
}

#[test]
fn the_answer_of_a_bisection_is_in_the_text_and_redacted() {
    let mut bench = Bench::with("boundary-leak");
    bench.variables.push(("MY_TOKEN".to_owned(), "planted-token-1".to_owned()));
    let answer = |finding: &str| {
        json!({
            "package": "torch", "beside": "", "finding": finding, "fixed": false,
            "first": ["2.11.0"], "releases": 2,
            "trials": [
                {"release": "2.10.0", "shows": false, "said": "clean"},
                {"release": "2.11.0", "shows": true, "said": "ZP101 <b> planted-token-1"},
            ],
        })
    };
    let file = bench.dir.path().join("answer.json");
    fs::write(&file, answer("ZP101 boundary-leak").to_string()).unwrap();
    let entries = bench.attachment(&["--bisection", "answer.json"]);
    let text = &entries["report.md"];
    assert!(text.contains("first bad release of torch: 2.11.0; last good: 2.10.0"), "{text}");
    assert!(text.contains("| 2.11.0 | bad | ZP101 \\<b> \\<secret> |"), "{text}");
    assert!(entries["title.txt"].contains("(since torch 2.11.0)"), "{}", entries["title.txt"]);
    for (content, reason) in [
        (
            answer("ZP104 else").to_string(),
            "the bisection is about ZP104 else, but this run shows ZP101",
        ),
        ("{}".to_owned(), "not an answer of `zprobe bisect --output-format json`"),
    ] {
        fs::write(&file, content).unwrap();
        let output = bench.zprobe(&["issue", "--force", "--bisection", "answer.json"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2));
        assert!(said.contains(reason), "{said}");
    }
    let without = bench.zprobe(&["issue", "--force", "--overwrite", "--out", "b.zip"]);
    assert_eq!(without.status.code(), Some(0));
    let text = &entries_of(&bench, "b.zip")["report.md"];
    assert!(text.contains("the first bad release is not known"), "{text}");
}

fn entries_of(bench: &Bench, name: &str) -> BTreeMap<String, String> {
    entries(&bench.dir.path().join(name))
}

#[test]
fn without_a_run_it_says_what_to_do() {
    let bench = Bench { dir: tempfile::tempdir().unwrap(), variables: Vec::new() };
    let output = bench.zprobe(&["report"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("name the directory of a recorded run"), "{said}");
}

#[test]
fn the_native_engine_has_no_script_and_the_attachment_says_why() {
    let entries = Bench::with("boundary-leak").attachment(&[]);
    assert!(!entries.contains_key("repro.py"));
    assert!(entries["README.md"].contains("There is no repro.py: the native engine"));
    assert_eq!(
        entries["command.txt"],
        "zprobe run --engine native --stage 1 --ga 2 --inject boundary-leak\n"
    );
}

#[test]
fn of_a_users_script_the_attachment_has_the_command_and_no_word_of_its_source() {
    let entries = Bench::with("script-noise").attachment(&[]);
    let script = "python tests/engines/exec/ranks.py 2 examples/train/ddp.py --accumulate 2";
    let command = format!("zprobe exec --timeout 600 -- {script} --width 16 --layers 1\n");
    assert_eq!(entries["command.txt"], command);
    assert!(entries["README.md"].contains("There is no repro.py: the script is the user's own"));
    assert!(
        entries["report.md"].contains("The model is that of a training script"),
        "{}",
        entries["report.md"]
    );
    assert!(!entries.values().any(|text| text.contains("DistributedSampler")));
}

#[test]
fn of_repeats_the_attachment_has_one_and_the_command_for_all() {
    let bench = Bench::with("boundary-leak");
    let run = bench.run_dir();
    for number in 0..3 {
        let repeat = run.join(format!("repeat-{number}"));
        fs::create_dir(&repeat).unwrap();
        fs::copy(run.join("trace.jsonl"), repeat.join("trace.jsonl")).unwrap();
    }
    fs::remove_file(run.join("trace.jsonl")).unwrap();
    let smallest = json!({
        "code": "ZP101", "command": "zprobe run --ga 1", "complete": true,
        "trials": [{"change": "--ga 1 instead of 2", "said": "ZP101", "kept": true}],
    });
    fs::write(run.join("minimised.json"), smallest.to_string()).unwrap();
    let entries = bench.attachment(&[]);
    assert!(entries["command.txt"].ends_with(" --repeat 3\n"), "{}", entries["command.txt"]);
    for path in ["README.md", "report.md"] {
        assert!(
            entries[path].contains("Of 3 repeats, the zip has only number 0"),
            "{}",
            entries[path]
        );
    }
    assert!(entries["report.md"].contains("\nzprobe run --ga 1\n"), "{}", entries["report.md"]);
    assert!(entries["report.html"].contains("<pre>zprobe run --ga 1</pre>"));
    // A repeat that is missing between other repeats is reported.
    fs::remove_dir_all(run.join("repeat-1")).unwrap();
    let output = bench.zprobe(&["diagnose", ".zprobe/runs/run"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("repeat-1"));
}
