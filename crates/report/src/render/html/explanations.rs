//! The documentation of the rules with findings, as part of the page.

use std::collections::BTreeSet;

use pulldown_cmark::{Event, Parser, Tag, TagEnd, html};

use crate::Finding;

/// The documentation of one rule.
pub(super) struct Explanation<'a> {
    pub code: &'a str,
    pub name: String,
    /// The page of the rule as HTML, without its title.
    pub body: String,
}

/// The documentation of the rules with findings, in the order of the codes.
pub(super) struct Explanations<'a>(pub Vec<Explanation<'a>>);

impl<'a> Explanations<'a> {
    /// The documentation of every rule that a finding or a consequence names.
    pub fn of<'b>(
        findings: impl IntoIterator<Item = &'a Finding>,
        explain: &dyn Fn(&str) -> Option<&'b str>,
    ) -> Self {
        let codes: BTreeSet<&'a str> = findings
            .into_iter()
            .flat_map(|finding| {
                let under = finding.consequences.iter().map(|it| it.code.as_str());
                [finding.code.as_str()].into_iter().chain(under)
            })
            .collect();
        let explained = |code| {
            let page = explain(code)?;
            let title = page.lines().next().unwrap_or_default();
            let name = title.rsplit_once(' ').map_or("", |(_, name)| name).to_owned();
            Some(Explanation { code, name, body: body(page) })
        };
        Self(codes.into_iter().filter_map(explained).collect())
    }

    /// True if the documentation of the rule with this code is part of the page.
    pub fn has(&self, code: &str) -> bool {
        self.0.iter().any(|known| known.code == code)
    }

    /// True if no rule has documentation.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Converts Markdown to HTML, without its title. Raw HTML stays text. Only `https` links stay links, because the page
/// contains no other files.
fn body(markdown: &str) -> String {
    let title = markdown.lines().next().filter(|line| line.starts_with("# "));
    let text = &markdown[title.map_or(0, str::len)..];
    let mut outside = Vec::new();
    let events = Parser::new(text).filter_map(|event| match event {
        Event::Html(text) | Event::InlineHtml(text) => Some(Event::Text(text)),
        Event::Start(Tag::Heading { .. }) => Some(Event::Html("<h4>".into())),
        Event::End(TagEnd::Heading(_)) => Some(Event::Html("</h4>\n".into())),
        Event::Start(Tag::Link { ref dest_url, .. }) => {
            outside.push(dest_url.starts_with("https://"));
            outside.last().is_some_and(|is| *is).then_some(event)
        }
        Event::End(TagEnd::Link) => outside.pop().is_some_and(|is| is).then_some(event),
        event => Some(event),
    });
    let mut page = String::new();
    html::push_html(&mut page, events);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_html_stays_text_and_only_other_sites_are_linked() {
        let page = body("# T\n\n## H\n\n<img src=x> a <b> [x](https://a.b/) [y](../y.md)\n");
        assert!(page.contains("<h4>H</h4>"), "{page}");
        assert!(page.contains("&lt;img src=x&gt;") && page.contains("&lt;b&gt;"), "{page}");
        assert!(page.contains("<a href=\"https://a.b/\">x</a> y"), "{page}");
        assert!(!page.contains('T'), "{page}");
    }
}
