//! A finding in brief: the lines that a reader needs first, in the order in which they are needed.

use super::{Block, Document, Fact, Matrix, Span, Topic, journey, ranks};
use crate::words::one_line;
use crate::{Finding, Report, Severity, pointless};

/// Most characters of a message in brief; the whole of it is in every other form.
const MESSAGE: usize = 400;

/// Most places of ranks in brief.
const MOST_PLACES: usize = 8;

/// Surroundings of a report that are no part of it: where it lies, and what else there is to run.
#[derive(Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// Directory of the recorded run, if it has one.
    pub run_dir: Option<&'a str>,
    /// A command that runs an engine of the user's, with a sentence that leads to it, where the run was of
    /// zprobe's own.
    pub own_engine: Option<&'a str>,
    /// A command that makes the run again here, with the interpreter that was named.
    pub again: Option<&'a str>,
    /// Documentation of a rule, by its code.
    pub page: Option<fn(&str) -> Option<&'static str>>,
}

/// The beginning of a paragraph of a page that is for training scripts alone.
const IN_A_SCRIPT: &str = "In a training script, ";

impl Surroundings<'_> {
    /// The first sentence of a section of a rule's documentation.
    fn first_sentence(&self, code: &str, section: &str) -> Option<String> {
        first_sentence(self.page?(code)?, section)
    }

    /// The first advice of a rule's page: for a user's script that for scripts, where the page has one.
    fn advice(&self, code: &str, is_script: bool) -> Option<String> {
        let page = self.page?(code)?;
        let of_script = page.split_once(IN_A_SCRIPT).filter(|_| is_script);
        of_script
            .and_then(|(_, behind)| first_sentence(&format!("## s\n{IN_A_SCRIPT}{behind}"), "s"))
            .or_else(|| first_sentence(page, "What to do"))
    }
}

/// The first sentence of a section of a page in Markdown, in one line.
pub fn first_sentence(page: &str, section: &str) -> Option<String> {
    let (_, behind) = page.split_once(&format!("## {section}\n"))?;
    let paragraph = behind.trim_start().split("\n\n").next()?;
    let words = paragraph.split_whitespace().collect::<Vec<_>>().join(" ").replace('`', "");
    let end = words.find(". ").map_or(words.len(), |end| end + 1);
    (!words.is_empty()).then(|| words[..end].to_owned())
}

/// The main finding of a report in brief.
pub struct Brief<'a> {
    /// Facts before the matrix, each with a label of one word.
    pub before: Vec<Fact>,
    /// A matrix of weights that are not as planned, if some were read.
    pub matrix: Option<&'a Matrix>,
    /// Number of other matrices that are not as planned.
    pub more: usize,
    /// Facts behind the matrix.
    pub behind: Vec<Fact>,
}

impl<'a> Document<'a> {
    /// The main finding in brief; none where nothing was found.
    pub fn brief(&'a self, report: &Report, around: &Surroundings<'_>) -> Option<Brief<'a>> {
        let main = self.findings.first()?;
        let mut before = Vec::new();
        let known = main.known.first();
        before.extend(known.map(|bug| Fact::new("known", bug.range())));
        before.extend(fix(main, around, report.run.spec.script().is_some()));
        let what = match main.place() {
            place if place.is_empty() => shortened(&main.message),
            place => format!("{} ({place})", shortened(&main.message)),
        };
        before.push(Fact::new("what", what));
        let of_main = report.ranks.iter().filter(|rank| Some(rank.rank) == main.rank);
        let last_words = of_main.chain(&report.ranks).find_map(|rank| {
            rank.failure.as_deref().or_else(|| rank.stderr.as_deref()?.lines().next_back())
        });
        let last_words = last_words.filter(|said| !main.message.contains(said));
        before.extend(last_words.map(|line| Fact::new("said", shortened(line))));
        let mut places = ranks::places(report);
        if places.len() > MOST_PLACES {
            places.truncate(MOST_PLACES);
            places.push("and more: zprobe show -v".to_owned());
        }
        if !places.is_empty() {
            before.push(Fact::each("stacks", places.into_iter().map(Span::Text)));
        }
        let blocks = self.about(Topic::Weights).map(|section| &section.blocks[..]);
        let matrices = blocks.into_iter().flatten().filter_map(|block| match block {
            Block::Matrices(_, matrices) => Some(matrices),
            _ => None,
        });
        let mut matrices = matrices.flatten().filter(|matrix| matrix.table.is_some());
        let (matrix, more) = (matrices.next(), matrices.count());
        let mut behind = Vec::new();
        behind.extend(known.map(|bug| Fact::new("whom", one_line(&bug.summary))));
        behind.extend(effect(main, around).map(|effect| Fact::new("effect", effect)));
        let cause = known.map(|bug| one_line(&bug.cause)).or_else(|| journey::place(report));
        behind.extend(cause.map(|cause| Fact::new("where", cause)));
        let others = self.findings[1..].iter();
        behind.extend(others.map(|finding| {
            let known = finding.known.first().map(|bug| format!(" (known bug {})", bug.name));
            Fact::new("also", finding.title() + &known.unwrap_or_default())
        }));
        behind.push(Fact::new("ran", self.ran(report)));
        Some(Brief { before, matrix, more, behind })
    }

    /// The engine with its version, where the run was not of a user's script.
    pub fn engine(&self, report: &Report) -> Option<&str> {
        let first = self.setting.first().filter(|_| report.run.spec.script().is_none())?;
        first.split(", ").next()
    }

    /// The settings in one line, without the engine's name, which the verdict says.
    fn ran(&self, report: &Report) -> String {
        let all = self.setting.join("; ");
        let engine = self.engine(report).map(|engine| format!("{engine}, "));
        engine.and_then(|engine| all.strip_prefix(&engine).map(str::to_owned)).unwrap_or(all)
    }

    /// Facts on a run without a finding: what it could have seen, and what it did not exercise.
    pub fn reach(&self) -> Vec<Fact> {
        let facts = self.about(Topic::Power).map(|section| &section.blocks[..]);
        let facts = facts.into_iter().flatten().filter_map(|block| match block {
            Block::Facts(facts) => Some(facts),
            _ => None,
        });
        let facts = facts.flatten().map(|fact| {
            // Reasons and flags are for who reads on.
            let subject =
                |said: &Span| said.text().split(": ").next().unwrap_or_default().to_owned();
            match fact.label.as_str() {
                "not exercised" => {
                    let subjects: Vec<String> = fact.said.iter().map(subject).collect();
                    Fact::new("not seen", subjects.join("; "))
                }
                "smallest deviation" => {
                    let said: Vec<&str> = fact.said.iter().map(Span::text).collect();
                    Fact::new("would see", said.join("; "))
                }
                _ => {
                    Fact::each("sums", fact.said.iter().map(|it| Span::Text(it.text().to_owned())))
                }
            }
        });
        facts.collect()
    }

    /// The last lines: the verdict with its fix, and the run directory with what to do next.
    pub fn last_lines(&self, report: &Report, around: &Surroundings<'_>) -> Vec<String> {
        let name = self.verdict.name().to_uppercase();
        let mut lines = vec![match self.findings.first() {
            None => format!("{name}: {}", self.headline),
            Some(main) => {
                let known = main.known.first().map(|bug| format!(", known, {}", bug.fix()));
                format!("{name} {}{}", main.title(), known.unwrap_or_default())
            }
        }];
        let upgrade = self.findings.first().and_then(|main| main.known.first()?.upgrade());
        lines.extend(upgrade.map(|command| format!("fix:  {command}")));
        lines.extend(around.run_dir.map(|dir| match self.findings.first() {
            Some(main) if main.known.is_empty() && pointless(report).is_none() => {
                format!("next: zprobe issue {dir}; more: zprobe show -v")
            }
            _ => format!("next: zprobe show -v {dir} (norms, hooks, power)"),
        }));
        lines
    }
}

/// Command or words that make a known bug go away; of another finding, what to look at.
fn fix(main: &Finding, around: &Surroundings<'_>, is_script: bool) -> Option<Fact> {
    let Some(bug) = main.known.first() else {
        return around.advice(&main.code, is_script).map(|words| Fact::new("look", words));
    };
    let workaround = one_line(bug.workaround.trim());
    let said = match bug.upgrade() {
        Some(command) if workaround.starts_with("Upgrade to") => vec![command],
        Some(command) => vec![command, format!("or: {workaround}")],
        None => vec![workaround],
    };
    Some(Fact::each("fix", said.into_iter().map(Span::Text)))
}

/// The effect of a finding on training: as it was measured, or else what its rule means.
fn effect(main: &Finding, around: &Surroundings<'_>) -> Option<String> {
    if main.severity == Severity::Error && !main.consequences.is_empty() {
        let told =
            main.consequences.iter().map(|it| format!("{}: {}", it.code, shortened(&it.message)));
        return Some(told.collect::<Vec<_>>().join("; "));
    }
    around.first_sentence(&main.code, "What it means")
}

/// A message, cut where it is long.
fn shortened(message: &str) -> String {
    let message = one_line(message);
    match message.char_indices().nth(MESSAGE) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message,
    }
}
