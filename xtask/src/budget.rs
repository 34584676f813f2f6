//! The largest number of lines of Rust that each crate may have.
//!
//! `budget.toml` holds the numbers. A change that needs more lines raises a number in its own diff, where a reviewer
//! sees the growth.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// The name of the file with the numbers, which stands in the root of the repository.
const FILE: &str = "budget.toml";

/// The numbers of lines, by directory of a crate's sources.
type Lines = BTreeMap<String, usize>;

/// Compares the crates of the repository with `budget.toml`.
///
/// # Errors
///
/// Fails if a crate has more lines than it may have, if a crate is missing in the file, or if the file names a
/// directory that has no Rust.
pub fn check() -> Result<()> {
    let root = workspace::root();
    let allowed = read(&root.join(FILE))?;
    let actual = count(root)?;
    let wrong = compare(&allowed, &actual);
    if !wrong.is_empty() {
        bail!("{}\nDelete lines, or change {FILE} in the same commit", wrong.join("\n"));
    }
    let total: usize = actual.values().sum();
    eprintln!("{total} lines of Rust of {} in {FILE}", allowed.values().sum::<usize>());
    Ok(())
}

/// Reads the table `[lines]` of the file.
fn read(path: &Path) -> Result<Lines> {
    let name = || format!("cannot read {}", path.display());
    let text = fs::read_to_string(path).with_context(name)?;
    let mut tables: BTreeMap<String, Lines> = toml::from_str(&text).with_context(name)?;
    tables.remove("lines").with_context(|| format!("{FILE} has no table [lines]"))
}

/// Counts the lines of `src` and of each crate in `crates`.
fn count(root: &Path) -> Result<Lines> {
    let mut crates = vec!["src".to_owned()];
    for entry in fs::read_dir(root.join("crates"))? {
        crates.push(format!("crates/{}", entry?.file_name().to_string_lossy()));
    }
    let counted = crates.into_iter().map(|name| Ok((name.clone(), lines_in(&root.join(name))?)));
    counted.collect()
}

/// The number of lines of all `.rs` files below a directory.
fn lines_in(dir: &Path) -> Result<usize> {
    let mut lines = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            lines += lines_in(&path)?;
        } else if path.extension().is_some_and(|it| it == "rs") {
            lines += fs::read_to_string(&path)?.lines().count();
        }
    }
    Ok(lines)
}

/// One sentence for each crate that does not fit its number.
fn compare(allowed: &Lines, actual: &Lines) -> Vec<String> {
    let too_large = actual.iter().filter_map(|(name, lines)| match allowed.get(name) {
        None => Some(format!("{name} has {lines} lines of Rust, and {FILE} does not name it")),
        Some(most) if lines > most => {
            Some(format!("{name} has {lines} lines of Rust, and {FILE} allows {most}"))
        }
        Some(_) => None,
    });
    let unknown = allowed.keys().filter(|name| !actual.contains_key(*name));
    too_large.chain(unknown.map(|name| format!("{FILE} names {name}, which is no crate"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(of: &[(&str, usize)]) -> Lines {
        of.iter().map(|&(name, lines)| (name.to_owned(), lines)).collect()
    }

    #[test]
    fn each_crate_must_fit_its_number() {
        let allowed = lines(&[("src", 10), ("crates/a", 10), ("crates/gone", 10)]);
        let actual = lines(&[("src", 10), ("crates/a", 11), ("crates/new", 1)]);
        let expected = [
            "crates/a has 11 lines of Rust, and budget.toml allows 10",
            "crates/new has 1 lines of Rust, and budget.toml does not name it",
            "budget.toml names crates/gone, which is no crate",
        ];
        assert_eq!(compare(&allowed, &actual), expected);
    }
}
