//! Escapes untrusted text for GitHub's Markdown, so that GitHub shows the text as it is.

/// A comment that GitHub drops. Between two texts, the comment keeps GitHub from reading both together as a mention, a
/// reference or an address.
const BREAK: &str = "<!-- -->";

/// The text escaped for Markdown, so that it contains no markup, no mention of a user and no link.
pub fn escaped(text: &str) -> String {
    let mut escaped = apart(text, |c, before, next| match c {
        '\\' | '`' | '*' | '<' | '|' | '~' | '[' | ']' | '&' => Some(format!("\\{c}")),
        // Inside a word, an underscore has no meaning in Markdown.
        '_' if !(before.is_alphanumeric() && next.is_alphanumeric()) => Some("\\_".to_owned()),
        // A backslash before the dollar sign has another meaning in a formula.
        '$' => Some("&#36;".to_owned()),
        _ => None,
    });
    if let Some(at) = block_sign(&escaped) {
        escaped.insert(at, '\\');
    }
    escaped
}

/// A plain `https` address unchanged, so that GitHub makes a link of it; anything else is escaped as text.
pub(super) fn address(link: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/#".contains(c);
    match link.strip_prefix("https://") {
        Some(rest) if rest.chars().all(plain) => link.to_owned(),
        _ => escaped(link),
    }
}

/// The text escaped for an HTML element in Markdown.
pub fn escaped_html(text: &str) -> String {
    apart(text, |c, _, _| match c {
        '&' => Some("&amp;".to_owned()),
        '<' => Some("&lt;".to_owned()),
        '>' => Some("&gt;".to_owned()),
        '"' => Some("&quot;".to_owned()),
        _ => None,
    })
}

/// A few words as inline code; characters that would end the code or the cell of a table are replaced.
pub fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "¦").replace('`', "'").replace(['\n', '\r'], " "))
}

/// The text in one line. `escape` gets a character with the characters before and after it, and returns a replacement
/// or `None`. Mentions, references and addresses are broken in two, so that GitHub makes no links of them.
fn apart(text: &str, escape: impl Fn(char, char, char) -> Option<String>) -> String {
    let mut apart = String::with_capacity(text.len());
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let rest = &text[at + c.len_utf8()..];
        let next = rest.chars().next().unwrap_or(' ');
        let ends_with = |word: &str| {
            let tail = at.checked_sub(word.len()).and_then(|start| text.get(start..at));
            tail.is_some_and(|tail| tail.eq_ignore_ascii_case(word))
        };
        match c {
            '\n' | '\r' => apart.push(' '),
            '@' | '#' if next.is_alphanumeric() => apart.extend([c.to_string().as_str(), BREAK]),
            ':' if rest.starts_with("//") => apart.extend([":", BREAK]),
            '.' if ends_with("www") => apart.extend([BREAK, "."]),
            '-' if next.is_ascii_digit() && ends_with("gh") => apart.extend([BREAK, "-"]),
            c => match escape(c, before, next) {
                Some(escaped) => apart.push_str(&escaped),
                None => apart.push(c),
            },
        }
        before = c;
    }
    apart
}

/// The byte position of the sign that would make the line a heading, a list item, a quotation or a rule.
fn block_sign(line: &str) -> Option<usize> {
    let start = line.len() - line.trim_start().len();
    let rest = &line[start..];
    if rest.trim_end() == "-" {
        // A single dash stands for an empty cell of a table.
        return None;
    }
    let ends = |at: usize| rest[at..].chars().next().is_none_or(char::is_whitespace);
    let run = |sign: fn(char) -> bool| rest.len() - rest.trim_start_matches(sign).len();
    let digits = run(|c| c.is_ascii_digit());
    if digits > 0 {
        let numbered = rest[digits..].starts_with(['.', ')']) && ends(digits + 1);
        return numbered.then_some(start + digits);
    }
    let is_rule = rest.chars().all(|c| c == '-' || c == '=' || c.is_whitespace());
    let is_sign = rest.starts_with('>')
        || rest.starts_with(['+', '-']) && ends(1)
        || rest.starts_with('#') && ends(run(|c| c == '#'))
        || is_rule && !rest.is_empty();
    is_sign.then_some(start)
}

/// A code block whose fence is longer than any run of backticks in the content.
pub fn block(language: &str, content: &str) -> String {
    let longest = content.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}\n", content.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_looks_like_markup_means_itself() {
        assert_eq!(
            escaped("a|b <c> *d* `e` __init__ fp32_groups, @user #12 # 3"),
            "a\\|b \\<c> \\*d\\* \\`e\\` \\_\\_init\\_\\_ fp32_groups, @<!-- -->user #<!-- -->12 # 3"
        );
        assert_eq!(
            escaped("- ![x](https://a.b) www.c.d GH-12 $e$ &amp;"),
            "\\- !\\[x\\](https:<!-- -->//a.b) www<!-- -->.c.d GH<!-- -->-12 &#36;e&#36; \\&amp;"
        );
        assert_eq!(escaped("12. one\n# two"), "12\\. one # two");
        for (text, meant) in [
            ("-0.5 of 0.25", "-0.5 of 0.25"),
            ("---", "\\---"),
            ("## a", "\\## a"),
            ("0.5", "0.5"),
            ("> a", "\\> a"),
        ] {
            assert_eq!(escaped(text), meant);
        }
        assert_eq!(
            escaped_html("</summary>@user & \"x\""),
            "&lt;/summary&gt;@<!-- -->user &amp; &quot;x&quot;"
        );
    }

    #[test]
    fn no_content_ends_its_block() {
        assert_eq!(block("", "a\n```\nb\n"), "````\na\n```\nb\n````\n");
    }
}
