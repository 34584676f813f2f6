//! The wheel `zprobe-native`, which holds the program `zprobe-rank`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::workshop::Workshop;
use crate::command::run;
use crate::workspace;

/// The source of the Python package, from the root of the repository.
const SOURCE: &str = "packaging/zprobe-native";

/// The directories and names of the files that the wheel is made of.
const FILES: [(&str, &str); 6] = [
    (SOURCE, "pyproject.toml"),
    (SOURCE, "hatch_build.py"),
    (SOURCE, "README.md"),
    (SOURCE, "zprobe_native/__init__.py"),
    ("", "LICENSE-APACHE"),
    ("", "LICENSE-MIT"),
];

/// Libraries of torch, which the wheel must not contain.
const OF_TORCH: [&str; 2] = ["libtorch_cpu.so", "libc10.so"];

/// The directory of torch's libraries, from that of the program: both packages are in one directory. torch's
/// libraries find their own dependencies.
const RUNPATH: &str = "$ORIGIN/../torch/lib";

/// Builds the wheel around `rank`, the `zprobe-rank` of the release build.
pub fn wheel(workshop: &Workshop, rank: &Path) -> Result<()> {
    let package = stage(workshop, rank)?;
    let unrepaired = workshop.stage.join("unrepaired");
    workshop.build_wheel(&package, &unrepaired)?;
    let wheel = only_file(&unrepaired)?;
    // auditwheel reads the oldest supported glibc from the program, and names the wheel for that glibc.
    let mut auditwheel = workshop.command("auditwheel")?;
    auditwheel.args(["repair", "--plat", "auto", "--wheel-dir"]).arg(&workshop.dist);
    for library in OF_TORCH {
        auditwheel.args(["--exclude", library]);
    }
    run(auditwheel.arg(wheel))
}

/// Puts the package together; the program is stripped, and bound to the torch that is installed next to the
/// package.
fn stage(workshop: &Workshop, rank: &Path) -> Result<PathBuf> {
    let package = workshop.stage.join("zprobe-native");
    for (from, name) in FILES {
        copy(&workspace::root().join(from).join(name), &package.join(name))?;
    }
    let program = package.join("zprobe_native/zprobe-rank");
    copy(rank, &program)?;
    run(workshop.command("strip")?.arg(&program))?;
    run(workshop.command("patchelf")?.args(["--set-rpath", RUNPATH]).arg(&program))?;
    Ok(package)
}

/// Copies a file, and makes the directory for the copy.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let dir = to.parent().context("the path of a copy has no directory")?;
    fs::create_dir_all(dir)
        .and_then(|()| fs::copy(from, to))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// The only wheel in a directory.
fn only_file(dir: &Path) -> Result<PathBuf> {
    let mut entries =
        fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let wheel = |entry: &std::io::Result<fs::DirEntry>| {
        entry.as_ref().is_ok_and(|it| it.path().extension().is_some_and(|it| it == "whl"))
    };
    let found = entries.find(wheel).context("the build backend left no wheel")??;
    Ok(found.path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::VERSION;
    use crate::libtorch;

    #[test]
    fn the_wheel_is_of_this_release_and_for_the_torch_that_it_is_built_with() {
        let path = workspace::root().join(SOURCE).join("pyproject.toml");
        let text = fs::read_to_string(path).unwrap();
        let project = &text.parse::<toml::Table>().unwrap()["project"];
        assert_eq!(project["version"].as_str(), Some(VERSION));
        let (minor, _) = libtorch::VERSION.rsplit_once('.').unwrap();
        let (major, number) = minor.split_once('.').unwrap();
        let next = number.parse::<u32>().unwrap() + 1;
        let expected = [format!("zprobe=={VERSION}"), format!("torch>={minor}.0,<{major}.{next}")];
        let dependencies = project["dependencies"].as_array().unwrap();
        let dependencies: Vec<_> = dependencies.iter().filter_map(|it| it.as_str()).collect();
        assert_eq!(dependencies, expected);
    }
}
