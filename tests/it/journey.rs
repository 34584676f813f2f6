//! Tests that dependencies point one way along the journey of the data.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use zprobe::spec::Engine;

/// Each module of the library, and the modules that it may use.
const LIBRARY: &[(&str, &[&str])] = &[
    ("visible", &[]),
    ("run_dir", &[]),
    ("python", &[]),
    ("answer", &[]),
    ("spec", &[]),
    ("engines", &["spec"]),
    ("trace", &["spec", "run_dir"]),
    ("redact", &["spec", "trace"]),
    ("job", &[]),
    ("launch", &["spec", "job", "trace", "redact", "run_dir"]),
    ("adapters", &["spec", "engines", "launch", "trace", "run_dir"]),
    ("exec", &["spec", "launch", "adapters", "trace", "run_dir"]),
    ("native", &["spec", "engines", "launch", "trace", "run_dir", "python", "answer"]),
    ("report", &["spec", "engines", "trace", "visible"]),
    ("environment", &[]),
    ("document", &[]),
    ("zoo", &["spec", "report", "environment", "document"]),
    ("diagnose", &["spec", "engines", "trace", "report", "zoo"]),
    ("lattice", &["spec", "engines", "report"]),
    ("doctor", &["spec", "engines", "job", "python", "answer"]),
    (
        "attachment",
        &[
            "spec", "engines", "trace", "redact", "report", "doctor", "visible", "run_dir",
            "python", "answer",
        ],
    ),
    ("console", &["spec", "trace", "report", "visible", "run_dir"]),
    (
        "lab",
        &[
            "spec",
            "engines",
            "job",
            "launch",
            "adapters",
            "exec",
            "native",
            "trace",
            "redact",
            "diagnose",
            "report",
            "environment",
            "zoo",
            "lattice",
            "doctor",
            "document",
            "attachment",
            "console",
            "visible",
            "run_dir",
        ],
    ),
];

/// Each program, and the modules of the library that it may use.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("src/main.rs", &[]),
    (
        "src/cli",
        &[
            "lab",
            "console",
            "spec",
            "engines",
            "job",
            "launch",
            "exec",
            "native",
            "trace",
            "redact",
            "diagnose",
            "report",
            "environment",
            "zoo",
            "lattice",
            "doctor",
            "document",
            "attachment",
            "visible",
            "python",
        ],
    ),
    ("src/bin/zprobe-rank", &["spec", "trace", "run_dir"]),
];

/// The source of the rank program, the only program that links libtorch.
const LIBTORCH: &str = "src/bin/zprobe-rank";

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
    let mut dirs = vec![root.join("src")];
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
    assert!(sources.len() > LIBRARY.len(), "the sources were not found");
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Cuts every line at `//`. A string that contains `//` loses its end, which hides no path.
fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect()
}

/// The path of a library module inside the crate: `src/spec/plan.rs` is `["spec", "plan"]`. `None` for files
/// of programs.
fn module(path: &str) -> Option<Vec<&str>> {
    let inside = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    let mut parts: Vec<&str> = inside.split('/').collect();
    if parts.last() == Some(&"mod") {
        parts.pop();
    }
    LIBRARY.iter().any(|(name, _)| *name == parts[0]).then_some(parts)
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

/// The modules of the library that a library file uses, by `crate::` or by climbing out with `super::`.
fn used_by_library(source: &Source, depth: usize) -> Vec<String> {
    let used = names_behind(&source.code, "crate").into_iter().map(str::to_owned);
    used.chain(climbed_to(source, depth)).collect()
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
            ["src/spec/", "src/engines/"].iter().any(|room| source.path.starts_with(room));
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

#[test]
fn the_table_lists_every_module_of_the_library() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lib = without_comments(&fs::read_to_string(root.join("src/lib.rs")).unwrap());
    let mut declared: Vec<&str> = lib
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';')?.rsplit_once("mod "))
        .map(|(_, name)| name)
        .collect();
    let mut listed: Vec<&str> = LIBRARY.iter().map(|(name, _)| *name).collect();
    declared.sort_unstable();
    listed.sort_unstable();
    assert_eq!(declared, listed);
}

#[test]
fn the_table_has_no_way_back() {
    // Each module may use only modules that stand before it in the table.
    let place: BTreeMap<&str, usize> =
        LIBRARY.iter().enumerate().map(|(at, (name, _))| (*name, at)).collect();
    for (name, allowed) in LIBRARY {
        for other in *allowed {
            assert!(place[other] < place[name], "{name} may use {other}");
        }
    }
}

#[test]
fn modules_use_only_what_lies_before_them() {
    for source in sources() {
        let Some(module) = module(&source.path) else { continue };
        let own = module[0];
        let (_, allowed) = LIBRARY.iter().find(|(name, _)| *name == own).unwrap();
        for used in used_by_library(&source, module.len()) {
            // Other names at the root are macros and constants, which belong to no module.
            if used == own || !LIBRARY.iter().any(|(name, _)| *name == used) {
                continue;
            }
            assert!(
                allowed.contains(&used.as_str()),
                "{} uses {used}, but {own} may use only {allowed:?}",
                source.path,
            );
        }
    }
}

#[test]
fn programs_use_only_their_part_of_the_library() {
    for source in sources() {
        if module(&source.path).is_some() || source.path == "src/lib.rs" {
            continue;
        }
        let program = PROGRAMS.iter().find(|(path, _)| source.path.starts_with(path));
        let (program, allowed) =
            program.unwrap_or_else(|| panic!("{}: which program is this?", source.path));
        for used in names_behind(&source.code, "zprobe") {
            assert!(
                allowed.contains(&used),
                "{} uses zprobe::{used}, but {program} may use only {allowed:?}",
                source.path,
            );
        }
    }
}

/// The modules of a room, each with the names in that room that the module uses, by `crate::ROOM::` and by
/// `super::`. Uses in tests do not count.
fn uses_inside(room: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for mut source in sources() {
        let path = source.path.clone();
        let Some(inside) = path.strip_prefix(&format!("src/{room}/")) else { continue };
        let module: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
        let module = module.strip_suffix(&["mod"]).unwrap_or(&module);
        let [own, ..] = module else { continue };
        let used = uses.entry((*own).to_owned()).or_default();
        if !module.ends_with(&["tests"]) {
            source.code.truncate(source.code.find("\nmod tests {").unwrap_or(source.code.len()));
            let named = names_behind(&source.code, &format!("crate::{room}"));
            used.extend(named.into_iter().map(str::to_owned));
            used.extend(climbed_to(&source, module.len()));
            used.remove(*own);
        }
    }
    uses
}

#[test]
fn no_module_of_the_command_line_or_the_laboratory_uses_one_that_uses_it() {
    for room in ["cli", "lab"] {
        let mut left = uses_inside(room);
        assert!(left.len() > 10, "the modules of src/{room} were not found");
        let modules: BTreeSet<String> = left.keys().cloned().collect();
        for (module, used) in &left {
            // A room may not have items besides its modules: the room declares its modules, so a module that
            // uses such an item would close a circle.
            assert!(used.is_subset(&modules), "src/{room}: {module} uses {used:?}");
        }
        while let Some((free, _)) = left.iter().find(|(_, used)| used.is_empty()) {
            let free = free.clone();
            left.remove(&free);
            left.values_mut().for_each(|used| used.retain(|it| *it != free));
        }
        assert!(left.is_empty(), "src/{room}: there is a circle in {left:?}");
    }
}

#[test]
fn only_the_console_shows_progress() {
    for source in sources() {
        let says = !names_behind(&source.code, "indicatif").is_empty();
        assert!(!says || source.path.starts_with("src/console/"), "{} says it", source.path);
    }
}

#[test]
fn only_ranks_say_tch() {
    for source in sources() {
        let says = ["tch", "torch_sys"].into_iter().find(|name| {
            !names_behind(&source.code, name).is_empty()
                || source.code.contains(&format!("use {name};"))
        });
        if let Some(name) = says {
            assert!(source.path.starts_with(LIBTORCH), "{} says `{name}`", source.path);
        }
    }
}

#[test]
fn a_diagnosis_is_a_function_of_the_trace_alone() {
    for source in sources().iter().filter(|source| source.path.starts_with("src/diagnose/")) {
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
        path: "src/diagnose/decode/coded.rs".to_owned(),
        code: "use super::super::observed::Buffer;\nuse super::super::super::launch::Launch;\n\
               mod tests {\n    use super::super::super::observed::Observed;\n}\n"
            .to_owned(),
    };
    assert_eq!(used_by_library(&source, 3), ["launch"]);
}
