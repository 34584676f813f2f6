//! Hyperlinks (OSC 8) for terminals that show them: web addresses, and directories of this machine.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::sync::LazyLock;

use anstyle_hyperlink::Hyperlink;
use regex::Regex;
pub use supports_hyperlinks::Stream;

use zprobe_model::visible;

/// A web address, without the punctuation of the sentence around it.
static ADDRESS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"https?://[^\s\x1b<>"]*[^\s\x1b<>"'.,;:!?)\]}]"#)
        .unwrap_or_else(|error| unreachable!("{error}"))
});

/// The text with each address as a link to itself, if `stream` is a terminal that shows links.
pub fn addresses(text: &str, stream: Stream) -> Cow<'_, str> {
    if shows_links(stream) { linked(text) } else { Cow::Borrowed(text) }
}

/// The path of a directory, as a link to the directory if `stream` is a terminal that shows links.
pub fn directory(dir: &Path, stream: Stream) -> String {
    let shown = dir.display().to_string();
    let shown = visible::terminal(&visible::text(&shown)).into_owned();
    match std::path::absolute(dir) {
        Ok(dir) if shows_links(stream) => {
            let link = Hyperlink::with_path(&dir);
            format!("{link}{shown}{link:#}")
        }
        _ => shown,
    }
}

/// True if `stream` is a terminal that shows links. `FORCE_HYPERLINK` only applies to terminals, and not to a pipe or a
/// file.
fn shows_links(stream: Stream) -> bool {
    let is_terminal = match stream {
        Stream::Stdout => io::stdout().is_terminal(),
        Stream::Stderr => io::stderr().is_terminal(),
    };
    is_terminal && supports_hyperlinks::supports_hyperlinks()
}

fn linked(text: &str) -> Cow<'_, str> {
    ADDRESS.replace_all(text, |found: &regex::Captures<'_>| {
        let link = Hyperlink::with_url(&found[0]);
        format!("{link}{}{link:#}", &found[0])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_link_to_itself_and_the_sentence_around_it_is_not() {
        let link = |at: &str| format!("\x1b]8;;{at}\x1b\\{at}\x1b]8;;\x1b\\");
        let pull = "https://github.com/deepspeedai/DeepSpeed/pull/7985";
        for (before, after) in [("see ", "."), ("(", ")"), ("\x1b[1m", "\x1b[0m;"), ("<", ">")] {
            let text = format!("{before}{pull}{after}");
            assert_eq!(linked(&text), format!("{before}{}{after}", link(pull)), "{text:?}");
        }
        assert_eq!(linked("http:// and https://"), "http:// and https://");
    }
}
