//! The files of a run directory. They are created new, with access only for this user, and are read without following
//! links.
//!
//! A user who knows the name of a directory in advance can put things into it, such as a module that Python would
//! import, or a link to a file that would be overwritten. So a run is recorded in a directory that is new, or that is
//! empty and owned by this user, and each of its files is a new file. From a directory of another user, zprobe only
//! reads regular files, and never follows a link.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::geteuid;

/// The access rights of a run directory: only this user has access.
const DIRECTORY_MODE: u32 = 0o700;

/// The access rights of the files in a run directory.
const FILE_MODE: u32 = 0o600;

/// The reason why a run cannot be recorded in a directory.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The directory is not empty.
    #[error(
        "{0} is not empty; name a directory with --out that does not exist yet, or leave out --out"
    )]
    NotEmpty(PathBuf),
    /// The path is a link or not a directory.
    #[error(
        "{0} is a link, or not a directory; name a directory with --out that does not exist yet"
    )]
    NoDirectory(PathBuf),
    /// The directory belongs to another user.
    #[error(
        "{0} belongs to another user, who could change what is recorded; name a directory with --out \
         that does not exist yet"
    )]
    Foreign(PathBuf),
    /// Another run is being recorded in the directory.
    #[error("{0} is being written to by another zprobe; name another directory with --out")]
    Busy(PathBuf),
    /// The operating system refuses an operation on the directory.
    #[error("cannot create {path}: {cause}; choose another run directory with --out")]
    System {
        /// The path of the directory.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
}

/// A directory in which only this zprobe process records. Unless the claim is kept, its content is removed when this
/// value is dropped, and also the directory itself if the claim created it.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// The open directory, which is locked until it is closed; `None` if the file system has no locks.
    lock: Option<File>,
    is_new: bool,
    is_kept: bool,
}

impl Claim {
    /// Claims a directory: creates it, or takes an existing directory that is empty and owned by this user.
    ///
    /// # Errors
    /// Fails if the path is a link or not a directory, if the directory is not empty or is owned by another user, if
    /// another run is recorded there, or if the operating system refuses an operation.
    pub fn new(path: &Path) -> Result<Self, Unusable> {
        let system = |cause| Unusable::System { path: path.to_owned(), cause };
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(system)?;
        }
        let is_new = match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(system(error)),
        };
        // With a trailing slash or `.`, the system would follow a link, so both are removed from the path.
        let name: PathBuf = path.components().collect();
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&name)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ELOOP | libc::ENOTDIR) => Unusable::NoDirectory(path.to_owned()),
                _ => system(error),
            })?;
        if directory.metadata().map_err(system)?.uid() != geteuid().as_raw() {
            return Err(Unusable::Foreign(path.to_owned()));
        }
        let lock = match directory.try_lock() {
            Ok(()) => Some(directory),
            Err(fs::TryLockError::WouldBlock) => return Err(Unusable::Busy(path.to_owned())),
            Err(fs::TryLockError::Error(_)) => None,
        };
        if !is_new {
            let is_empty = || Ok(fs::read_dir(path).map_err(system)?.next().is_none());
            let before = fs::metadata(path).map_err(system)?.permissions();
            // A directory that is refused keeps its access rights.
            if !is_empty()? {
                return Err(Unusable::NotEmpty(path.to_owned()));
            }
            let mode = fs::Permissions::from_mode(DIRECTORY_MODE);
            fs::set_permissions(path, mode).map_err(system)?;
            // The directory is checked again, because from now on no other user can put anything into it.
            if !is_empty()? {
                fs::set_permissions(path, before).map_err(system)?;
                return Err(Unusable::NotEmpty(path.to_owned()));
            }
        }
        Ok(Self { path: path.to_owned(), lock, is_new, is_kept: false })
    }

    /// Keeps the directory and its content.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        if self.is_new {
            let _ = fs::remove_dir_all(&self.path);
        } else if self.lock.is_some() {
            // The directory was empty, and no other user could write to it since then.
            for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
                let _ = match entry.file_type() {
                    Ok(kind) if kind.is_dir() => fs::remove_dir_all(entry.path()),
                    _ => fs::remove_file(entry.path()),
                };
            }
        }
    }
}

/// Creates a new directory and its missing parents, with access only for this user.
///
/// # Errors
/// Fails if the path already exists, or if the system refuses.
pub fn create_dir(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.mode(DIRECTORY_MODE);
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        builder.recursive(true).create(parent)?;
    }
    builder.recursive(false).create(path)
}

/// Creates a new file for writing, with access only for this user.
///
/// # Errors
/// Fails if the path already exists, even as a dangling link, or if the system refuses.
pub fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Opens a regular file for reading, without waiting for a writer as opening a named pipe would.
///
/// # Errors
/// Fails if the path is a link or not a regular file, or if the file cannot be read.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => io::Error::other(
                "it is a symbolic link, which could point to any file of yours; put the file \
                 itself there",
            ),
            _ => error,
        })?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Returns the text of a regular file of at most `most` bytes.
///
/// # Errors
/// Fails like [`open`], and if the file is larger or is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(text)
}

/// Returns true if a path is a directory itself, and not a link to a directory.
pub fn is_dir(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|it| it.is_dir())
}

/// Returns true if a path is a regular file itself, and not a link to a file.
pub fn is_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|it| it.is_file())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_claimed_directory_is_new_or_empty_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        Claim::new(&path("a/new")).unwrap().keep();
        assert_eq!(mode(&path("a/new")), 0o700);
        fs::create_dir(path("empty")).unwrap();
        fs::set_permissions(path("empty"), fs::Permissions::from_mode(0o777)).unwrap();
        Claim::new(&path("empty")).unwrap().keep();
        assert_eq!(mode(&path("empty")), 0o700);
        fs::write(path("empty/json.py"), "").unwrap();
        fs::set_permissions(path("empty"), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(Claim::new(&path("empty")), Err(Unusable::NotEmpty(_))));
        assert_eq!(mode(&path("empty")), 0o755, "a refused directory is not changed");
        symlink(path("a/new"), path("link")).unwrap();
        fs::write(path("file"), "").unwrap();
        for name in ["link", "link/", "link/.", "file"] {
            assert!(matches!(Claim::new(&path(name)), Err(Unusable::NoDirectory(_))), "{name}");
        }
    }

    #[test]
    fn two_claims_to_one_directory_do_not_go_together() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        for make in [true, false] {
            if !make {
                fs::create_dir(&path).unwrap();
            }
            let claim = Claim::new(&path).unwrap();
            assert!(matches!(Claim::new(&path), Err(Unusable::Busy(_))));
            fs::write(path.join("left"), "").unwrap();
            drop(claim);
            assert_eq!((path.join("left").exists(), path.exists()), (false, !make));
        }
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (link, target) = (dir.path().join("link"), dir.path().join("target"));
        symlink(&target, &link).unwrap();
        assert_eq!(create(&link).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(create_dir(&link).is_err() && !target.exists());
        assert_eq!(mode_of_new(&dir.path().join("new")), 0o600);
    }

    fn mode_of_new(path: &Path) -> u32 {
        create(path).unwrap();
        mode(path)
    }

    #[test]
    fn only_regular_files_are_read_and_no_more_of_them_than_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "text").unwrap();
        assert_eq!(read_text(&path("file"), 4).unwrap(), "text");
        assert!(read_text(&path("file"), 3).unwrap_err().to_string().contains("more than 3"));
        symlink(path("file"), path("link")).unwrap();
        assert!(open(&path("link")).unwrap_err().to_string().contains("symbolic link"));
        nix::unistd::mkfifo(&path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for name in ["fifo", "."] {
            assert!(
                open(&path(name)).unwrap_err().to_string().contains("not a regular file"),
                "{name}"
            );
        }
        assert!(is_file(&path("file")) && !is_file(&path("link")) && is_dir(dir.path()));
    }
}
