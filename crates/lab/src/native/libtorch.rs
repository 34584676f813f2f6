//! The libtorch for ranks on CUDA devices, as the user names it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::{Deserialize, Serialize};

/// A Python program that prints the directory of the package `torch`. It does not import torch, which takes seconds.
const FIND_TORCH: &str = "
import importlib.util
spec = importlib.util.find_spec('torch')
print(spec.submodule_search_locations[0] if spec else '')
";

/// A libtorch for ranks on CUDA devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Libtorch {
    /// The directory of the libraries; `None` for the libtorch that the rank program was built for.
    directory: Option<PathBuf>,
}

impl Libtorch {
    /// The libtorch that the rank program was built for.
    pub const OWN: Libtorch = Libtorch { directory: None };

    /// The libtorch whose libraries are in this directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self { directory: Some(directory.to_owned()) }
    }

    /// The libtorch in the directory that `LIBTORCH` names, or else the torch of the interpreter `python`, or else
    /// [`Libtorch::OWN`].
    ///
    /// # Errors
    /// When the named directory is not a libtorch, or the interpreter has no torch, in words.
    pub fn named(libtorch: Option<&Path>, python: Option<&Path>) -> Result<Self, String> {
        let (directory, origin) = match (libtorch, python) {
            (Some(named), _) => (named.to_owned(), "LIBTORCH".to_owned()),
            (None, Some(python)) => {
                (of_python(python)?, format!("the torch of {}", python.display()))
            }
            (None, None) => return Ok(Self::OWN),
        };
        match directory.join("lib").canonicalize() {
            Ok(lib) if lib.is_dir() => Ok(Self::in_directory(&lib)),
            _ => Err(format!(
                "{} is not a libtorch directory ({origin}): it has no lib/",
                directory.display()
            )),
        }
    }

    /// The directories that come first on the library path of a program that is to start with this libtorch.
    pub(super) fn library_path(&self) -> Vec<PathBuf> {
        self.directory.clone().into_iter().collect()
    }
}

/// The directory of the package `torch` of an interpreter.
fn of_python(python: &Path) -> Result<PathBuf, String> {
    let name = python.display();
    let output = crate::python::command(python)
        .args(["-c", FIND_TORCH])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|cause| format!("cannot start {name}: {cause}"))?;
    let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && !directory.is_empty() {
        Ok(directory.into())
    } else {
        Err(format!("{name} has no package torch"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use tempfile::TempDir;

    use super::*;

    /// A directory that passes for a libtorch, and an interpreter that runs the shell script `answer`.
    fn setting(answer: &str) -> (TempDir, PathBuf) {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("lib")).unwrap();
        let python = dir.path().join("python");
        fs::write(&python, format!("#!/bin/sh\n{answer}\n")).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        (dir, python)
    }

    #[test]
    fn libtorch_comes_before_the_torch_of_an_interpreter() {
        let (dir, python) = setting("dirname $0");
        let lib = dir.path().join("lib").canonicalize().unwrap();
        let expected = Ok(Libtorch::in_directory(&lib));
        let elsewhere = Path::new("/does/not/exist");
        assert_eq!(Libtorch::named(Some(dir.path()), Some(elsewhere)), expected);
        assert_eq!(Libtorch::named(None, Some(&python)), expected);
        assert_eq!(Libtorch::named(None, None), Ok(Libtorch::OWN));
    }

    #[test]
    fn what_is_no_libtorch_is_said() {
        let (_dir, python) = setting("echo");
        let refusal = |libtorch, python| Libtorch::named(libtorch, python).unwrap_err();
        assert!(refusal(None, Some(&*python)).ends_with("has no package torch"));
        let elsewhere = Path::new("/does/not/exist");
        assert!(refusal(None, Some(elsewhere)).starts_with("cannot start /does/not/exist"));
        let message = refusal(Some(elsewhere), None);
        assert_eq!(
            message,
            "/does/not/exist is not a libtorch directory (LIBTORCH): it has no lib/"
        );
    }
}
