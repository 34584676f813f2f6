//! The environments in the cache, and their removal.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Cache, MARK, sibling};
use crate::store::{Recorded, bytes, directories, sorted};

impl Cache {
    /// The directory that holds the environments.
    pub fn dir(&self) -> &Path {
        &self.envs
    }

    /// The environments that no process makes or uses, the last used ones first. An environment that a killed process
    /// left incomplete counts, too.
    ///
    /// # Errors
    /// If the cache cannot be read.
    pub fn environments(&self) -> Result<Vec<Recorded>> {
        if !self.envs.exists() {
            return Ok(vec![]);
        }
        let used = commands();
        let all = directories(&self.envs)?.into_iter().filter_map(|path| {
            let mark = fs::symlink_metadata(path.join(MARK));
            let written = mark.or_else(|_| fs::symlink_metadata(&path)).ok()?.modified().ok()?;
            let name = path.file_name()?.to_string_lossy().into_owned();
            let is_used = used.iter().any(|command| command.contains(&*path.to_string_lossy()));
            let is_made = lock(&path).is_err();
            (!is_used && !is_made).then(|| Recorded { name, bytes: bytes(&path), path, written })
        });
        Ok(sorted(all.collect()))
    }

    /// Removes an environment with its log.
    ///
    /// # Errors
    /// If a process makes the environment, or a file cannot be removed.
    pub fn remove(&self, environment: &Recorded) -> Result<()> {
        let path = &environment.path;
        let _lock = lock(path).with_context(|| format!("{} is being made", path.display()))?;
        environment.remove()?;
        match fs::remove_file(sibling(path, ".log")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove the log of {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Locks an environment, as the process does that makes it. The file of the lock stays, because another process may
/// wait for it.
fn lock(path: &Path) -> io::Result<File> {
    let lock = File::create(sibling(path, ".lock"))?;
    lock.try_lock().map_err(io::Error::from)?;
    Ok(lock)
}

/// The command lines of all processes of this machine that this user may see.
fn commands() -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let read = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn an_environment_that_is_made_or_used_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        assert_eq!(cache.environments().unwrap(), []);
        let path = |name: &str| cache.dir().join(name);
        for (name, days) in [("old", 9), ("new", 1), ("made", 3), ("used", 2)] {
            fs::create_dir_all(path(name)).unwrap();
            let mark = File::create(path(name).join(MARK)).unwrap();
            mark.set_modified(SystemTime::now() - Duration::from_secs(86_400 * days)).unwrap();
        }
        fs::create_dir(path("half")).unwrap();
        let held = lock(&path("made")).unwrap();
        let script = path("used").join("script");
        let mut used = Command::new("sh")
            .args(["-c", "echo started; read line", script.to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The kernel shows the arguments of a process only some time after its start.
        BufReader::new(used.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let names = || -> Vec<String> {
            cache.environments().unwrap().into_iter().map(|it| it.name).collect()
        };
        assert_eq!(names(), ["half", "new", "old"]);
        drop((held, used.stdin.take()));
        used.wait().unwrap();
        assert_eq!(names(), ["half", "new", "used", "made", "old"]);
        fs::write(sibling(&path("old"), ".log"), "text").unwrap();
        cache.remove(cache.environments().unwrap().last().unwrap()).unwrap();
        assert_eq!(names(), ["half", "new", "used", "made"]);
        assert!(!sibling(&path("old"), ".log").exists());
    }
}
