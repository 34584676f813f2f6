//! A stranger's files are data: in every form of a report, the texts of a trace are nothing but text.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use pulldown_cmark::{Event as Markdown, Options, Parser, Tag, TagEnd};
use regex::Regex;
use serde_json::{Value, json};
use zprobe_diagnose::{diagnose, rules};
use zprobe_lab::compare::render::render as compared;
use zprobe_lab::compare::{Comparison, Side};
use zprobe_model::trace::{Event, Record, Trace};
use zprobe_model::visible;
use zprobe_report::render::{html, render, render_suite, suite_html, tensorboard, trace_events};
use zprobe_report::suite::Suite;
use zprobe_report::{Form, KnownBug, Minimised, Report, RuleCode};

/// Compiles a pattern once.
macro_rules! pattern {
    ($text:expr) => {{
        static PATTERN: LazyLock<Regex> = LazyLock::new(|| Regex::new($text).unwrap());
        &*PATTERN
    }};
}

/// Texts that some reader takes for more than text, each with its kind.
const HOSTILE: &[(&str, &str)] = &[
    ("clipboard", "\u{1b}]52;c;cm0gLXJmIC8=\u{7}"),
    ("link of a terminal", "\u{1b}]8;;http://evil.example\u{1b}\\x\u{1b}]8;;\u{1b}\\"),
    ("title", "\u{1b}]0;owned\u{7}"),
    ("cleared screen", "\u{1b}[2J\u{1b}[H"),
    ("cursor", "\u{1b}[5A\u{1b}[1G"),
    ("device control", "\u{1b}P$q\"p\u{1b}\\"),
    ("application command", "\u{1b}_x\u{1b}\\"),
    ("broken sequence", "\u{1b}\u{1b}[0m[2J"),
    ("concealed", "\u{1b}[8mhidden"),
    ("C1 sequence", "\u{9b}2J"),
    ("C1 command", "\u{9d}52;c;aGk=\u{9c}"),
    ("next line", "a\u{85}::error::b"),
    ("bell", "\u{7}"),
    ("backspace", "bad\u{8}\u{8}\u{8}good"),
    ("carriage return", "bad\rgood"),
    ("carriage return before a command", "x\r::error::y"),
    ("vertical tab", "a\u{b}b\u{c}c"),
    ("zero", "a\u{0}b"),
    ("delete", "a\u{7f}b"),
    ("override", "\u{202e}evil\u{202c}"),
    ("embedding", "\u{202a}a\u{202b}b\u{202d}"),
    ("isolates", "\u{2066}a\u{2067}b\u{2068}c\u{2069}"),
    ("marks", "a\u{200e}b\u{200f}c\u{61c}"),
    ("zero width", "a\u{200b}b\u{200c}c\u{200d}d\u{2060}e\u{feff}f"),
    ("soft hyphen", "a\u{ad}b\u{34f}c"),
    ("separators", "a\u{2028}b\u{2029}c"),
    ("tags", "a\u{e0041}\u{e007f}b"),
    ("fillers", "a\u{115f}b\u{3164}c\u{ffa0}d"),
    ("annotation", "a\u{fff9}b\u{fffa}c\u{fffb}"),
    ("no characters", "a\u{fffe}b\u{ffff}c"),
    ("command", "::error file=a,line=1::owned"),
    ("command in a line", "x\n  ::stop-commands::token\n::add-mask::a\ny"),
    ("encoded command", "%0A::error::owned%0D%25"),
    ("property", "a,line=1,title=b::owned"),
    ("old command", "x ##[error]owned\n##[add-matcher]/tmp/x"),
    ("Azure", "##vso[task.setvariable variable=PATH]/evil"),
    ("image", "![x](http://evil.example/x.png)"),
    ("link", "[x](javascript:alert(1)) [y]: http://evil.example"),
    ("address", "https://evil.example www.evil.example WWW.evil.example"),
    ("element", "<img src=http://evil.example onerror=alert(1)>"),
    ("script", "</script><script>alert(1)</script>"),
    ("style", "</style><style>*{display:none}"),
    ("attribute", "\" onmouseover=\"alert(1)' x='"),
    ("comment", "<!-- x --> --> <!--"),
    ("ended fold", "</code></summary></details><h1>owned</h1>"),
    ("entity", "&lt;script&gt; &#64;octocat &amp;"),
    ("mention", "@octocat @octo/team #1 octo/repo#2 GH-3 a@b.example"),
    ("table", "a | b |\n|---|---|\n| c | d |"),
    ("fence", "```\nx\n`````\n<b>y</b>\n```"),
    ("tildes", "~~~\nx\n~~~"),
    ("code", "`x` ``y``"),
    ("blocks", "# owned\n> quoted\n- item\n1. one\n---\n===\n- [ ] task"),
    ("emphasis", "*a* **b** _c_ __d__ ~~e~~"),
    ("formula", "$\\alpha$ $$x$$"),
    ("CDATA", "]]> <![CDATA[ <?xml?> <!DOCTYPE x>"),
    ("template", "{{ 7 * 7 }} {% raw %} ${{ github.token }}"),
    ("Python", "\"\"\"\nimport os; os.system('x')\n\"\"\" ''' \\"),
    ("spelled out", "\\x1b[2J \\u{202e}"),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces").join(name)
}

/// Records of kinds that no fixture has.
fn more() -> Vec<Value> {
    let of = |rank: Option<usize>, event: Value| json!({"v": 1, "run": "x", "rank": rank, "seq": 9, "t_ns": 0, "event": event});
    vec![
        of(Some(0), json!({"type": "engine-described", "facts": {"setting": "value"}})),
        of(Some(0), json!({"type": "not-observed", "what": "buckets", "why": "no attribute"})),
        of(Some(1), json!({"type": "failed", "message": "out of cheese"})),
        of(None, json!({"type": "stderr", "rank": 1, "tail": "last\nwords"})),
        of(Some(0), json!({"type": "collective-mismatch", "sequence": 0, "announced": ["a", "b"]})),
        of(
            None,
            json!({"type": "protocol-violated", "rank": 1, "violation": "not-json", "line": "x"}),
        ),
    ]
}

/// The lines of a recorded trace, followed by records of kinds that no fixture has.
fn lines(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(fixture(name).join("trace.jsonl")).unwrap();
    let mut lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.extend(more());
    lines
}

/// Collects every place of a text in a value, including keys of objects.
fn places(value: &Value, here: String, all: &mut Vec<String>) {
    match value {
        Value::String(_) => all.push(here),
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                places(item, format!("{here}/{at}"), all);
            }
        }
        Value::Object(members) => {
            for (key, item) in members {
                all.push(format!("{here}>{key}"));
                places(item, format!("{here}/{}", key.replace('~', "~0").replace('/', "~1")), all);
            }
        }
        _ => {}
    }
}

/// A copy of a value, with `text` put before the text at a place.
fn planted(value: &Value, place: &str, text: &str) -> Value {
    let mut value = value.clone();
    match place.split_once('>') {
        Some((object, key)) => {
            let members = value.pointer_mut(object).unwrap().as_object_mut().unwrap();
            let item = members.remove(key).unwrap();
            members.insert(format!("{text}{key}"), item);
        }
        None => {
            let old = value.pointer_mut(place).unwrap();
            *old = json!(format!("{text}{}", old.as_str().unwrap()));
        }
    }
    value
}

/// Returns true if a line is a valid record whatever the text at a place is.
fn accepts(line: &Value, place: &str, spec: &zprobe_model::spec::RunSpec) -> bool {
    if place.contains("/payload/") || place == ">run" || place.ends_with("/event>type") {
        return false;
    }
    let changed = planted(line, place, "x");
    let Ok(record) = serde_json::from_value::<Record>(changed.clone()) else { return false };
    // A key that no field has is dropped.
    serde_json::to_value(&record).unwrap() == changed && record.event.fits(spec).is_ok()
}

/// A recorded trace, with the places of each line at which any text is valid.
struct Ground {
    lines: Vec<Value>,
    open: Vec<(usize, String)>,
}

impl Ground {
    fn new(name: &str) -> Self {
        let lines = lines(name);
        let spec = Trace::read(&fixture(name)).unwrap().spec;
        let mut open = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let mut all = Vec::new();
            places(line, String::new(), &mut all);
            // The innermost and last places come first: a place stays valid while others are changed.
            all.sort_by_key(|place| std::cmp::Reverse((place.matches('/').count(), place.clone())));
            let all = all.into_iter().filter(|place| accepts(line, place, &spec));
            open.extend(all.map(|place| (at, place)));
        }
        Self { lines, open }
    }

    /// The trace with a text at every open place.
    fn with(&self, text: &str) -> Trace {
        let mut lines = self.lines.clone();
        for (at, place) in &self.open {
            lines[*at] = planted(&lines[*at], place, text);
        }
        let records: Vec<Record> =
            lines.into_iter().map(|line| serde_json::from_value(line).unwrap()).collect();
        let Event::RunStarted { spec, .. } = &records[0].event else { panic!("no start") };
        Trace { spec: (**spec).clone(), records }
    }
}

/// The report on a trace, with added parts that only other traces produce.
fn report(trace: &Trace, text: &str) -> Report {
    let mut report = diagnose(trace);
    report.minimised = Some(Minimised {
        code: RuleCode::new("ZP101"),
        command: format!("zprobe run {text}"),
        complete: true,
        trials: vec![],
    });
    if let Some(finding) = report.findings.first_mut() {
        finding.known.push(KnownBug {
            name: text.to_owned(),
            title: text.to_owned(),
            links: vec![format!("see {text}"), format!("https://{text}/ x")],
            affected: text.to_owned(),
            fixed: Some(text.to_owned()),
            cause: text.to_owned(),
            workaround: text.to_owned(),
            summary: text.to_owned(),
            package: Some(text.to_owned()),
            upgrade: Some(text.to_owned()),
        });
        finding.param = Some(text.to_owned());
        finding.evidence.push(text.to_owned());
    }
    report
}

/// Every form of a report, by name.
fn forms(trace: &Trace, text: &str) -> BTreeMap<String, String> {
    let report = report(trace, text);
    let page = |code: &str| rules::find(code).map(|rule| rule.doc);
    let mut forms = BTreeMap::new();
    for format in Form::ALL {
        forms.insert(format.to_string(), render(&report, *format).unwrap());
    }
    forms.insert("html".to_owned(), html(&report, trace, &page).unwrap());
    forms.insert("trace events, json".to_owned(), trace_events(&report, trace).unwrap());
    forms.insert("tensorboard json".to_owned(), tensorboard(&report, trace).unwrap());
    let mut suite = Suite::of_run(&report, format!("zprobe {text}"), format!("{text}.toml"), page);
    suite.cases[0].probe = text.to_owned();
    suite.cases[0].file = Some(text.to_owned());
    suite.cases[0].description = text.to_owned();
    let suite_page = suite_html(&suite, |_| Ok(Some(report.clone()))).unwrap();
    forms.insert("suite html".to_owned(), suite_page);
    for format in Form::ALL {
        forms.insert(format!("suite {format}"), render_suite(&suite, *format).unwrap());
    }
    let side = |name: String, report: Report| Side { name, report, trace: Some(trace.clone()) };
    let mut other = report.clone();
    other.run.versions.insert(text.to_owned(), text.to_owned());
    let comparison = Comparison::new(&side(text.to_owned(), report), &side("b".to_owned(), other));
    for form in [Form::Full, Form::Markdown, Form::Json] {
        forms.insert(format!("compare {form}"), compared(&comparison, form).unwrap());
    }
    forms
}

/// The text without zprobe's own styles.
fn unstyled(text: &str) -> String {
    pattern!(r"\x1b\[(?:0|1|2|4|3[1-6])?m").replace_all(text, "").into_owned()
}

fn assert_nothing_hidden(what: &str, text: &str) {
    let text = unstyled(text);
    if let Some(at) = text.find(visible::is_hidden) {
        let around: String = text[at..].chars().take(20).collect();
        panic!("{what}: {around:?} is hidden");
    }
}

/// Asserts that no line is a command to a CI that keeps the text as a log.
fn assert_no_command(what: &str, text: &str) {
    let text = unstyled(text);
    let old = pattern!(r"##[\w.-]*\[");
    for line in text.lines() {
        assert!(!line.trim_start().starts_with("::") && !old.is_match(line), "{what}: {line:?}");
    }
}

/// Asserts that all lines that GitHub's runner takes for commands are zprobe's own, and that there are
/// `count` of them.
fn assert_own_commands(what: &str, text: &str, count: usize) {
    let own = pattern!(r"^::(error|warning|notice) (file=[^,:]*,line=\d+,)?title=[^,:]*::");
    let commands: Vec<&str> =
        text.split(['\n', '\r']).filter(|line| line.trim_start().starts_with("::")).collect();
    assert_eq!(commands.len(), count, "{what}: {commands:#?}");
    for command in commands {
        assert!(own.is_match(command), "{what}: {command:?}");
    }
}

/// Asserts that Markdown has no markup for GitHub except zprobe's own.
fn assert_no_markup(what: &str, text: &str) {
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_MATH
        | Options::ENABLE_FOOTNOTES;
    let tags = pattern!("</?(details|summary|code)>|<!-- -->|<!-- Title: [^<>]* -->");
    let live = pattern!(r"(?i)[@#][a-z0-9]|\bgh-\d|://|\bwww\.");
    let mut in_code = 0;
    for event in Parser::new_ext(text, options) {
        match event {
            Markdown::Html(html) | Markdown::InlineHtml(html) => {
                let rest = tags.replace_all(&html, "");
                assert!(!rest.contains(['<', '>']), "{what}: {html:?}");
            }
            Markdown::Start(Tag::Image { .. } | Tag::Strikethrough)
            | Markdown::TaskListMarker(_)
            | Markdown::InlineMath(_)
            | Markdown::DisplayMath(_)
            | Markdown::Start(Tag::BlockQuote(_) | Tag::Emphasis | Tag::Link { .. }) => {
                panic!("{what}: {event:?} in\n{text}")
            }
            Markdown::Start(Tag::CodeBlock(_)) => in_code += 1,
            Markdown::End(TagEnd::CodeBlock) => in_code -= 1,
            Markdown::Text(said) if in_code == 0 => {
                assert!(!live.is_match(&said), "{what}: {said:?} is live");
            }
            _ => {}
        }
    }
}

/// The number of elements of a page, by name.
fn elements(page: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for found in pattern!("<[!/]?[a-zA-Z]+").find_iter(page) {
        *counts.entry(found.as_str().to_lowercase()).or_default() += 1;
    }
    counts
}

/// The number of headings, rows and items of Markdown, by kind.
fn blocks(text: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        if let Markdown::Start(tag) = event {
            let name = format!("{tag:?}");
            let name = name.split(['(', ' ', '{']).next().unwrap().to_owned();
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}

fn assert_xml(what: &str, text: &str) {
    quick_junit::Report::deserialize_from_str(text).unwrap_or_else(|err| panic!("{what}: {err}"));
    let legal = |c: char| matches!(c, '\t' | '\n' | '\u{20}'..='\u{fffd}' | '\u{10000}'..);
    assert!(text.chars().all(legal), "{what}");
}

#[test]
fn no_text_of_a_trace_is_anything_but_text_in_any_form() {
    assert!(HOSTILE.len() >= 40);
    // Testing several texts at once takes less time. Only in the trace with short lines each text is tested
    // by itself.
    let together = |count: usize| -> Vec<(String, String)> {
        let joined = |texts: &[(&str, &str)]| {
            texts.iter().copied().map(|(kind, text)| (kind.to_owned(), text.to_owned())).reduce(
                |(kinds, texts), (kind, text)| {
                    (format!("{kinds}, {kind}"), format!("{texts}\n{text}"))
                },
            )
        };
        HOSTILE.chunks(count).filter_map(joined).collect()
    };
    for (name, count) in [("rank-dies", 1), ("boundary-leak", 6), ("collective-skipped", 6)] {
        let ground = Ground::new(name);
        assert!(ground.open.len() > 20, "{:?}", ground.open);
        let harmless = forms(&ground.with("x"), "x");
        for (kind, text) in together(count) {
            for (form, output) in forms(&ground.with(&text), &text) {
                let what = format!("{name}, {kind}, {form}");
                assert_nothing_hidden(&what, &output);
                if form.ends_with("github") {
                    let commands = harmless[&form].matches("::error ").count();
                    let all = harmless[&form].lines().filter(|it| it.starts_with("::")).count();
                    assert!(commands > 0 && all >= commands);
                    assert_own_commands(&what, &output, all);
                } else {
                    assert_no_command(&what, &visible::terminal(&output));
                }
                if form.ends_with("markdown") {
                    assert_no_markup(&what, &output);
                    assert_eq!(blocks(&output), blocks(&harmless[&form]), "{what}\n{output}");
                } else if form.ends_with("html") {
                    assert_eq!(elements(&output), elements(&harmless[&form]), "{what}");
                } else if form.ends_with("junit") {
                    assert_xml(&what, &output);
                } else if form.ends_with("json") || form.ends_with("sarif") {
                    serde_json::from_str::<Value>(&output).unwrap();
                } else if form.ends_with("concise") {
                    let count = |text: &str| text.lines().count();
                    assert_eq!(count(&output), count(&harmless[&form]), "{what}\n{output}");
                }
            }
        }
    }
}

#[test]
fn a_json_report_keeps_every_text_as_it_is() {
    let ground = Ground::new("rank-dies");
    for (kind, text) in HOSTILE {
        let report = report(&ground.with(text), text);
        let read: Report = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        assert_eq!(read, report, "{kind}");
    }
}

/// A directory with a recorded run under a hostile name, which contains every hostile text somewhere.
struct Place {
    dir: tempfile::TempDir,
    run: String,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let run = "run \u{1b}]52;c;aGk=\u{7}\u{202e}\n::error::x".to_owned();
        let place = Self { dir, run };
        fs::create_dir(place.run_dir()).unwrap();
        let mut lines = lines("rank-dies");
        let facts: BTreeMap<&str, &str> = HOSTILE.iter().copied().collect();
        let names: BTreeMap<&str, &str> =
            HOSTILE.iter().map(|(kind, text)| (*text, *kind)).collect();
        let all = HOSTILE.iter().map(|(_, text)| *text).collect::<Vec<_>>().join("\n");
        let of = |rank: Option<usize>, event: Value| json!({"v": 1, "run": "x", "rank": rank, "seq": 9, "t_ns": 0, "event": event});
        lines.push(of(Some(0), json!({"type": "engine-described", "facts": facts})));
        lines.push(of(Some(1), json!({"type": "engine-described", "facts": names})));
        lines.push(of(Some(0), json!({"type": "rank-ready", "versions": names, "device": "cpu"})));
        lines.push(of(None, json!({"type": "stderr", "rank": 0, "tail": all})));
        lines.push(of(Some(0), json!({"type": "failed", "message": all})));
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(place.run_dir().join("trace.jsonl"), text).unwrap();
        fs::write(place.run_dir().join("rank-0.stderr.log"), &all).unwrap();
        fs::write(place.run_dir().join("<img src=x>\u{202e}`|..\\.log"), "x").unwrap();
        place
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join(&self.run)
    }

    fn zprobe(&self, args: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
        command.args(args).current_dir(self.dir.path()).env_remove("GITHUB_STEP_SUMMARY");
        command.envs(variables.iter().copied()).output().unwrap()
    }
}

fn assert_output(what: &str, output: &Output, commands: bool) {
    for text in [&output.stdout, &output.stderr] {
        let text = std::str::from_utf8(text).unwrap();
        assert_nothing_hidden(what, text);
        if !commands {
            assert_no_command(what, text);
        }
    }
}

#[test]
fn what_goes_to_the_terminal_is_text_whatever_is_diagnosed_and_whatever_it_is_called() {
    let place = Place::new();
    for form in ["full", "concise", "json", "markdown", "junit", "github", "sarif"] {
        for colours in [&[][..], &[("CLICOLOR_FORCE", "1")]] {
            let output = place.zprobe(&["diagnose", &place.run, "--output-format", form], colours);
            assert_eq!(output.status.code(), Some(3), "{form}");
            assert_output(form, &output, form == "github");
        }
    }
    let missing = format!("{}/missing", place.run);
    for (args, code) in [
        (&["compare", &place.run, &place.run][..], 3),
        (&["compare", &place.run, &missing], 2),
        (&["diagnose", &missing], 2),
        (&["report", &place.run, "--dry-run", "--force"], 0),
        (&["report", &missing], 2),
        (&["explain", "\u{1b}[2J\n::error::x"], 2),
        (&["list", "\u{1b}[2J\n::error::x"], 2),
        (&["\u{1b}[2J\u{202e}"], 2),
        (&["zoo", &missing], 2),
        (&["check", &missing], 2),
        (&["run", "--deepspeed-config", &missing], 2),
        (&["run", "--no-config", "--rank-program", "true", "--out", &place.run], 2),
        (&["--help"], 0),
    ] {
        let output = place.zprobe(args, &[]);
        assert_output(&format!("{args:?}"), &output, false);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(code != 2 || said.starts_with("error: "), "{args:?}: {said}");
    }
}

#[test]
fn complaints_about_files_are_text_whatever_stands_in_them() {
    let place = Place::new();
    let here = place.dir.path();
    let hostile = "\\u001b]52;c;aGk=\\u0007\\u202e\\n::error::x";
    fs::write(here.join("ds.json"), format!("{{\"{hostile}\": 1, \"optimizer\": \"\u{9b}2J\"}}"))
        .unwrap();
    fs::write(here.join("zoo.toml"), format!("\"{hostile}\" = 1\nname = \"{hostile}\"\n")).unwrap();
    fs::write(here.join("probe.toml"), format!("name = \"{hostile}\"\nrun = [\"{hostile}\"]\n"))
        .unwrap();
    fs::write(here.join("zprobe.toml"), format!("[run]\n\"{hostile}\" = 1\n")).unwrap();
    fs::write(here.join("good.toml"), format!("[run]\nengine = \"{hostile}\"\n")).unwrap();
    fs::write(here.join("baseline.toml"), format!("[[accept]]\ncode = \"{hostile}\"\n")).unwrap();
    for args in [
        &["run", "--no-config", "--deepspeed-config", "ds.json"][..],
        &["run"],
        &["run", "--config", "good.toml"],
        &["zoo", "zoo.toml"],
        &["check", "--no-config", "probe.toml"],
        &["check", "--no-config", "--baseline", "baseline.toml"],
        &["compare", "ds.json", "ds.json"],
        &["sweep", "--engine", "ddp", "--results", "ds.json"],
    ] {
        let output = place.zprobe(args, &[("CLICOLOR_FORCE", "1")]);
        assert_output(&format!("{args:?}"), &output, false);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn what_ranks_log_and_say_reaches_the_terminal_as_text() {
    let place = Place::new();
    let all: String = HOSTILE.iter().map(|(_, text)| format!("{text}\n")).collect();
    fs::write(place.dir.path().join("said"), &all).unwrap();
    let program = place.dir.path().join("rank");
    // The rank writes a record itself, so that its message is shown while it runs.
    let script = "#!/usr/bin/env python3\nimport json, os, sys\n\
        said = open('said', newline='').read()\nsys.stderr.buffer.write(said.encode())\nsys.stderr.flush()\n\
        rank = int(os.environ['RANK'])\n\
        record = dict(v=1, run=os.environ['ZPROBE_RUN'], rank=rank, seq=0, t_ns=0, event=dict(type='failed', message=said))\n\
        os.write(int(os.environ['ZPROBE_EVENT_FDS']), (json.dumps(record) + '\\n').encode())\nsys.exit(1)\n";
    fs::write(&program, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, executable).unwrap();
    for verbosity in ["-v", "--no-config"] {
        let output = place
            .zprobe(&["run", verbosity, "--rank-program", "./rank"], &[("ZPROBE_DEVICE", "cpu")]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("owned"), "{said}");
        assert_output(verbosity, &output, false);
    }
}

#[test]
fn an_attachment_has_no_live_markup_and_no_file_with_a_name_that_misleads() {
    let place = Place::new();
    let output =
        place.zprobe(&["report", &place.run, "--out", "a.zip", "--force", "--with-logs"], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut zip =
        zip::ZipArchive::new(fs::File::open(place.dir.path().join("a.zip")).unwrap()).unwrap();
    let mut looked_at = 0;
    for at in 0..zip.len() {
        let mut file = zip.by_index(at).unwrap();
        let name = file.name().unwrap().into_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._/".contains(c);
        assert!(name.chars().all(plain) && !name.contains(".."), "{name:?}");
        let text = std::io::read_to_string(&mut file).unwrap();
        if name.ends_with(".log") {
            continue;
        }
        assert!(name == "run/trace.jsonl" || !text.contains(visible::is_hidden), "{name}");
        if name.ends_with(".md") {
            assert_no_markup(&name, &text);
            looked_at += 1;
        }
    }
    assert_eq!(looked_at, 2);
}

#[test]
fn ranks_meet_where_no_other_machine_reaches_them() {
    let place = Place::new();
    let script = "#!/usr/bin/env python3\nimport os, socket, sys\n\
        print('gloo on', os.environ['GLOO_SOCKET_IFNAME'], 'at', os.environ['MASTER_ADDR'], file=sys.stderr)\n\
        if os.environ['RANK'] == '0':\n    \
        store = socket.socket(fileno=int(os.environ['ZPROBE_STORE_FD']))\n    \
        print('store at', store.getsockname()[0], file=sys.stderr)\n";
    let program = place.dir.path().join("rank");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for (own, told) in [(None, "lo"), (Some("eth7"), "eth7")] {
        let variables: Vec<(&str, &str)> =
            own.map(|name| ("GLOO_SOCKET_IFNAME", name)).into_iter().collect();
        let output =
            place.zprobe(&["run", "-v", "--no-config", "--rank-program", "./rank"], &variables);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&format!("rank 1 | gloo on {told} at 127.0.0.1")), "{said}");
        assert!(said.contains("rank 0 | store at 127.0.0.1"), "{said}");
    }
}
