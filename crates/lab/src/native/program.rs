//! The search for the rank program of the native engine.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{PACKAGE, VERSION};
use crate::python;

/// The name of the rank program.
const PROGRAM: &str = "zprobe-rank";

/// A Python program that prints the directory and the release of the package as JSON, or `null` without the package.
const FIND_PACKAGE: &str = "
import importlib.metadata, importlib.util, json
spec = importlib.util.find_spec('zprobe_native')
print(json.dumps(spec and {
    'directory': spec.submodule_search_locations[0],
    'release': importlib.metadata.version('zprobe-native'),
}))
";

/// The package zprobe-native, as an interpreter has it.
#[derive(Deserialize)]
struct NativePackage {
    directory: PathBuf,
    release: String,
}

/// The path of the rank program: next to the running program, in the package of the interpreter `python`, or in the
/// package of the environment that zprobe is installed in.
///
/// # Errors
/// When the program is not found, or is of another release, in words.
pub fn program(python: Option<&Path>) -> Result<PathBuf, String> {
    let running = std::env::current_exe()
        .map_err(|cause| format!("cannot find the path of zprobe's own executable: {cause}"))?;
    let own = python::own();
    let pythons: Vec<&Path> = python.into_iter().chain(own.as_deref()).collect();
    find(&running.with_file_name(PROGRAM), &pythons)
}

/// The program at the first path, or in the package of the first interpreter that has the package.
fn find(next_to: &Path, pythons: &[&Path]) -> Result<PathBuf, String> {
    if next_to.is_file() {
        return Ok(next_to.to_owned());
    }
    let mut without: Vec<&Path> = Vec::new();
    for &python in pythons {
        if without.contains(&python) {
            continue;
        }
        match ask(python) {
            Some(NativePackage { directory, release }) if release == VERSION => {
                return Ok(directory.join(PROGRAM));
            }
            Some(NativePackage { release, .. }) => {
                let python = python.display();
                return Err(format!(
                    "{PACKAGE} {release} in {python} does not fit zprobe {VERSION}"
                ));
            }
            None => without.push(python),
        }
    }
    let names: Vec<String> = without.iter().map(|python| python.display().to_string()).collect();
    let environments =
        if names.is_empty() { String::new() } else { format!(" in {}", names.join(" or ")) };
    let next_to = next_to.display();
    Err(format!("there is no {next_to}, and no package {PACKAGE}{environments}"))
}

/// The package of an interpreter; `None` if the interpreter does not have it, or does not answer.
fn ask(python: &Path) -> Option<NativePackage> {
    let output = python::command(python).args(["-c", FIND_PACKAGE]).output().ok()?;
    serde_json::from_slice(&output.stdout).ok()?
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// An interpreter in `dir` that prints `answer`.
    fn python(dir: &Path, name: &str, answer: &str) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\necho '{answer}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_rank_program_is_beside_zprobe_or_in_the_first_environment_that_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let package = |at: &str| format!(r#"{{"directory": "{at}", "release": "{VERSION}"}}"#);
        let without = python(dir.path(), "without", "null");
        let broken = python(dir.path(), "broken", "no JSON");
        let first = python(dir.path(), "first", &package("/first"));
        let second = python(dir.path(), "second", &package("/second"));
        let next_to = dir.path().join("zprobe-rank");
        let found = find(&next_to, &[&without, &broken, &first, &second]).unwrap();
        assert_eq!(found, Path::new("/first/zprobe-rank"));
        fs::write(&next_to, "").unwrap();
        assert_eq!(find(&next_to, &[&first]).unwrap(), next_to);
    }

    #[test]
    fn a_rank_program_that_is_nowhere_or_of_another_release_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let next_to = dir.path().join("zprobe-rank");
        let without = python(dir.path(), "without", "null");
        let other = python(dir.path(), "other", r#"{"directory": "/x", "release": "0.0.1"}"#);
        let reason = find(&next_to, &[&without, &without]).unwrap_err();
        let expected = format!("and no package zprobe-native in {}", without.display());
        assert!(reason.ends_with(&expected), "{reason}");
        let reason = find(&next_to, &[&without, &other]).unwrap_err();
        let expected = format!("{} does not fit zprobe {VERSION}", other.display());
        assert_eq!(reason, format!("zprobe-native 0.0.1 in {expected}"));
    }
}
