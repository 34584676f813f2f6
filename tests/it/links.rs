//! Links of the documentation: their targets in the repository exist. Addresses of web sites are not
//! requested.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The pages of the repository, as paths from its root.
fn pages() -> Vec<PathBuf> {
    let patterns =
        ["*.md", "docs/**/*.md", "examples/**/*.md", "fixtures/*/README.md", "integrations/*/*.md"];
    let found = patterns.iter().flat_map(|pattern| {
        glob::glob(&root().join(pattern).display().to_string()).unwrap().map(Result::unwrap)
    });
    found.map(|path| path.strip_prefix(root()).unwrap().to_owned()).collect()
}

/// The targets of a page's links, and the anchors of its headings as GitHub names them.
fn links_and_anchors(text: &str) -> (Vec<String>, BTreeSet<String>) {
    let (mut links, mut anchors) = (Vec::new(), BTreeSet::new());
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                links.push(dest_url.into_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                heading.iter_mut().for_each(|title| title.push_str(&text));
            }
            Event::End(TagEnd::Heading(_)) => {
                let name = anchor(&heading.take().unwrap_or_default());
                let times = seen.entry(name.clone()).or_default();
                anchors.insert(if *times == 0 { name } else { format!("{name}-{times}") });
                *times += 1;
            }
            _ => {}
        }
    }
    (links, anchors)
}

/// GitHub's anchor of a heading.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The links of a page whose targets do not exist.
fn dead(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let (links, own) = links_and_anchors(&text);
    let leads_nowhere = |target: &String| {
        if target.starts_with("https://") {
            return false;
        }
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = root().join(page).parent().unwrap().join(file);
        let known = match (file, anchor) {
            (_, "") => return !path.exists(),
            ("", _) => own.contains(anchor),
            _ => fs::read_to_string(path)
                .is_ok_and(|other| links_and_anchors(&other).1.contains(anchor)),
        };
        !known
    };
    links.into_iter().filter(leads_nowhere).collect()
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    let pages = pages();
    assert!(pages.contains(&"README.md".into()) && pages.len() > 50, "{pages:?}");
    let all = pages.iter().flat_map(|page| {
        dead(page).into_iter().map(move |link| format!("{}: {link}", page.display()))
    });
    let all: Vec<String> = all.collect();
    assert!(all.is_empty(), "dead links (http is one, too):\n{}", all.join("\n"));
}

#[test]
fn anchors_are_those_of_github() {
    let (_, anchors) = links_and_anchors("# `zprobe exec`: own, it's\n\n## A b\n\n## A b\n");
    assert_eq!(anchors, ["zprobe-exec-own-its", "a-b", "a-b-1"].map(str::to_owned).into());
}
