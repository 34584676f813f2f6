//! Commands of Python interpreters, whose answers the working directory cannot change.

use std::path::Path;
use std::process::Command;

/// The command of an interpreter, which starts in a directory where nobody but the administrator
/// can put a file. With `-c` and `-m` Python looks for modules in its working directory first: a
/// `torch.py` in a directory that somebody else has made would be imported, and run.
pub fn command(interpreter: &Path) -> Command {
    // A bare name is looked for on PATH; any other path is relative to the working directory of
    // zprobe.
    let is_path = interpreter.components().count() > 1;
    let absolute = is_path.then(|| std::path::absolute(interpreter).ok()).flatten();
    let mut command = Command::new(absolute.as_deref().unwrap_or(interpreter));
    command.current_dir("/");
    command
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
}
