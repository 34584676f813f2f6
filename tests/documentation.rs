//! Everything that is registered is documented, and everything that is documented is registered.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use zprobe::diagnose::{diagnose, rules::RULES};
use zprobe::report::Verdict;
use zprobe::report::render::{Format, render};
use zprobe::spec::Fault;
use zprobe::trace::Trace;

/// Sections of a rule's page, in order.
const SECTIONS: [&str; 4] =
    ["## What it means", "## How zprobe sees it", "## Real cases", "## What to do"];

/// Width of a terminal on which `zprobe explain` prints pages as they are.
const WIDTH: usize = 80;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

/// Names of the files in a directory of the repository.
fn names(dir: &str) -> BTreeSet<String> {
    fs::read_dir(root().join(dir))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Lines of a page that are headings; `#` inside a code block does not count.
fn headings(page: &str) -> Vec<&str> {
    let mut fenced = false;
    page.lines()
        .filter(|line| {
            fenced ^= line.starts_with("```");
            !fenced && line.starts_with('#')
        })
        .collect()
}

#[test]
fn every_rule_has_a_page_with_the_fixed_sections() {
    for rule in RULES {
        let page = read(format!("docs/rules/{}.md", rule.code));
        assert_eq!(rule.doc, page, "{} embeds another page", rule.code);
        let title = format!("# {} {}", rule.code, rule.name);
        assert_eq!(page.lines().next(), Some(title.as_str()));
        let mut expected = vec![title.as_str()];
        expected.extend(SECTIONS);
        assert_eq!(headings(&page), expected, "{}", rule.code);
    }
}

#[test]
fn no_section_of_a_page_is_empty() {
    for rule in RULES {
        let text_lines = rule
            .doc
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect::<Vec<_>>()
            .windows(2)
            .filter(|pair| pair[0].starts_with("## ") && !pair[1].starts_with("## "))
            .count();
        assert_eq!(text_lines, SECTIONS.len(), "{} has an empty section", rule.code);
    }
}

#[test]
fn pages_fit_a_terminal() {
    for rule in RULES {
        for (number, line) in rule.doc.lines().enumerate() {
            let width = line.chars().count();
            assert!(width <= WIDTH, "{}.md:{}: {width} columns", rule.code, number + 1);
        }
    }
}

#[test]
fn every_page_belongs_to_a_rule() {
    let expected: BTreeSet<String> = RULES.iter().map(|rule| format!("{}.md", rule.code)).collect();
    assert_eq!(names("docs/rules"), expected);
}

#[test]
fn every_rule_is_a_file_of_its_own_or_of_its_family_and_every_file_a_rule() {
    const FAMILIES: [&str; 1] = ["zp1xx_weights.rs"];
    let mut files = names("src/diagnose/rules");
    assert!(files.remove("mod.rs"));
    for rule in RULES {
        let family = format!("{}xx_", rule.code[..3].to_lowercase());
        if let Some(file) = FAMILIES.iter().find(|file| file.starts_with(&family)) {
            let text = read(PathBuf::from("src/diagnose/rules").join(file));
            assert!(text.contains(&format!("\"{}\"", rule.code)), "{} is not in {file}", rule.code);
            continue;
        }
        let start = format!("{}_", rule.code.to_lowercase());
        let own: Vec<String> =
            files.iter().filter(|file| file.starts_with(&start)).cloned().collect();
        let expected = format!("{start}{}.rs", rule.name.replace('-', "_"));
        assert_eq!(own, [expected], "the file of {} {}", rule.code, rule.name);
        files.remove(&own[0]);
        let text = read(PathBuf::from("src/diagnose/rules").join(&own[0]));
        assert!(
            text.starts_with(&format!("//! {}: ", rule.code)),
            "{} does not start by saying which rule it is",
            own[0]
        );
    }
    assert_eq!(files, FAMILIES.map(str::to_owned).into(), "not registered in RULES");
}

#[test]
fn names_of_rules_are_unique() {
    let names: BTreeSet<&str> = RULES.iter().map(|rule| rule.name).collect();
    assert_eq!(names.len(), RULES.len());
}

#[test]
fn explanations_come_to_an_end() {
    fn follow(code: &str, path: &mut Vec<String>) {
        assert!(!path.iter().any(|known| known == code), "{path:?} goes back to {code}");
        let rule = RULES.iter().find(|rule| rule.code == code);
        let rule = rule.unwrap_or_else(|| panic!("{path:?} is explained by {code}: no such rule"));
        path.push(code.to_owned());
        for cause in rule.explained_by {
            follow(cause, path);
        }
        path.pop();
    }
    for rule in RULES {
        follow(&rule.code, &mut Vec::new());
    }
}

#[test]
fn every_fault_is_on_the_page_of_a_rule() {
    for fault in Fault::ALL {
        let wanted = format!("--inject {fault}");
        let documented = RULES.iter().any(|rule| {
            // Pages are wrapped; a flag and its value may stand on two lines.
            rule.doc.split_whitespace().collect::<Vec<_>>().join(" ").contains(&wanted)
        });
        assert!(documented, "no page of a rule says `{wanted}`");
    }
}

#[test]
fn the_readme_shows_a_report_as_it_is() {
    let trace = Trace::read(&root().join("fixtures/traces/boundary-leak")).unwrap();
    let text = render(&diagnose(&trace), Format::Full).unwrap();
    let report = anstream::adapter::strip_str(&text).to_string();
    assert!(
        read("README.md").contains(&format!("```\n{report}```")),
        "the sample in README.md is not what zprobe prints:\n{report}"
    );
}

#[test]
fn the_readme_lists_every_exit_code_with_its_verdict() {
    let readme = read("README.md");
    // 2 is no verdict: nothing ran.
    let verdicts = Verdict::ALL.iter().map(|verdict| {
        let code = match verdict {
            Verdict::Clean => 0,
            Verdict::Findings => 1,
            Verdict::Crashed => 3,
            Verdict::Inconclusive => 4,
        };
        (code, format!("`{verdict}`"))
    });
    for (code, meaning) in verdicts.chain([(2, "nothing ran".to_owned())]) {
        let row = readme.lines().find(|line| line.starts_with(&format!("| {code} |")));
        let row = row.unwrap_or_else(|| panic!("README.md has no row for exit code {code}"));
        assert!(row.contains(&meaning), "README.md, exit code {code}: `{meaning}` is missing");
    }
}

#[test]
fn files_that_pages_point_to_exist() {
    let pages = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/journey.md"];
    for page in pages {
        let dir = Path::new(page).parent().unwrap();
        for target in read(page).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") {
                assert!(root().join(dir).join(file).exists(), "{page} points to {target}");
            }
        }
    }
}
