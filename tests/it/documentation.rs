//! Tests that everything registered is documented, and everything documented is registered.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use zprobe_diagnose::{rules, rules::RULES};
use zprobe_model::spec::settings::{self, Description};
use zprobe_model::spec::{Engine, Fault};
use zprobe_report::{Exit, Verdict};
use zprobe_zoo::{Expectation, registry};

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
    let mut files = names("crates/diagnose/src/rules");
    assert!(files.remove("mod.rs"));
    for rule in RULES {
        let family = format!("{}xx_", rule.code[..3].to_lowercase());
        let start = format!("{}_", rule.code.to_lowercase());
        let has_own = files.iter().any(|file| file.starts_with(&start));
        if !has_own && let Some(file) = FAMILIES.iter().find(|file| file.starts_with(&family)) {
            let text = read(PathBuf::from("crates/diagnose/src/rules").join(file));
            assert!(text.contains(&format!("\"{}\"", rule.code)), "{} is not in {file}", rule.code);
            continue;
        }
        let own: Vec<String> =
            files.iter().filter(|file| file.starts_with(&start)).cloned().collect();
        let expected = format!("{start}{}.rs", rule.name.replace('-', "_"));
        assert_eq!(own, [expected], "the file of {} {}", rule.code, rule.name);
        files.remove(&own[0]);
        let text = read(PathBuf::from("crates/diagnose/src/rules").join(&own[0]));
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
fn every_page_names_the_rules_that_explain_its_findings() {
    let unnamed = RULES.iter().flat_map(|rule| {
        let others = rule.explained_by.iter().filter(|other| !rule.doc.contains(other.as_str()));
        others.map(|other| format!("{} in {}.md", other, rule.code))
    });
    assert_eq!(unnamed.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn every_fault_is_on_the_page_of_the_rule_that_names_it() {
    for fault in Fault::ALL {
        let (wanted, code) = (format!("--inject {fault}"), fault.expected().code);
        let rule = RULES.iter().find(|rule| rule.code == code);
        let rule = rule.unwrap_or_else(|| panic!("{fault} must be found as {code}: no such rule"));
        // Pages are wrapped; a flag and its value may stand on two lines.
        let page = rule.doc.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(page.contains(&wanted), "the page of {code} does not say `{wanted}`");
    }
}

/// A setting as a row of a table.
fn row_of(setting: Description) -> String {
    let engines = match setting.engines {
        all if all.len() == Engine::CHOICES.len() => "all".to_owned(),
        some => some.iter().map(|engine| engine.name()).collect::<Vec<_>>().join(", "),
    };
    let default = setting.default.unwrap_or_default();
    let keys = setting.key.map(|keys| format!("`{}`", keys.replace(", ", "`, `")));
    let keys = keys.unwrap_or_default();
    format!("| `{}` | {default} | {engines} | {keys} | {} |\n", setting.flag, setting.help)
}

/// After a change of the table: `ZPROBE_BLESS=1 cargo test --test it documentation` writes the page anew.
#[test]
fn every_setting_is_on_the_page_of_settings_with_its_default_and_its_engines() {
    let page = read("docs/settings.md");
    let text = page.split("| Flag |").next().unwrap();
    let head = "| Flag | Default | Engines | DeepSpeed's key | Meaning |\n|---|---|---|---|---|\n";
    let rows: String = settings::ALL.iter().map(|setting| row_of(setting.describe())).collect();
    let right = format!("{text}{head}{rows}");
    if std::env::var_os("ZPROBE_BLESS").is_some() {
        fs::write(root().join("docs/settings.md"), &right).unwrap();
    }
    assert_eq!(read("docs/settings.md"), right, "docs/settings.md is out of date");
}

/// The table of exit codes of a page: each number, with the rest of its row.
fn exit_codes(page: &str) -> Vec<(String, String)> {
    let rows = page.lines().skip_while(|line| !line.starts_with("| Code |")).skip(2);
    let rows = rows.map_while(|line| line.strip_prefix("| ")?.split_once(" | "));
    rows.map(|(code, meaning)| (code.to_owned(), meaning.to_owned())).collect()
}

#[test]
fn the_page_of_the_report_lists_every_exit_code_with_its_verdict() {
    let page = "docs/report.md";
    let listed = exit_codes(&read(page));
    let verdict = |exit: &Exit| Verdict::ALL.iter().find(|verdict| Exit::from(**verdict) == *exit);
    for (exit, (code, meaning)) in Exit::ALL.iter().zip(&listed) {
        let wanted = verdict(exit).map_or("nothing ran".to_owned(), |it| format!("`{it}`"));
        assert_eq!(*code, exit.code().to_string(), "{page}");
        assert!(meaning.contains(&wanted), "{page}, exit code {code}: `{wanted}` is missing");
    }
    assert_eq!(listed.len(), Exit::ALL.len(), "{page}: {listed:?}");
}

#[test]
fn the_readme_is_read_in_thirty_seconds() {
    let bytes = read("README.md").len();
    assert!(bytes <= 6 * 1024, "README.md has {bytes} bytes: move something to a page of docs");
}

#[test]
fn every_table_of_exit_codes_has_all_of_them_and_no_other() {
    let all: Vec<String> = Exit::ALL.iter().map(|exit| exit.code().to_string()).collect();
    let mut tables = 0;
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let page = entry.unwrap().path();
        if page.extension().is_some_and(|ending| ending == "md") {
            let listed: Vec<_> = exit_codes(&read(&page)).into_iter().map(|it| it.0).collect();
            tables += usize::from(!listed.is_empty());
            assert!(listed.is_empty() || listed == all, "{}: {listed:?}", page.display());
        }
    }
    assert!(tables > 0, "no page has a table of exit codes");
}

#[test]
fn a_rule_that_a_known_bug_leads_to_has_real_cases() {
    for row in registry::rows() {
        let expected = row.releases.iter().filter_map(|release| match &release.expect {
            Expectation::Finding(code) => Some(*code),
            Expectation::Crash { finding, .. } => *finding,
            Expectation::Clean => None,
        });
        for code in expected {
            let rule = rules::find(&code).unwrap();
            assert!(!rule.doc.contains("None known"), "{code}: see zprobe zoo {}", row.name);
        }
    }
}
