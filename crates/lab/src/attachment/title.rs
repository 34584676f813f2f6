//! The title of an issue: one line with the bug, the settings that matter, and the releases.

use super::History;
use zprobe_engines::{self as engines, Project};
use zprobe_model::spec::{RunSpec, Staging};
use zprobe_model::visible::{self, Visible};
use zprobe_report::words::one_line;
use zprobe_report::{Report, Verdict};

/// The flags that a title leaves out, because every run has them or another part of the title covers them.
const NOT_SAID: &[&str] = &[
    "--engine",
    "--stage",
    "--dtype",
    "--ga",
    "--nproc-per-node",
    "--steps",
    "--shape",
    "--seed",
    "--timeout",
    "--deepspeed-config",
    "--parameters",
    "--trace-budget",
    "--model",
    "--device",
    "--inject",
];

/// The maximum number of bytes of the settings in a title.
const MOST_SETTINGS: usize = 60;

/// The maximum number of characters of a finding's message in a title.
const MOST_CLAUSE: usize = 120;

/// The maximum number of characters of a title; GitHub accepts 256.
const MOST: usize = 200;

/// The title of the issue: the main finding, the settings and the releases.
pub fn title(report: &Visible<Report>, project: Project, history: &History) -> String {
    let spec = &report.run.spec;
    let begin = if project == Project::DeepSpeed { "[BUG] " } else { "" };
    let main = report.findings.first();
    let what = match main {
        Some(main) => match main.known.first() {
            Some(bug) => bug.title.clone(),
            None => first_clause(&main.message),
        },
        None => match report.verdict {
            Verdict::Clean => "nothing is wrong with the gradients".to_owned(),
            Verdict::Crashed => "not every rank finished".to_owned(),
            Verdict::Inconclusive | Verdict::Findings => {
                "the run ended without an answer".to_owned()
            }
        },
    };
    let (settings, releases) = (settings(spec), releases(report, history));
    // The title of a known bug already names the settings that it needs.
    let title = if main.is_some_and(|main| !main.known.is_empty()) {
        let around: Vec<String> = [Some(settings), releases].into_iter().flatten().collect();
        format!("{begin}{what} ({})", around.join("; "))
    } else {
        let shapes: String =
            spec.shapes.iter().map(|shape| format!(", if {}", shape.describe())).collect();
        let releases = releases.map(|releases| format!(" ({releases})"));
        format!("{begin}{settings}: {what}{shapes}{}", releases.unwrap_or_default())
    };
    let title = visible::text(&one_line(&title)).into_owned();
    match title.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &title[..end]),
        None => title,
    }
}

/// The engine with the settings that differ from the defaults, for example `ZeRO-2 bf16, offload cpu`.
fn settings(spec: &RunSpec) -> String {
    let room = engines::of(spec.engine());
    let engine = match spec.engine().traits().staging {
        Staging::Chosen => format!("ZeRO-{}", spec.stage),
        Staging::Always(_) => room.title.to_owned(),
    };
    let mut text = format!("{engine} {}", spec.dtype);
    if spec.script().is_some() {
        return text;
    }
    let arguments = spec.command("").map(|command| command.arguments).unwrap_or_default();
    let mut words = arguments.into_iter().peekable();
    while let Some(word) = words.next() {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), value.to_owned()),
            None => (word, words.next_if(|next| !next.starts_with("--")).unwrap_or_default()),
        };
        let said = format!(", {} {value}", flag.trim_start_matches("--"));
        let said = said.trim_end_matches(" true").trim_end();
        if !NOT_SAID.contains(&flag.as_str()) && text.len() + said.len() <= MOST_SETTINGS {
            text += said;
        }
    }
    text
}

/// The releases that have the bug, as far as they are known: from a bisection or the reporter, or else from the list
/// of known bugs; or else the release of the run.
fn releases(report: &Report, history: &History) -> Option<String> {
    let known = report.findings.first().and_then(|main| main.known.first());
    let package = engines::of(report.run.spec.engine()).python.as_ref();
    let package = package.and_then(|python| python.packages().last());
    let ran = package.and_then(|package| {
        let version = report.run.versions.get(package.module)?.split('+').next()?;
        Some(format!("{} {version}", package.title))
    });
    let range = known.filter(|bug| bug.affected.contains(['<', '>', '=']));
    history.since().or(range.map(|bug| in_words(&bug.affected))).or(ran)
}

/// A range of releases in words instead of signs: `deepspeed since 0.18.5, before 0.19.0`.
fn in_words(range: &str) -> String {
    let signs = [(">=", "since "), ("<=", "up to "), ("<", "before "), (">", "after ")];
    signs.iter().fold(range.to_owned(), |text, (sign, word)| text.replace(sign, word))
}

/// The beginning of a message, up to the end of the first clause that contains more than a list of ranks.
fn first_clause(message: &str) -> String {
    let marks = [": ", "; ", ". "].iter();
    let ends = marks.flat_map(|mark| message.match_indices(mark)).map(|(at, _)| at);
    let is_of_ranks = |word: &str| {
        ["", "rank", "ranks", "and", "to"].contains(&word) || word.parse::<usize>().is_ok()
    };
    // In `ranks 0 and 1: NotImplementedError` the clause ends after the name of the error.
    let end = ends.filter(|end| !message[..*end].split([' ', ',']).all(is_of_ranks)).min();
    let clause = &message[..end.unwrap_or(message.len())];
    match clause.char_indices().nth(MOST_CLAUSE) {
        Some((end, _)) => format!("{}…", &clause[..end]),
        None => clause.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::{Dtype, Engine, Offload, Shape, SpecRequest};
    use zprobe_report::blank::report;
    use zprobe_report::{Finding, KnownBug, Severity};

    fn found(request: SpecRequest) -> Report {
        let mut report = report(request.resolve().unwrap());
        report.verdict = Verdict::Findings;
        report.run.versions.insert("deepspeed".to_owned(), "0.19.8".to_owned());
        report.findings = vec![Finding {
            code: "ZP102".parse().unwrap(),
            name: "microbatch-missing".to_owned(),
            severity: Severity::Error,
            message: "a gradient is missing: each rank's\nown\u{202e}".to_owned(),
            step: Some(0),
            microbatch: None,
            rank: None,
            param: None,
            bucket: None,
            evidence: Vec::new(),
            consequences: Vec::new(),
            known: Vec::new(),
            limit: None,
            location: None,
        }];
        report
    }

    fn deepspeed() -> SpecRequest {
        SpecRequest {
            engine: Some(Engine::DeepSpeed),
            stage: Some(2),
            dtype: Some(Dtype::Bf16),
            offload: Some(Offload::Cpu),
            shapes: vec![Shape::UnusedLast],
            ..SpecRequest::default()
        }
    }

    fn titled(report: &Report, project: Project, history: &History) -> String {
        title(&Visible::of(report).unwrap(), project, history)
    }

    #[test]
    fn a_clause_says_more_than_which_ranks_it_is_about() {
        let error = "ranks 0, 2 and 3: NotImplementedError: unsupported mix";
        assert_eq!(first_clause(error), "ranks 0, 2 and 3: NotImplementedError");
        let differ = "ranks 0 and 1 hold different bits; more";
        assert_eq!(first_clause(differ), "ranks 0 and 1 hold different bits");
        assert_eq!(first_clause(&"x".repeat(500)).chars().count(), MOST_CLAUSE + 1);
    }

    #[test]
    fn a_title_has_the_settings_that_matter_the_fault_and_the_release() {
        let mut report = found(deepspeed());
        assert_eq!(
            titled(&report, Project::DeepSpeed, &History::default()),
            "[BUG] ZeRO-2 bf16, offload cpu: a gradient is missing, if a parameter is unused in the last \
             microbatch of each step (DeepSpeed 0.19.8)"
        );
        let since = History { since: Some("deepspeed 0.18.5".to_owned()), ..History::default() };
        assert!(
            titled(&report, Project::Plain, &since).ends_with(" (since deepspeed 0.18.5)"),
            "the first release weighs more than the one that was run"
        );
        report.findings[0].known = vec![KnownBug {
            name: "a-bug".to_owned(),
            title: "Stage 2 loses a gradient".to_owned(),
            links: Vec::new(),
            affected: "deepspeed >=0.15.3".to_owned(),
            fixed: None,
            cause: String::new(),
            workaround: String::new(),
            summary: String::new(),
            package: None,
            upgrade: None,
        }];
        assert_eq!(
            titled(&report, Project::DeepSpeed, &History::default()),
            "[BUG] Stage 2 loses a gradient (ZeRO-2 bf16, offload cpu; deepspeed since 0.15.3)"
        );
    }

    #[test]
    fn a_title_is_one_line_that_github_takes() {
        let mut report = found(deepspeed());
        report.findings[0].message = "a\u{1b}[2J long\n\r message ".repeat(50);
        let title = titled(&report, Project::DeepSpeed, &History::default());
        assert!(
            title.chars().count() <= MOST + 1 && !title.contains(visible::is_hidden),
            "{title}"
        );
        assert_eq!(title.lines().count(), 1);
    }
}
