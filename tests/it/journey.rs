//! Tests of the dependencies inside of crates; the compiler holds those between crates.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use zprobe_model::spec::Engine;

/// Modules that a diagnosis must not depend on: it is a function of only the trace.
const IMPURE: &[&str] = &["std::env", "std::fs", "std::net", "std::process", "std::time"];

/// A source file, by its path in the repository.
struct Source {
    path: String,
    /// The text of the file, without comments.
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut dirs = vec![root.join("src"), root.join("crates")];
    let mut sources = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let code = without_comments(&fs::read_to_string(&path).unwrap());
                let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                sources.push(Source { path, code });
            }
        }
    }
    assert!(sources.len() > 100, "the sources were not found");
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Cuts every line at `//`. A string that contains `//` loses its end, which hides no path.
fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect()
}

/// The first names after every `root::`, including those of a group `root::{a, b::c}`.
fn names_behind<'a>(code: &'a str, root: &str) -> Vec<&'a str> {
    let path = format!("{root}::");
    code.match_indices(&path)
        .filter(|(at, _)| {
            // `my_crate::` and `super::crate::` are other paths; `$crate::` is this crate.
            !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
        })
        .flat_map(|(at, _)| first_names(&code[at + path.len()..]))
        .collect()
}

fn first_names(rest: &str) -> Vec<&str> {
    let name = |text| {
        let text: &str = str::trim_start(text);
        &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
    };
    let Some(group) = rest.strip_prefix('{') else { return vec![name(rest)] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' | ',' if depth == 0 => {
                names.push(name(&group[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// The names that a file, `depth` modules below a place, reaches by climbing to that place with `super::`.
fn climbed_to(source: &Source, depth: usize) -> Vec<String> {
    let mut used = Vec::new();
    let tests = source.code.find("\nmod tests {").unwrap_or(source.code.len());
    for (at, _) in source.code.match_indices("super::") {
        let before = &source.code[..at];
        if before.ends_with("super::") {
            continue;
        }
        let chain = &source.code[at..];
        let rest = chain.trim_start_matches("super::");
        let supers = (chain.len() - rest.len()) / "super::".len();
        let here = depth + usize::from(at > tests);
        if supers >= here {
            used.extend(first_names(rest).into_iter().map(str::to_owned));
        }
    }
    used
}

#[test]
fn engines_are_named_in_the_language_and_in_their_rooms_alone() {
    let elsewhere = |source: &&Source| {
        let at_home =
            ["crates/model/", "crates/engines/"].iter().any(|room| source.path.starts_with(room));
        !at_home && !source.path.ends_with("tests.rs")
    };
    for source in sources().iter().filter(elsewhere) {
        let code = source.code.split("\nmod tests {").next().unwrap_or_default();
        for engine in Engine::CHOICES {
            let name = format!("Engine::{engine:?}");
            let path = &source.path;
            assert!(!code.contains(&name), "{path} goes by {name}: ask engines::of, or its traits");
        }
    }
}

/// Each module of a folder with the names in that folder that it uses, by `super::` and by `root`, the folder's path
/// in its crate. Tests do not count.
fn uses_inside(folder: &str, root: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for mut source in sources() {
        let path = source.path.clone();
        let Some(inside) = path.strip_prefix(&format!("{folder}/")) else { continue };
        let module: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
        let module = module.strip_suffix(&["mod"]).unwrap_or(&module);
        if module == ["lib"] {
            continue;
        }
        let [own, ..] = module else { continue };
        let used = uses.entry((*own).to_owned()).or_default();
        if !module.ends_with(&["tests"]) {
            source.code.truncate(source.code.find("\nmod tests {").unwrap_or(source.code.len()));
            let named = names_behind(&source.code, root);
            used.extend(named.into_iter().map(str::to_owned));
            used.extend(climbed_to(&source, module.len()));
            used.remove(*own);
        }
    }
    uses
}

#[test]
fn no_module_of_the_command_line_the_laboratory_or_the_diagnosis_uses_one_that_uses_it() {
    let folders =
        [("src/cli", "crate::cli"), ("crates/lab/src", "crate"), ("crates/diagnose/src", "crate")];
    for (folder, root) in folders {
        let mut left = uses_inside(folder, root);
        assert!(left.len() > 10, "the modules of {folder} were not found");
        let modules: BTreeSet<String> = left.keys().cloned().collect();
        for (module, used) in &left {
            // A folder may not have items besides its modules: the folder declares its modules, so a module that
            // uses such an item would close a circle.
            assert!(used.is_subset(&modules), "{folder}: {module} uses {used:?}");
        }
        while let Some((free, _)) = left.iter().find(|(_, used)| used.is_empty()) {
            let free = free.clone();
            left.remove(&free);
            left.values_mut().for_each(|used| used.retain(|it| *it != free));
        }
        assert!(left.is_empty(), "{folder}: there is a circle in {left:?}");
    }
}

#[test]
fn only_the_console_shows_progress() {
    for source in sources() {
        let says = !names_behind(&source.code, "indicatif").is_empty();
        assert!(
            !says || source.path.starts_with("crates/lab/src/console/"),
            "{} says it",
            source.path
        );
    }
}

#[test]
fn a_diagnosis_is_a_function_of_the_trace_alone() {
    for source in sources().iter().filter(|source| source.path.starts_with("crates/diagnose/")) {
        for used in names_behind(&source.code, "std") {
            let path = format!("std::{used}");
            assert!(!IMPURE.contains(&path.as_str()), "{} uses {path}", source.path);
        }
    }
}

#[test]
fn paths_are_found_in_every_form() {
    let code = "use crate::{launch, spec::{self, Plan}, trace::Event};\n\
                fn f() -> crate::report::Finding { $crate::diagnose::x() }\n\
                use my_crate::no; // crate::comment\n";
    let code = without_comments(code);
    let found = names_behind(&code, "crate");
    assert_eq!(found, ["launch", "spec", "trace", "report", "diagnose"]);

    let source = Source {
        path: "crates/diagnose/src/decode/coded.rs".to_owned(),
        code: "use super::super::observed::Buffer;\nuse super::super::super::launch::Launch;\n\
               mod tests {\n    use super::super::super::observed::Observed;\n}\n"
            .to_owned(),
    };
    assert_eq!(climbed_to(&source, 3), ["launch"]);
}
