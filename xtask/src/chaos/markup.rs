//! The readers of zprobe's texts: a terminal, GitHub, a Markdown renderer, a browser, Python.
//!
//! Each check fails if a hostile string, which contains [`MARK`], became more than text.

use anyhow::{Context as _, Result, ensure};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use serde_json::Value;

/// The part that all hostile strings share.
pub const MARK: &str = "INJECTED";

/// Checks a text for a terminal: the only escape sequences are zprobe's own colours and styles, and no other
/// character moves, hides or reverses text.
pub fn terminal(text: &str) -> Result<()> {
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| is_control(c) || is_invisible(c)) {
        let sequence = &rest[at..];
        let found = sequence.chars().next().context("a character vanished")?;
        let after = style(sequence);
        let shown: String = sequence.chars().take(20).collect();
        ensure!(after.is_some(), "U+{:04X} reaches the terminal: {shown}", u32::from(found));
        rest = after.unwrap_or_default();
    }
    Ok(())
}

/// The text after an escape sequence for a colour or a style that zprobe uses; `None` for any other text.
fn style(text: &str) -> Option<&str> {
    let (parameters, after) = text.strip_prefix("\u{1b}[")?.split_once('m')?;
    // zprobe uses no blinking and no hidden text.
    let known =
        |number: &str| number.is_empty() || matches!(number.parse(), Ok(0..=4 | 30..=39 | 90..=97));
    parameters.split(';').all(known).then_some(after)
}

fn is_control(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

/// Characters that reverse text, or that are invisible.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{61c}' | '\u{e0000}'..='\u{e007f}')
}

/// Checks a log of GitHub Actions or Azure Pipelines: no line is a command that begins in the hostile string.
pub fn log_of_a_ci(text: &str) -> Result<()> {
    for line in text.split(['\n', '\r']) {
        let line = line.trim_start();
        // zprobe's own commands have the string after their properties.
        let own = ["::error title=", "::warning title=", "::notice title=", "::error file="];
        let is_own = own.iter().any(|own| line.starts_with(own));
        let is_command =
            line.starts_with("::") || line.starts_with("##[") || line.starts_with("##vso[");
        ensure!(!is_command || is_own || !line.contains(MARK), "a line commands the CI: {line}");
    }
    Ok(())
}

/// Checks Markdown as GitHub renders it: no HTML, link, image or heading contains the string.
pub fn markdown(text: &str) -> Result<()> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_GFM;
    let mut code = false;
    for event in Parser::new_ext(text, options) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => code = true,
            Event::End(TagEnd::CodeBlock) => code = false,
            Event::Html(html) | Event::InlineHtml(html) => {
                ensure!(!html.contains(MARK), "HTML in Markdown: {html}");
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                ensure!(!dest_url.contains(MARK), "a link in Markdown: {dest_url}");
            }
            Event::Text(text) if !code => {
                // GitHub would notify a mentioned user. A bare address is a link to itself, and loads
                // nothing.
                ensure!(!text.contains("@INJECTED"), "a user is mentioned in Markdown: {text}");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks HTML and XML: characters that begin a tag or end an attribute are escaped.
pub fn html(text: &str) -> Result<()> {
    for opened in ["<img src=x onerror=INJECTED", "<script>INJECTED", "<b INJECTED", "<!--INJECTED"]
    {
        ensure!(!text.contains(opened), "a tag in HTML: {opened}");
    }
    Ok(())
}

/// Checks XML: the text passes [`html`], and has no character that XML cannot hold.
pub fn xml(text: &str) -> Result<()> {
    html(text)?;
    let forbidden = |c: char| {
        is_control(c) && !('\u{7f}'..='\u{9f}').contains(&c) && c != '\r'
            || matches!(c, '\u{fffe}' | '\u{ffff}')
    };
    let found = text.chars().find(|c| forbidden(*c));
    ensure!(found.is_none(), "{found:?} in XML");
    ensure!(!text.contains("]]>"), "the end of a CDATA section");
    Ok(())
}

/// Checks that a text is JSON, in which every string is only data.
pub fn json(text: &str) -> Result<()> {
    serde_json::from_str::<Value>(text).map(drop).context("the text is no JSON")
}

/// A Python program that unpacks an archive into a directory. It fails if a script in the archive does not
/// parse or has a name that contains [`MARK`].
pub const PYTHON: &str = "
import ast, pathlib, sys, zipfile
zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])
for script in pathlib.Path(sys.argv[2]).rglob('*.py'):
    for node in ast.walk(ast.parse(script.read_text(encoding='utf-8'))):
        for name in ('id', 'attr', 'name', 'arg'):
            if 'INJECTED' in str(getattr(node, name, '')):
                sys.exit(f'{script.name}: code in Python, line {node.lineno}')
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_takes_colours_and_nothing_else() {
        terminal("\u{1b}[1;31merror:\u{1b}[0m wörd\n\tx").unwrap();
        for hostile in
            ["\u{1b}]52;c;x\u{7}", "\u{1b}[2J", "\u{1b}[8m", "\u{9b}1m", "\u{202e}", "a\rb"]
        {
            assert!(terminal(hostile).is_err(), "{hostile:?}");
        }
    }

    #[test]
    fn a_command_for_the_ci_is_one_only_at_the_start_of_a_line() {
        log_of_a_ci("::error title=ZP101::about ::error::INJECTED\nx ::error::INJECTED").unwrap();
        assert!(log_of_a_ci("a\n  ::error::INJECTED").is_err());
        assert!(log_of_a_ci("a\r##[error]INJECTED").is_err());
    }

    #[test]
    fn markdown_is_text_when_it_is_escaped_or_code() {
        markdown("\\!\\[x\\](http://e.example/INJECTED)\n`<b INJECTED>`\n\n    <b INJECTED>")
            .unwrap();
        for hostile in
            ["![x](http://e.example/INJECTED)", "<b INJECTED>", "[x]( javascript:INJECTED)"]
        {
            assert!(markdown(hostile).is_err(), "{hostile}");
        }
    }
}
