//! A libtorch that the user provides.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::layout;
use crate::host::Host;

/// A Python program that prints the directory of the package `torch`, without the seconds that an import
/// takes.
const FIND_TORCH: &str = "
import importlib.util
spec = importlib.util.find_spec('torch')
print(spec.submodule_search_locations[0] if spec else '')
";

/// The libtorch that the environment names; `None` if the environment names no libtorch.
///
/// As in torch-sys, `LIBTORCH_USE_PYTORCH` comes before `LIBTORCH`.
pub fn named(host: &Host) -> Result<Option<PathBuf>> {
    if host.libtorch_use_pytorch {
        let dir = of_python(host)?;
        layout::check(&dir, "python3's torch, because of LIBTORCH_USE_PYTORCH")?;
        return Ok(Some(dir));
    }
    let Some(dir) = host.libtorch.as_deref().map(Path::new) else { return Ok(None) };
    // The path has to be absolute: cargo and the built program have other working directories.
    let dir = dir.canonicalize().with_context(|| {
        format!("LIBTORCH is set to {}: correct it, or unset it", dir.display())
    })?;
    layout::check(&dir, "LIBTORCH")?;
    Ok(Some(dir))
}

/// The directory of the package `torch` of the user's Python.
fn of_python(host: &Host) -> Result<PathBuf> {
    let output = host.command("python3").args(["-c", FIND_TORCH]).output().context(
        "LIBTORCH_USE_PYTORCH is set, and python3 cannot be started: install it, or unset the \
         variable",
    )?;
    let dir = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || dir.is_empty() {
        bail!(
            "LIBTORCH_USE_PYTORCH is set, and python3 has no package torch: activate the \
             environment that has it, or unset the variable"
        );
    }
    Ok(dir.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;
    use crate::libtorch::layout::tests::libtorch_2;

    #[test]
    fn nothing_named_is_nothing() {
        assert_eq!(named(&FakeHost::new()).unwrap(), None);
    }

    #[test]
    fn libtorch_is_taken() {
        let dir = libtorch_2(11);
        let host = FakeHost::new().with_libtorch(dir.path());
        assert_eq!(named(&host).unwrap(), Some(dir.path().canonicalize().unwrap()));
    }

    #[test]
    fn a_missing_directory_is_named() {
        let host = FakeHost::new().with_libtorch(Path::new("/nonexistent"));
        let error = named(&host).unwrap_err().to_string();
        assert!(error.starts_with("LIBTORCH is set to /nonexistent"), "{error}");
    }

    #[test]
    fn the_torch_of_python_is_taken() {
        let dir = libtorch_2(11);
        let script = format!("echo {}", dir.path().display());
        let host = FakeHost::new().with("python3", &script).with_pytorch();
        assert_eq!(named(&host).unwrap(), Some(dir.path().to_path_buf()));
    }

    #[test]
    fn the_torch_of_python_is_checked() {
        let dir = libtorch_2(13);
        let script = format!("echo {}", dir.path().display());
        let host = FakeHost::new().with("python3", &script).with_pytorch();
        let error = named(&host).unwrap_err().to_string();
        assert!(error.contains("is libtorch 2.13.0 (python3's torch"), "{error}");
    }

    #[test]
    fn a_python_without_torch_is_said() {
        let host = FakeHost::new().with("python3", "echo").with_pytorch();
        let error = named(&host).unwrap_err().to_string();
        assert!(error.contains("python3 has no package torch"), "{error}");
    }
}
