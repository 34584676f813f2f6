//! The Python program that runs the ranks of real engines.
//!
//! The ranks run under the user's interpreter, from the files next to this one, which need only the standard
//! library, torch and the engine. One process imports the engine and forks the ranks ([`Hosting::Forked`]), so the
//! engine is imported once for all ranks. The ranks emit the same [`Event`](zprobe_model::trace::Event)s as native ranks.
//!
//! The ranks observe the engine with wrappers and hooks, and never change what the engine computes.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::{Hosting, RankProgram};
use zprobe_engines::{self as engines, PythonSource};
use zprobe_model::run_dir;
use zprobe_model::spec::{Device, Engine};

/// The files of the rank program that all engines share, each with its path and its text: a Python package and its
/// entry point.
const SHARED: &[(&str, &str)] = &[
    ("__main__.py", include_str!("__main__.py")),
    ("zprobe_rank/__init__.py", include_str!("zprobe_rank/__init__.py")),
    ("zprobe_rank/channel.py", include_str!("zprobe_rank/channel.py")),
    ("zprobe_rank/checkpoint.py", include_str!("zprobe_rank/checkpoint.py")),
    ("zprobe_rank/codes.py", include_str!("zprobe_rank/codes.py")),
    ("zprobe_rank/collectives.py", include_str!("zprobe_rank/collectives.py")),
    ("zprobe_rank/device.py", include_str!("zprobe_rank/device.py")),
    ("zprobe_rank/engines/__init__.py", include_str!("zprobe_rank/engines/__init__.py")),
    ("zprobe_rank/eyes.py", include_str!("zprobe_rank/eyes.py")),
    ("zprobe_rank/forward.py", include_str!("zprobe_rank/forward.py")),
    ("zprobe_rank/graph.py", include_str!("zprobe_rank/graph.py")),
    ("zprobe_rank/host.py", include_str!("zprobe_rank/host.py")),
    ("zprobe_rank/model.py", include_str!("zprobe_rank/model.py")),
    ("zprobe_rank/observer.py", include_str!("zprobe_rank/observer.py")),
    ("zprobe_rank/optimizer_tap.py", include_str!("zprobe_rank/optimizer_tap.py")),
    ("zprobe_rank/placement.py", include_str!("zprobe_rank/placement.py")),
    ("zprobe_rank/pool.py", include_str!("zprobe_rank/pool.py")),
    ("zprobe_rank/rank.py", include_str!("zprobe_rank/rank.py")),
    ("zprobe_rank/records.py", include_str!("zprobe_rank/records.py")),
    ("zprobe_rank/rendezvous.py", include_str!("zprobe_rank/rendezvous.py")),
    ("zprobe_rank/run.py", include_str!("zprobe_rank/run.py")),
    ("zprobe_rank/sampler.py", include_str!("zprobe_rank/sampler.py")),
    ("zprobe_rank/selection.py", include_str!("zprobe_rank/selection.py")),
    ("zprobe_rank/tensors.py", include_str!("zprobe_rank/tensors.py")),
    ("zprobe_rank/workload.py", include_str!("zprobe_rank/workload.py")),
];

/// The path and the text of every file of the rank program. Each engine has a package in `zprobe_rank/engines`,
/// made from the Python files in the engine's directory.
fn files() -> impl Iterator<Item = (String, &'static str)> {
    let scripts = engine_files(|python| python.script);
    SHARED.iter().map(|(name, text)| ((*name).to_owned(), *text)).chain(scripts).chain(eyes())
}

/// The path and the text of the files that observe the engines. These files import only each other, `eyes.py` and
/// `tensors.py`.
pub fn eyes() -> impl Iterator<Item = (String, &'static str)> {
    engine_files(|python| python.eyes)
}

/// The path and the text of the files that `select` selects from each engine's package.
fn engine_files(
    select: fn(&PythonSource) -> &'static [(&'static str, &'static str)],
) -> impl Iterator<Item = (String, &'static str)> {
    engines::real().flat_map(move |(engine, python)| {
        let package = package(engine);
        let path = move |name: &str| format!("zprobe_rank/engines/{package}/{name}");
        select(python).iter().map(move |(name, text)| (path(name), *text))
    })
}

/// The name of an engine's Python package, which is also the name of the engine's directory in `crates/engines/src`.
fn package(engine: Engine) -> String {
    engine.name().replace('-', "_")
}

/// The path and the text of the files with these `names` in the package that all rank programs share.
pub fn shared(names: &[&str]) -> impl Iterator<Item = (String, &'static str)> {
    let is_one =
        |path: &str| path.strip_prefix("zprobe_rank/").is_some_and(|name| names.contains(&name));
    let files = SHARED.iter().filter(move |(path, _)| is_one(path));
    files.map(|(path, text)| ((*path).to_owned(), *text))
}

/// The directory of the rank program inside a run directory.
const DIRECTORY: &str = "rank-program";

/// The error if the rank program cannot be written to the run directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {cause}; choose another run directory with --out")]
pub struct Unwritable {
    path: PathBuf,
    cause: io::Error,
}

/// Writes the rank program into the run directory `dir`, and returns the command that starts the program with `python`.
///
/// The program is kept with the run, so that a user can read it there and start it again.
///
/// # Errors
/// Fails if the run directory cannot be written to.
pub fn rank_program(python: &Path, dir: &Path) -> Result<RankProgram, Unwritable> {
    program(python, dir, &[])
}

/// Writes the rank program as [`rank_program`] does, but for a pool: a process that loads `engine` for `device`
/// once, before the first of many runs.
///
/// The directory `dir` outlives the runs, and no run uses `dir` as its run directory.
///
/// # Errors
/// Fails if the directory cannot be written to.
pub fn pool_program(
    python: &Path,
    dir: &Path,
    engine: Engine,
    device: Device,
) -> Result<RankProgram, Unwritable> {
    program(python, dir, &[engine.name(), device.name()])
}

fn program(python: &Path, dir: &Path, pool: &[&str]) -> Result<RankProgram, Unwritable> {
    let directory = dir.join(DIRECTORY);
    let unwritable = |path: &Path| {
        let path = path.to_owned();
        |cause| Unwritable { path, cause }
    };
    // Python looks for every module in this directory first, so the directory must not contain anything else.
    run_dir::create_dir(&directory).map_err(unwritable(&directory))?;
    for (name, text) in files() {
        let path = directory.join(name);
        let parent = path.parent().unwrap_or(&directory);
        if !run_dir::is_dir(parent) {
            run_dir::create_dir(parent).map_err(unwritable(parent))?;
        }
        run_dir::create(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(unwritable(&path))?;
    }
    Ok(RankProgram {
        program: python.to_owned(),
        // -B keeps Python from writing byte code into the run directory.
        args: ["-B".into(), directory.into()]
            .into_iter()
            .chain(pool.iter().map(|word| (*word).into()))
            .collect(),
        hosting: Hosting::Forked,
        library_path: vec![],
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The paths of the Python files below a directory.
    fn python_files(root: &Path) -> Vec<String> {
        let mut directories = vec![root.to_owned()];
        let mut names = Vec::new();
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).expect("a directory of Python files") {
                let path = entry.expect("a Python file").path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|ending| ending == "py") {
                    let name = path.strip_prefix(root).expect("a path below the root");
                    names.push(name.display().to_string());
                }
            }
        }
        names.sort();
        names
    }

    #[test]
    fn every_python_file_is_embedded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let shared: Vec<&str> = SHARED.iter().map(|(name, _)| *name).collect();
        assert_eq!(python_files(&root.join("src/adapters")), shared);
        for (engine, python) in engines::real() {
            let mut on_disk = python_files(&root.join("../engines/src").join(package(engine)));
            // The doctor runs `trial.py`, and bug reports contain `repro.py`; a rank uses neither.
            on_disk.retain(|name| !["trial.py", "repro.py"].contains(&name.as_str()));
            let files = python.script.iter().chain(python.eyes);
            let mut embedded: Vec<&str> = files.map(|(name, _)| *name).collect();
            embedded.sort_unstable();
            assert_eq!(on_disk, embedded, "{engine}");
        }
    }
}
