//! Packs an attachment into a zip. The same content gives the same bytes, and the file is written completely or not
//! at all.

use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::AttachmentEntry;

/// An error when an attachment is written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file of that name exists already.
    #[error(
        "{0} exists already; choose another file with --out, or pass --overwrite to replace it"
    )]
    Exists(PathBuf),
    /// The operating system cannot write the file.
    #[error("cannot write {path}: {cause}; choose another file with --out")]
    Unwritable {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
}

/// Packs all entries in order. All have the same permissions and the same fixed modification time.
///
/// # Errors
/// Fails if an entry is larger than a zip can hold.
pub fn zip(entries: &[AttachmentEntry]) -> zip::result::ZipResult<Vec<u8>> {
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .compression_level(Some(9))
        .last_modified_time(DateTime::default())
        .unix_permissions(0o644);
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for entry in entries {
        zip.start_file(entry.path.as_str(), options)?;
        zip.write_all(entry.text.as_bytes())?;
    }
    Ok(zip.finish()?.into_inner())
}

/// Writes a file completely or not at all; replaces an existing file only if `replace` is true.
///
/// # Errors
/// Fails if the file exists and `replace` is false, or if the operating system cannot write the file.
pub fn write(path: &Path, bytes: &[u8], replace: bool) -> Result<(), WriteError> {
    let unwritable = |cause| WriteError::Unwritable { path: path.to_owned(), cause };
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut file = NamedTempFile::new_in(directory).map_err(unwritable)?;
    file.write_all(bytes).map_err(unwritable)?;
    let written = if replace { file.persist(path) } else { file.persist_noclobber(path) };
    match written {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(WriteError::Exists(path.to_owned()))
        }
        Err(error) => Err(unwritable(error.error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_file_is_replaced_only_when_that_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.zip");
        write(&path, b"one", false).unwrap();
        assert!(matches!(write(&path, b"two", false), Err(WriteError::Exists(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        write(&path, b"two", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "no temporary file is left");
    }
}
