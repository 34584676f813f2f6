//! Cuts the text of an issue to the size that GitHub accepts.

use crate::attachment::MOST_BODY;
use crate::attachment::trace::equal_share;
use zprobe_report::render::markdown::block;

/// The maximum number of bytes of all open parts together.
const MOST_OPEN: usize = 40_000;

/// A part of the text of an issue.
pub(super) enum IssuePart {
    /// Markdown that is not folded.
    Open(String),
    /// Text in a folded block. `place` is the path of the whole text in the zip, in case the text is cut.
    Fold { title: String, language: &'static str, content: String, place: String },
}

/// Joins the parts into at most [`MOST_BODY`] bytes: open parts share `MOST_OPEN` bytes, and folded parts share the
/// room that is left.
pub(super) fn fitted(parts: Vec<IssuePart>) -> String {
    let size = |part: &IssuePart| match part {
        IssuePart::Open(text) => (text.len() as u64, 0),
        IssuePart::Fold { .. } => (0, folded(part, usize::MAX).len() as u64),
    };
    let (open, folds): (Vec<u64>, Vec<u64>) = parts.iter().map(size).unzip();
    let share = |wanted: Vec<u64>, room: usize| {
        usize::try_from(equal_share(wanted, room as u64)).unwrap_or(usize::MAX)
    };
    let open = share(open, MOST_OPEN);
    let opened = |part: &IssuePart| match part {
        IssuePart::Open(text) => shortened_markdown(text, open),
        IssuePart::Fold { .. } => String::new(),
    };
    let left = MOST_BODY - parts.iter().map(|part| opened(part).len()).sum::<usize>();
    let folds = share(folds, left);
    let text = |part: &IssuePart| match part {
        IssuePart::Open(_) => opened(part),
        IssuePart::Fold { .. } => folded(part, folds),
    };
    parts.iter().map(text).collect()
}

/// A folded part of at most `most` bytes. A Python or JSON file is useless if it is cut, so it is shown whole or
/// replaced by a note with its path in the zip.
fn folded(part: &IssuePart, most: usize) -> String {
    let IssuePart::Fold { title, language, content, place } = part else { return String::new() };
    let around = |content: &str| {
        format!(
            "<details><summary>{title}</summary>\n\n{}\n</details>\n\n",
            block(language, content)
        )
    };
    let whole = around(content);
    if whole.len() <= most {
        return whole;
    }
    let note = format!("{title}: in the attachment, as {place}\n\n");
    let room = most.saturating_sub(around("").len() + note.len());
    if ["python", "json"].contains(language) || room < 200 {
        return if note.len() <= most { note } else { String::new() };
    }
    around(&shortened(content, room, &format!("cut; the whole text is {place}")))
}

/// The first whole lines of a text, at most `most` bytes, followed by the note if lines are missing.
fn shortened(text: &str, most: usize, note: &str) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let note = format!("… {note}\n");
    let room = most.saturating_sub(note.len() + 1);
    let cut = (0..=room).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let end = text[..cut].rfind('\n').map_or(cut, |feed| feed + 1);
    let line_end = if text[..end].ends_with('\n') { "" } else { "\n" };
    format!("{}{line_end}{note}", &text[..end])
}

/// Cuts Markdown to at most `most` bytes, and closes a code block that the cut leaves open.
fn shortened_markdown(text: &str, most: usize) -> String {
    const NOTE: &str = "more in run/report.json";
    if text.len() <= most {
        return text.to_owned();
    }
    let mut open = None;
    let longest = text.lines().filter(|line| line.starts_with("```")).map(str::len).max();
    let mut cut = shortened(text, most.saturating_sub(longest.unwrap_or(0) + 1), NOTE);
    for line in cut.lines().filter(|line| line.starts_with("```")) {
        let fence = line.trim_end_matches(|c| c != '`');
        open = match open {
            None => Some(fence.to_owned()),
            Some(known) if known == line => None,
            still => still,
        };
    }
    if let Some(fence) = open {
        cut += &(fence + "\n");
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(language: &'static str, size: usize) -> IssuePart {
        let (title, place) = ("a log".to_owned(), "run/a.log".to_owned());
        IssuePart::Fold { title, language, content: "a line\n".repeat(size / 7), place }
    }

    #[test]
    fn however_much_there_is_to_say_an_issue_takes_it() {
        for sizes in
            [&[10][..], &[70_000], &[70_000, 1_000], &[20_000, 40_000, 40_000], &[9_000; 40]]
        {
            for language in ["text", "python"] {
                for open in [0, 10, 200_000] {
                    let folds = sizes.iter().map(|size| fold(language, *size));
                    let open = (0..4).map(|_| IssuePart::Open("é word\n".repeat(open / 8)));
                    let text = fitted(open.chain(folds).collect());
                    assert!(text.len() <= MOST_BODY, "{}", text.len());
                    let (begun, ended) = (text.matches("<details>"), text.matches("</details>"));
                    assert_eq!(begun.count(), ended.count());
                    assert_eq!(text.matches("```").count() % 2, 0);
                }
            }
        }
    }

    #[test]
    fn a_program_is_whole_or_left_out_and_a_log_is_cut() {
        let text = fitted(vec![fold("python", 80_000), fold("text", 80_000)]);
        assert!(text.contains("a log: in the attachment, as run/a.log"), "{}", &text[..200]);
        assert!(text.contains("… cut; the whole text is run/a.log"));
    }

    #[test]
    fn a_block_that_is_cut_is_closed() {
        let text = format!("{}{}", block("", &"line\n".repeat(9)), "end\n".repeat(9));
        for most in 40..text.len() {
            let cut = shortened_markdown(&text, most);
            assert!(cut.len() <= most && cut.matches("```").count().is_multiple_of(2), "{cut}");
        }
    }

    #[test]
    fn text_is_cut_between_lines_and_a_line_that_is_too_long_within_it() {
        assert_eq!(shortened("one\ntwo\nthree\n", 12, "more"), "on\n… more\n");
        assert_eq!(shortened("one\ntwo\nthree\n", 14, "more"), "one\ntwo\nthree\n");
        assert_eq!(shortened(&"one\n".repeat(9), 20, "more"), "one\none\n… more\n");
    }
}
