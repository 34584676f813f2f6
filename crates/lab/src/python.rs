//! Commands of Python interpreters, whose results do not depend on the working directory.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the command of an interpreter that starts in a directory where only the administrator can put files. With
/// `-c` and `-m`, Python first looks for modules in its working directory, and would import and run a `torch.py` that
/// another user has put there.
pub fn command(interpreter: &Path) -> Command {
    // A bare name is looked up on PATH; any other path is relative to the working directory of zprobe.
    let is_path = interpreter.components().count() > 1;
    let absolute = is_path.then(|| std::path::absolute(interpreter).ok()).flatten();
    let mut command = Command::new(absolute.as_deref().unwrap_or(interpreter));
    command.current_dir("/");
    command
}

/// Returns the interpreter of the virtual environment in which this zprobe is installed, if there is one.
pub fn own() -> Option<PathBuf> {
    // `current_exe` follows links: pipx and uv put a link to the program on PATH, and the program elsewhere.
    interpreter_next_to(&std::env::current_exe().ok()?)
}

/// Returns the interpreter of the virtual environment in which a program is installed, if there is one.
fn interpreter_next_to(program: &Path) -> Option<PathBuf> {
    let bin = program.parent()?;
    let is_environment = bin.parent()?.join("pyvenv.cfg").is_file();
    Some(bin.join("python")).filter(|python| is_environment && python.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_interpreter_is_started_from_the_root_whatever_its_path() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("python");
        fs::write(&path, "#!/bin/sh\npwd\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let relative = path.strip_prefix(std::env::current_dir().unwrap()).unwrap_or(&path);
        for interpreter in [relative, &std::path::absolute(&path).unwrap()] {
            let output = command(interpreter).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), "/\n", "{interpreter:?}");
        }
        assert!(command(Path::new("true")).status().unwrap().success());
    }

    #[test]
    fn a_program_has_an_interpreter_of_its_own_in_a_virtual_environment_alone() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("python"), "").unwrap();
        assert_eq!(interpreter_next_to(&bin.join("zprobe")), None);
        fs::write(dir.path().join("pyvenv.cfg"), "").unwrap();
        assert_eq!(interpreter_next_to(&bin.join("zprobe")), Some(bin.join("python")));
        fs::remove_file(bin.join("python")).unwrap();
        assert_eq!(interpreter_next_to(&bin.join("zprobe")), None);
    }
}
