//! Tests that zprobe accepts every command in its documentation.

use std::ffi::OsString;
use std::path::Path;

use clap::Command;
use clap::error::ErrorKind;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The placeholders in documented commands, each with a value for the test.
const PLACEHOLDERS: [(&str, &str); 3] = [("N", "2"), ("VERSION", "0.18.9"), ("SIZE", "1MB")];

/// The words that end a command in a shell.
const ENDS: [&str; 8] = ["|", "||", "&&", ">", ">>", "#", "<", "…"];

/// A command in a page of the documentation.
struct Documented {
    /// The page and the line of the command.
    place: String,
    /// The words of the command, without `zprobe`.
    words: Vec<String>,
    /// True for a command in a code block; a command within a sentence may be incomplete.
    is_whole: bool,
}

/// All commands in all pages that begin with `zprobe`.
fn all() -> Vec<Documented> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let patterns = ["*.md", "docs/**/*.md", "examples/**/*.md", "integrations/*/*.md"];
    let pages = patterns.iter().flat_map(|pattern| {
        glob::glob(&root.join(pattern).display().to_string()).unwrap().map(Result::unwrap)
    });
    pages
        .flat_map(|page| {
            let text = std::fs::read_to_string(&page).unwrap();
            let name = page.strip_prefix(root).unwrap().display().to_string();
            of_page(&name, &text)
        })
        .collect()
}

/// The commands in a page that begin with `zprobe`.
fn of_page(name: &str, text: &str) -> Vec<Documented> {
    let mut found = Vec::new();
    let mut block = None;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let place = format!("{name}:{}", text[..range.start].matches('\n').count() + 1);
        let mut add = |line: &str, is_whole| {
            let words = words(line);
            found.extend(words.map(|words| Documented { place: place.clone(), words, is_whole }));
        };
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                let is_shell = ["", "console", "sh", "bash"].contains(&&*language);
                block = is_shell.then(|| if &*language == "console" { "$ " } else { "" });
            }
            Event::End(TagEnd::CodeBlock) => block = None,
            Event::Text(body) => {
                let Some(prompt) = block else { continue };
                let joined = body.replace("\\\n", " ");
                let commands = joined.lines().filter_map(|line| line.strip_prefix(prompt));
                commands.for_each(|line| add(line, true));
            }
            Event::Code(code) => add(&code, false),
            _ => {}
        }
    }
    found
}

/// The words after `zprobe` in a command, up to the first shell operator; `None` for another command.
fn words(line: &str) -> Option<Vec<String>> {
    let all = shlex::split(line)?;
    let words = all.into_iter().skip_while(|word| word.contains('=') && !word.starts_with('-'));
    let mut words = words.take_while(|word| !ENDS.contains(&&**word));
    let program = words.next()?;
    let is_ours = program == "zprobe" || program.ends_with("/zprobe");
    is_ours.then(|| words.map(|word| filled(&word)).collect())
}

/// The word, or the test value if the word is a placeholder.
fn filled(word: &str) -> String {
    let value = PLACEHOLDERS.iter().find(|(name, _)| *name == word);
    value.map_or(word, |(_, value)| value).to_owned()
}

/// The error of clap for a complete command.
fn complaint(command: &Command, words: &[String]) -> Option<String> {
    let line = ["zprobe"].into_iter().chain(words.iter().map(String::as_str));
    let line = super::words::dashed(line.map(OsString::from));
    let error = command.clone().try_get_matches_from(line).err()?;
    let is_help = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind());
    (!is_help).then(|| error.to_string())
}

/// The first word of an incomplete command that is no command or flag of zprobe.
fn unknown<'a>(command: &Command, words: &'a [String]) -> Option<&'a str> {
    let mut place = command;
    for (number, word) in words.iter().enumerate() {
        let name = word.split('=').next().unwrap_or_default();
        if word == "--" {
            break;
        } else if let Some(long) = name.strip_prefix("--") {
            let long = long.replace('_', "-");
            let is_flag = |command: &Command| {
                command.get_arguments().any(|arg| {
                    arg.get_long() == Some(&*long)
                        || arg.get_all_aliases().is_some_and(|all| all.contains(&&*long))
                })
            };
            let is_known =
                ["help", "version"].contains(&&*long) || is_flag(place) || is_flag(command);
            if !is_known {
                return Some(word);
            }
        } else if let Some(sub) = place.find_subcommand(word) {
            place = sub;
        } else if number == 0 && !name.starts_with('-') && word.chars().all(char::is_lowercase) {
            return Some(word);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_command_of_the_documentation_is_one_that_zprobe_takes() {
        let command = super::super::Cli::command();
        let mut wrong = Vec::new();
        let all = all();
        assert!(all.len() > 300, "only {} commands were found", all.len());
        for Documented { place, words, is_whole } in &all {
            let problem = match is_whole {
                true => complaint(&command, words),
                false => unknown(&command, words).map(|word| format!("no such thing: {word}")),
            };
            wrong.extend(problem.map(|it| format!("{place}: zprobe {}: {it}", words.join(" "))));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn commands_are_found_in_blocks_and_in_sentences() {
        let page = "`zprobe run --ga N`\n\n```console\n$ A=1 zprobe show \\\n  DIR | head\nzprobe said\n```\n\n```toml\nzprobe = 1\n```\n";
        let found = of_page("page", page);
        let found: Vec<_> =
            found.iter().map(|it| (&*it.place, it.words.join(" "), it.is_whole)).collect();
        let right =
            [("page:1", "run --ga 2".to_owned(), false), ("page:4", "show DIR".to_owned(), true)];
        assert_eq!(found, right);
        let command = super::super::Cli::command();
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(unknown(&command, &words("run --stgae 1")), Some("--stgae"));
        assert_eq!(unknown(&command, &words("rnu")), Some("rnu"));
        assert!(complaint(&command, &words("run --ga x")).is_some());
        assert!(complaint(&command, &words("run --nproc_per_node 2")).is_none());
    }
}
