//! A page of the documentation, read as what a reader would type and see.

use std::ops::Range;
use std::path::PathBuf;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// The language of a block that holds commands, each after [`PROMPT`], with their output.
const LANGUAGE: &str = "console";

/// The prompt before a command.
pub const PROMPT: &str = "$ ";

/// Something that a reader of a page does, in the order of the page.
pub enum Step {
    /// Have these engines installed, and no others.
    Have(Vec<Installed>),
    /// Write a file.
    Write { path: PathBuf, text: String },
    /// Type commands.
    Type(Sample),
}

/// An environment with an engine, and the name that a page has for it.
pub struct Installed {
    /// The engine with its version, as pip names it; torch is installed, too.
    pub package: String,
    /// Directory of the environment, as the page names it.
    pub dir: PathBuf,
}

/// A block of commands with their output.
pub struct Sample {
    /// Number of the line on which the block begins, from 1.
    pub line: usize,
    /// Bytes of the page that the block's text takes.
    pub place: Range<usize>,
    /// Commands in their order.
    pub exchanges: Vec<Exchange>,
    /// The runs of the tests in which the block takes part.
    pub when: When,
    /// The picture of the block's screen, as its path from the root; `None` for most blocks.
    pub picture: Option<PathBuf>,
}

/// A command, and what the page says that it prints.
pub struct Exchange {
    /// The command, with its line breaks.
    pub command: String,
    /// The lines after the command; empty if the page shows none.
    pub said: String,
}

/// The runs of the tests in which a block takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// Every run.
    Always,
    /// Full ones alone, for this reason.
    Full(String),
    /// None, for this reason.
    Never(String),
}

/// Reads a page.
///
/// # Errors
/// With the line, when a comment for the tests says something that they do not know, or a block with a prompt
/// is in another language.
pub fn read(text: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut when = When::Always;
    let mut picture = None;
    let mut block: Option<(String, Range<usize>)> = None;
    for (event, range) in Parser::new(text).into_offset_iter() {
        let line = text[..range.start].matches('\n').count() + 1;
        match event {
            Event::Html(html) => match comment(&html) {
                Some(said) => match note(said).ok_or_else(|| format!("{line}: {said}"))? {
                    Note::Have(engines) => steps.push(Step::Have(engines)),
                    Note::When(next) => when = next,
                    Note::Picture(path) => picture = Some(path),
                },
                None => continue,
            },
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                block = Some((language.into_string(), range.end..range.start));
            }
            Event::Text(_) => {
                if let Some((_, place)) = &mut block {
                    *place = place.start.min(range.start)..place.end.max(range.end);
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                let Some((language, place)) = block.take() else { continue };
                let body = text.get(place.clone()).unwrap_or_default();
                let has_prompt = body.lines().any(|line| line.starts_with(PROMPT));
                match language.as_str() {
                    LANGUAGE => steps.push(Step::Type(Sample {
                        line,
                        exchanges: exchanges(body),
                        place,
                        when: std::mem::replace(&mut when, When::Always),
                        picture: picture.take(),
                    })),
                    _ if has_prompt => return Err(format!("{line}: no block in {LANGUAGE}")),
                    _ => steps.extend(file(body)),
                }
            }
            _ => {}
        }
    }
    Ok(steps)
}

/// Instruction of a comment to the tests.
enum Note {
    Have(Vec<Installed>),
    When(When),
    Picture(PathBuf),
}

/// Words of a comment that is for the tests.
fn comment(html: &str) -> Option<&str> {
    let said = html.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim();
    ["run ", "not run", "shown as "].iter().any(|start| said.starts_with(start)).then_some(said)
}

/// `run with deepspeed==0.19.8 as .venv, …`, `run without an engine`, `run in full: REASON`,
/// `not run: REASON` or `shown as PATH`.
fn note(said: &str) -> Option<Note> {
    if said == "run without an engine" {
        return Some(Note::Have(Vec::new()));
    }
    if let Some(reason) = said.strip_prefix("run in full: ") {
        return Some(Note::When(When::Full(reason.to_owned())));
    }
    if let Some(reason) = said.strip_prefix("not run: ") {
        return Some(Note::When(When::Never(reason.to_owned())));
    }
    if let Some(path) = said.strip_prefix("shown as ") {
        return Some(Note::Picture(path.into()));
    }
    let engines = said.strip_prefix("run with ")?.split(", ").map(|one| {
        let (package, dir) = one.split_once(" as ")?;
        Some(Installed { package: package.to_owned(), dir: dir.into() })
    });
    engines.collect::<Option<_>>().map(Note::Have)
}

/// The file that a block is: its first line is a comment with the path.
fn file(body: &str) -> Option<Step> {
    let path = body.lines().next()?.strip_prefix("# ")?;
    let is_path = path.contains('.') && !path.contains(char::is_whitespace);
    is_path.then(|| Step::Write { path: path.into(), text: body.to_owned() })
}

/// The commands of a block, each with the lines after it.
fn exchanges(body: &str) -> Vec<Exchange> {
    let mut all: Vec<Exchange> = Vec::new();
    for line in body.lines() {
        match (line.strip_prefix(PROMPT), all.last_mut()) {
            (Some(command), _) => {
                all.push(Exchange { command: command.to_owned(), said: String::new() });
            }
            (None, Some(last)) if last.said.is_empty() && last.command.ends_with('\\') => {
                last.command += "\n";
                last.command += line;
            }
            (None, Some(last)) => {
                last.said += line;
                last.said.push('\n');
            }
            (None, None) => {}
        }
    }
    all
}

#[test]
fn a_page_is_read_as_what_its_reader_types() {
    let page = "<!-- run with deepspeed==0.19.8 as .venv -->\nText.\n\n```console\n$ a \\\n  b\nsaid\n\
                more\n$ c\n```\n\n```toml\n# probes/x.toml\nkey = 1\n```\n<!-- run in full: slow -->\n\
                <!-- shown as d.svg -->\n```console\n$ d\n```\n";
    let steps = read(page).unwrap();
    let [Step::Have(engines), Step::Type(first), Step::Write { path, text }, Step::Type(last)] =
        &steps[..]
    else {
        panic!("{} steps", steps.len());
    };
    assert_eq!(
        (&*engines[0].package, &engines[0].dir),
        ("deepspeed==0.19.8", &PathBuf::from(".venv"))
    );
    assert_eq!(first.exchanges.len(), 2);
    assert_eq!(first.exchanges[0].command, "a \\\n  b");
    assert_eq!(first.exchanges[0].said, "said\nmore\n");
    assert_eq!(&page[first.place.clone()], "$ a \\\n  b\nsaid\nmore\n$ c\n");
    assert_eq!((first.line, &first.when, &first.picture), (4, &When::Always, &None));
    assert_eq!((path, &**text), (&PathBuf::from("probes/x.toml"), "# probes/x.toml\nkey = 1\n"));
    assert_eq!(last.when, When::Full("slow".to_owned()));
    assert_eq!(last.picture, Some(PathBuf::from("d.svg")));
}

#[test]
fn a_sample_that_no_test_would_run_is_an_error() {
    assert!(read("```\n$ zprobe run\n```\n").is_err());
    assert!(read("<!-- run wit deepspeed==0.19.8 -->\n").is_err());
}
