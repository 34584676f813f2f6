//! Pages that are true to the screen: every command of the README and of docs in a block of the language
//! `console` is typed on a terminal of 80 columns, in an empty directory, and what the terminal shows is compared
//! with what the page says. A line `...` stands for any lines; times, names of runs and paths of interpreters
//! may differ. A block without output is only run: it must not end with a usage error. The commands that a screen
//! offers (`next:`, `again:`) must not, either.
//!
//! Comments of a page say what a reader has: `<!-- run with deepspeed==0.18.9 as .venv -->`, `<!-- run without
//! an engine -->`; and of the next block, whether it takes part: `<!-- run in full: REASON -->` with
//! `ZPROBE_TEST_FULL`, `<!-- not run: REASON -->` never. `<!-- shown as PATH -->` says that the picture at this path is the screen of
//! the next block. A block whose first line is `# PATH` is that file.
//!
//! The pages are those of a machine without a GPU. The tests need the native engine, and environments that
//! `zprobe provision` makes. After a change of a screen `ZPROBE_BLESS=1` puts what was shown into the pages.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_macros, reason = "what is skipped is said")]

mod issues;
mod offered;
mod page;
mod place;
mod same;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anstyle_svg::Term;

use self::page::{PROMPT, Sample, Step, When};
use self::place::Place;

/// Pages with samples, each a test, so that they run side by side.
macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            #[ignore = "needs the native engine, and makes Python environments"]
            fn $test() {
                is_true($page);
            }
        )*
    };
}

pages! {
    the_readme_is_true_to_the_screen: "README.md",
    bisect_is_true_to_the_screen: "docs/bisect.md",
    compare_is_true_to_the_screen: "docs/compare.md",
    file_a_bug_is_true_to_the_screen: "docs/file-a-bug.md",
    gate_it_in_ci_is_true_to_the_screen: "docs/gate-it-in-ci.md",
    gpu_is_true_to_the_screen: "docs/gpu.md",
    install_is_true_to_the_screen: "docs/install.md",
    is_my_engine_right_is_true_to_the_screen: "docs/is-my-engine-right.md",
    many_machines_is_true_to_the_screen: "docs/many-machines.md",
}

/// Reports for the engines' own trackers.
const UPSTREAM: &str = "docs/upstream/*.md";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Pages whose names fit these patterns, by their paths from the root.
fn named(patterns: &[&str]) -> BTreeSet<String> {
    let found = patterns.iter().flat_map(|pattern| {
        let all = glob::glob(&root().join(pattern).display().to_string()).unwrap();
        all.map(|path| path.unwrap().strip_prefix(root()).unwrap().display().to_string())
    });
    found.collect()
}

/// Fails with every block of a page that is not true.
fn is_true(name: &str) {
    let wrong = wrong(name);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Types the commands of a page. The result says which blocks are not true; or they are corrected.
fn wrong(name: &str) -> Vec<String> {
    let path = root().join(name);
    let text = fs::read_to_string(&path).unwrap();
    let mut place = Place::new();
    let mut wrong = Vec::new();
    let mut right = text.clone();
    // From the end on, so that places before stay where they are.
    let mut corrections = Vec::new();
    // Environments are made for blocks that take part alone.
    let mut engines = None;
    for step in page::read(&text).unwrap_or_else(|error| panic!("{name}:{error}")) {
        match step {
            Step::Have(others) => engines = Some(others),
            Step::Write { path, text } => place.write(&path, &text),
            Step::Type(sample) if takes_part(name, &sample) => {
                if let Some(engines) = engines.take() {
                    place.have(&engines);
                }
                let (body, mut differences) = typed(&place, &sample);
                if !differences.is_empty() {
                    corrections.push((sample.place, body));
                }
                wrong.extend(
                    differences.drain(..).map(|it| format!("{name}:{}: {it}", sample.line)),
                );
            }
            Step::Type(_) => {}
        }
    }
    if std::env::var_os("ZPROBE_BLESS").is_some() {
        for (place, body) in corrections.into_iter().rev() {
            right.replace_range(place, &body);
        }
        fs::write(path, right).unwrap();
        return Vec::new();
    }
    wrong
}

#[test]
#[ignore = "needs the native engine, and makes Python environments"]
fn the_reports_for_upstream_are_true_to_the_screen() {
    let wrong: Vec<String> = named(&[UPSTREAM]).iter().flat_map(|page| wrong(page)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// True if a block takes part in this run of the tests.
fn takes_part(name: &str, sample: &Sample) -> bool {
    let reason = match &sample.when {
        When::Always => return true,
        When::Full(_) if std::env::var_os("ZPROBE_TEST_FULL").is_some() => return true,
        When::Full(reason) => format!("only with ZPROBE_TEST_FULL: {reason}"),
        When::Never(reason) => reason.clone(),
    };
    println!("skipped {name}:{}: {reason}", sample.line);
    false
}

/// Types the commands of a block: what the block should be, and where it is not so.
fn typed(place: &Place, sample: &Sample) -> (String, Vec<String>) {
    let (mut body, mut wrong) = (String::new(), Vec::new());
    for exchange in &sample.exchanges {
        let screen = place.type_in(&exchange.command);
        body += &format!("{PROMPT}{}\n", exchange.command);
        if exchange.said.is_empty() {
            if screen.code == 2 {
                wrong.push(format!("{} was refused:\n{}", exchange.command, screen.text));
            }
        } else if let Some(difference) = same::difference(&exchange.said, &screen.text) {
            wrong.push(format!("{}\n{difference}", exchange.command));
            body += &same::corrected(&exchange.said, &screen.text);
        } else {
            body += &exchange.said;
        }
        wrong.extend(offered::refused(place, &screen.text));
        if let Some(path) = &sample.picture {
            wrong.extend(picture(path, &exchange.command, &screen.coloured));
        }
    }
    (body, wrong)
}

/// The difference between a picture and the screen that it shows; `None` if they are the same, or are made so.
fn picture(path: &Path, command: &str, screen: &str) -> Option<String> {
    let path = root().join(path);
    let svg = Term::new().render_svg(&format!("{PROMPT}{command}\n{screen}"));
    let differs = same::difference(&fs::read_to_string(&path).unwrap_or_default(), &svg)?;
    if std::env::var_os("ZPROBE_BLESS").is_some() {
        fs::write(path, svg).unwrap();
        return None;
    }
    Some(format!("{}\n{differs}", path.display()))
}

#[test]
fn every_page_with_samples_is_tested() {
    let with_samples = |name: &String| {
        let steps = page::read(&fs::read_to_string(root().join(name)).unwrap());
        let steps = steps.unwrap_or_else(|error| panic!("{name}:{error}"));
        steps.iter().any(|step| matches!(step, Step::Type(_)))
    };
    let all: BTreeSet<String> =
        named(&["*.md", "docs/*.md"]).into_iter().filter(with_samples).collect();
    let tested: BTreeSet<String> = PAGES.iter().map(|page| (*page).to_owned()).collect();
    assert_eq!(all, tested);
}
