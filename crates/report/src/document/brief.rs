//! The main finding in brief: the few lines that a reader needs first.

use super::{Block, Document, Fact, Matrix, TextSpan, Topic, journey, ranks, setting};
use crate::words::{amount, one_line};
use crate::{Finding, OwnWords, Report, Severity, Verdict, pointless};

/// The largest number of characters of a message in brief; every other form has the whole message.
const MESSAGE: usize = 400;

/// The largest number of lines about the stack traces of ranks in brief.
const MOST_PLACES: usize = 8;

/// The largest numbers of consequences, of secondary findings, and of kinds of untested parts, in brief.
const MOST_CONSEQUENCES: usize = 4;
const MOST_OTHERS: usize = 6;
const MOST_UNTESTED: usize = 6;

/// The words in front of the place of an untested part, which are left out in brief.
const BEFORE_PLACES: [&str; 3] = [" of step ", " of rank ", " on rank"];

/// The context in which a report is shown: its directory, and the commands that the user can run next.
#[derive(Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// The directory of the recorded run; `None` if the run is not recorded on disk.
    pub run_dir: Option<&'a str>,
    /// A sentence with the command that runs the user's own engine; `None` unless the run was of zprobe's engine.
    pub own_engine: Option<&'a str>,
    /// The command that repeats the run on this machine, with the interpreter that was named.
    pub again: Option<&'a str>,
    /// The function that returns the documentation of a rule by its code.
    pub page: Option<fn(&str) -> Option<&'static str>>,
    /// The ranks' own words, if the report is shown on the user's own terminal.
    pub words: Option<&'a OwnWords>,
}

/// The words with which a rule's page begins a paragraph that is only for training scripts.
const IN_A_SCRIPT: &str = "In a training script, ";

impl Surroundings<'_> {
    /// The first sentence of a section of a rule's page.
    fn first_sentence(&self, code: &str, section: &str) -> Option<String> {
        first_sentence(self.page?(code)?, section)
    }

    /// The first advice of a rule's page; for a user's script, the advice for scripts if the page has one.
    fn advice(&self, code: &str, is_script: bool) -> Option<String> {
        let page = self.page?(code)?;
        let (_, section) = page.split_once("## What to do\n")?;
        let of_script = section.split_once(IN_A_SCRIPT).filter(|_| is_script);
        of_script
            .and_then(|(_, after)| first_sentence(&format!("## s\n{IN_A_SCRIPT}{after}"), "s"))
            .or_else(|| first_sentence(page, "What to do"))
    }
}

/// The first sentence of a section of a Markdown page, in one line; `None` if the section is missing or empty.
pub fn first_sentence(page: &str, section: &str) -> Option<String> {
    let (_, after) = page.split_once(&format!("## {section}\n"))?;
    let paragraph = after.trim_start().split("\n\n").next()?;
    let words = paragraph.split_whitespace().collect::<Vec<_>>().join(" ").replace('`', "");
    let end = words.find(". ").map_or(words.len(), |end| end + 1);
    (!words.is_empty()).then(|| words[..end].to_owned())
}

/// The main finding of a report in brief.
pub struct Brief<'a> {
    /// The facts before the matrix, each with a label of one word.
    pub before: Vec<Fact>,
    /// The first matrix of weights that are not as planned; `None` if no such weights were read.
    pub matrix: Option<&'a Matrix>,
    /// The number of other matrices that are not as planned.
    pub more: usize,
    /// The facts after the matrix.
    pub after: Vec<Fact>,
}

impl<'a> Document<'a> {
    /// The main finding in brief; `None` if there are no findings.
    pub fn brief(&'a self, report: &Report, around: &Surroundings<'_>) -> Option<Brief<'a>> {
        let main = self.findings.first()?;
        let mut before = Vec::new();
        let known = main.known.first();
        before.extend(known.map(|bug| Fact::new("known", bug.range())));
        before.extend(fix(main, around, report.run.spec.script().is_some()));
        before.push(Fact::new("what", shortened(&main.message) + &main.place_in_brackets()));
        let of_main = report.ranks.iter().filter(|rank| Some(rank.rank) == main.rank);
        let error = of_main.chain(&report.ranks).find_map(|rank| {
            let said = around.words?.last_line(rank)?;
            // A rank that was never started has only the words of its host.
            let who = rank.pid.map_or(String::new(), |_| format!("rank {}: ", rank.rank));
            Some((said, format!("{who}{}", shortened(said))))
        });
        let error = error.filter(|(said, _)| !main.message.contains(said));
        before.extend(error.map(|(_, line)| Fact::new("error", line)));
        let mut places = ranks::places(report);
        if places.len() > MOST_PLACES {
            places.truncate(MOST_PLACES);
            places.push("and more: zprobe show -v".to_owned());
        }
        if !places.is_empty() {
            before.push(Fact::each("stacks", places.into_iter().map(TextSpan::Text)));
        }
        let blocks = self.about(Topic::Weights).map(|section| &section.blocks[..]);
        let matrices = blocks.into_iter().flatten().filter_map(|block| match block {
            Block::Matrices(_, matrices) => Some(matrices),
            _ => None,
        });
        let mut matrices = matrices.flatten().filter(|matrix| matrix.table.is_some());
        let (matrix, more) = (matrices.next(), matrices.count());
        let mut after = Vec::new();
        after.extend(known.map(|bug| Fact::new("affects", one_line(&bug.summary))));
        after.extend(effect(main, around).map(|effect| Fact::new("effect", effect)));
        let cause = known.map(|bug| one_line(&bug.cause)).or_else(|| journey::place(report));
        after.extend(cause.map(|cause| Fact::new("where", cause)));
        let others = &self.findings[1..];
        after.extend(others.iter().take(MOST_OTHERS).map(|finding| {
            let known = finding.known.first().map(|bug| format!(", known bug {}", bug.name));
            let title = finding.title() + &finding.place_in_brackets();
            // The message of the only other finding has room.
            let said = match others {
                [only] if known.is_none() => format!(": {}", shortened(&only.message)),
                _ => known.unwrap_or_default(),
            };
            Fact::new("also", title + &said)
        }));
        if others.len() > MOST_OTHERS {
            let more = amount(others.len() - MOST_OTHERS, "more finding");
            after.push(Fact::new("also", format!("{more}: zprobe show -v")));
        }
        after.extend(setting::circumstances(report));
        Some(Brief { before, matrix, more, after })
    }

    /// The name of the engine with its version; `None` if the run was of a user's script.
    pub fn engine(&self, report: &Report) -> Option<&str> {
        let first = self.setting.first().filter(|_| report.run.spec.script().is_none())?;
        first.split(", ").next()
    }

    /// The facts about a run without findings: its circumstances, for an inconclusive run the last actions of its
    /// ranks, and the parts of training that it did not exercise.
    pub fn reach(&self, report: &Report) -> Vec<Fact> {
        let mut facts = setting::circumstances(report);
        if report.verdict == Verdict::Inconclusive {
            let last = ranks::groups(report);
            let more = last.len().saturating_sub(MOST_PLACES);
            let shown = last.iter().take(MOST_PLACES).map(|group| {
                format!("{} ({}): {}", group.label(), group.first().ending(), group.first().last)
            });
            let more = (more > 0).then(|| format!("and {more} more: zprobe show -v"));
            facts.push(Fact::each("ranks", shown.chain(more).map(TextSpan::Text)));
        }
        facts.extend(untested(report));
        facts
    }

    /// The next command for the reader, with the run directory: the bug report of an unknown bug, otherwise the full
    /// report. An unknown bug in a run of a script is assumed to be in the script, unless a function of its engine made
    /// the first wrong buffer. `None` if the run is not recorded on disk.
    pub fn next(&self, report: &Report, around: &Surroundings<'_>) -> Option<String> {
        let dir = around.run_dir?;
        Some(match self.findings.first() {
            Some(main) if report.blames_script() => {
                format!("next: zprobe show -v {dir}; more: zprobe explain {}", main.code)
            }
            Some(main) if main.known.is_empty() && pointless(report).is_none() => {
                match report.run.spec.script() {
                    Some(_) => format!(
                        "next: zprobe explain {}; if the script is right: zprobe issue {dir}",
                        main.code
                    ),
                    None => format!("next: zprobe issue {dir}; more: zprobe show -v"),
                }
            }
            _ => format!("next: zprobe show -v {dir} (norms, hooks, power)"),
        })
    }
}

/// The parts of training that the run did not exercise, in one line: the parts of one kind are counted, and the
/// reasons are only in the full report. `None` if there are no such parts.
fn untested(report: &Report) -> Option<Fact> {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for part in &report.not_exercised {
        let subject = part.split(": ").next().unwrap_or_default();
        let end = BEFORE_PLACES.iter().filter_map(|words| subject.find(words)).min();
        let kind = &subject[..end.unwrap_or(subject.len())];
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let more = kinds.len().saturating_sub(MOST_UNTESTED);
    let shown = kinds.iter().take(MOST_UNTESTED).map(|(kind, count)| match count {
        1 => (*kind).to_owned(),
        count => format!("{kind} ({count} places)"),
    });
    let more = (more > 0).then(|| format!("{more} more kinds"));
    let text = shown.chain(more).collect::<Vec<_>>().join("; ");
    (!kinds.is_empty()).then(|| Fact::new("untested", text))
}

/// The command or the workaround that removes a known bug; for another finding, the first advice of its rule's page.
fn fix(main: &Finding, around: &Surroundings<'_>, is_script: bool) -> Option<Fact> {
    let Some(bug) = main.known.first() else {
        return around.advice(&main.code, is_script).map(|words| Fact::new("advice", words));
    };
    let workaround = one_line(bug.workaround.trim());
    let said = match bug.upgrade.clone() {
        Some(command) if workaround.starts_with("Upgrade to") => vec![command],
        Some(command) => vec![command, format!("or: {workaround}")],
        None => vec![workaround],
    };
    Some(Fact::each("fix", said.into_iter().map(TextSpan::Text)))
}

/// The effect of a finding on training: its measured consequences, or otherwise the meaning of its rule.
fn effect(main: &Finding, around: &Surroundings<'_>) -> Option<String> {
    if main.severity == Severity::Error && !main.consequences.is_empty() {
        let all = &main.consequences;
        let told = all.iter().map(|it| format!("{}: {}", it.code, shortened(&it.message)));
        let more = (all.len() > MOST_CONSEQUENCES)
            .then(|| format!("and {} more: zprobe show -v", all.len() - MOST_CONSEQUENCES));
        return Some(told.take(MOST_CONSEQUENCES).chain(more).collect::<Vec<_>>().join("; "));
    }
    around.first_sentence(&main.code, "What it means")
}

/// A message in one line, cut after [`MESSAGE`] characters.
fn shortened(message: &str) -> String {
    let message = one_line(message);
    match message.char_indices().nth(MESSAGE) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message,
    }
}
