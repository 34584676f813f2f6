//! Reads the last lines of a log file.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use zprobe_model::run_dir;

/// The number of bytes that are read from the end of a log. The limit keeps a rank that floods its standard error
/// cheap.
const BYTES: u64 = 4 << 10;

/// The largest number of lines that are kept from the end of a log.
const LINES: usize = 20;

/// Returns the last lines of a log, or `None` if the log is empty or was never written.
pub(super) fn log_tail(path: &Path) -> Option<String> {
    let bytes = last_bytes(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_end();
    let lines: Vec<&str> = text.lines().collect();
    let kept = &lines[lines.len().saturating_sub(LINES)..];
    (!text.is_empty()).then(|| kept.join("\n"))
}

fn last_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = run_dir::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
    let mut bytes = Vec::new();
    file.take(BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail_of(content: &str) -> Option<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        log_tail(file.path())
    }

    #[test]
    fn the_last_lines_are_kept() {
        let log: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let tail = tail_of(&log).unwrap();
        assert!(tail.starts_with("line 80\n") && tail.ends_with("line 99"), "{tail}");
    }

    #[test]
    fn one_endless_line_is_cut() {
        assert_eq!(tail_of(&"x".repeat(100_000)).unwrap().len(), 4096);
    }

    #[test]
    fn an_empty_log_has_no_tail() {
        assert_eq!(tail_of(" \n"), None);
        assert_eq!(log_tail(Path::new("no such file")), None);
    }
}
