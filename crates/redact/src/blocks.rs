//! Finds private keys of several lines: PEM, OpenSSH, PGP and PuTTY.

use std::ops::Range;

/// The smallest number of characters of a line that counts as part of a key whose beginning is missing.
const LEAST: usize = 40;

/// The byte ranges of all private keys, each from its begin mark to its end mark. If the end of a key was cut off, the
/// range ends with the text. If the beginning was cut off, the range starts at the first remaining line of the key.
pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    if !text.contains("PRIVATE KEY") && !text.contains("Private-Lines") {
        return found;
    }
    let mut open: Option<usize> = None;
    // The start of the lines that could belong to a key whose beginning is missing.
    let mut lines: Option<usize> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let end = at + line.trim_end().len();
        if let Some(begin) = begins(line) {
            // A whole key may be in one line, with escaped line feeds.
            match ends(&line[begin..]) {
                Some(length) => found.push(at + begin..at + begin + length),
                None => open = Some(at + begin),
            }
        } else if let Some(length) = ends(line) {
            let start = open.take().or(lines);
            found.extend(start.map(|start| start..at + length));
        }
        lines = if has_key_line(line) { lines.or(Some(at)) } else { None };
        if open.is_some() && end == text.trim_end().len() {
            found.extend(open.take().map(|start| start..text.len()));
        }
        at += line.len();
    }
    found
}

/// The lines of a key that are long enough to be searched for individually; line feeds in the key may be escaped.
pub(super) fn lines(key: &str) -> impl Iterator<Item = &str> {
    let lines = key.split('\n').flat_map(|line| line.split(r"\n")).flat_map(str::split_whitespace);
    lines.filter(|line| line.len() >= 16 && !line.contains("--"))
}

fn begins(line: &str) -> Option<usize> {
    let mark = line.find("-----BEGIN ").filter(|at| line[*at..].contains("PRIVATE KEY"));
    mark.or_else(|| line.find("Private-Lines:"))
}

/// The number of bytes up to the end of the mark that ends a key; `None` without such a mark.
fn ends(line: &str) -> Option<usize> {
    let pem = line.find("-----END ").and_then(|at| {
        let key = at + line[at..].find("PRIVATE KEY")?;
        Some(key + line[key..].find("-----")? + 5)
    });
    pem.or_else(|| line.starts_with("Private-MAC:").then(|| line.trim_end().len()))
}

/// Returns true if a line ends with a long word of base64, whatever precedes the word.
fn has_key_line(line: &str) -> bool {
    let last = line.split_whitespace().last().unwrap_or_default();
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    last.len() >= LEAST && last.bytes().all(is_base64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "MIIEowIBAAKCAQEAu1SU1LfVLPHCozMxH2Mo4lgOEePzNm0tRgeLezV6ffAt0gunVTLw7onL";

    #[test]
    fn keys_are_found_whole_or_cut() {
        for (before, behind) in [
            ("-----BEGIN RSA PRIVATE KEY-----\n", "\n-----END RSA PRIVATE KEY-----"),
            (
                "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n",
                "\n=ab\n-----END PGP PRIVATE KEY BLOCK-----",
            ),
            (
                "[rank1]: -----BEGIN PRIVATE KEY-----\n[rank1]: ",
                "\n[rank1]: -----END PRIVATE KEY-----",
            ),
            ("-----BEGIN PRIVATE KEY-----\\n", "\\n-----END PRIVATE KEY-----"),
            ("-----BEGIN PRIVATE KEY-----\n", ""),
            ("", "\n-----END PRIVATE KEY-----"),
            ("Private-Lines: 1\n", "\nPrivate-MAC: 00"),
        ] {
            let text = format!("said\n{before}{LINE}{behind}");
            let found = find(&text);
            assert_eq!(found.len(), 1, "{text}");
            assert!(text[found[0].clone()].contains(LINE) && found[0].start >= 5, "{text}");
            assert_eq!(lines(&text[found[0].clone()]).collect::<Vec<_>>(), [LINE]);
        }
        assert!(find(&format!("a PRIVATE KEY is missing\n{LINE}\nso")).is_empty());
    }
}
