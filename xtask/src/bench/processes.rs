//! The processes of this machine, as `/proc` shows them. Any process may end at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};

/// The processes of `roots` and all their descendants, each with its parent.
pub fn tree(roots: &BTreeSet<u32>) -> Result<BTreeMap<u32, u32>> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").context("cannot list processes in /proc")? {
        let name = entry.context("cannot list processes in /proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if let Some(parent) = parent(&stat) {
            parents.insert(pid, parent);
        }
    }
    Ok(below(roots, parents))
}

/// The entries of `parents` whose process descends from `roots`.
fn below(roots: &BTreeSet<u32>, parents: BTreeMap<u32, u32>) -> BTreeMap<u32, u32> {
    let descends = |mut pid: u32| {
        loop {
            if roots.contains(&pid) {
                return true;
            }
            match parents.get(&pid) {
                Some(parent) => pid = *parent,
                None => return false,
            }
        }
    };
    parents.iter().filter(|(pid, _)| descends(**pid)).map(|(pid, parent)| (*pid, *parent)).collect()
}

/// The parent's id in `/proc/PID/stat`. The program's name stands before the id, and may hold spaces and
/// brackets.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// A field of a process's `status` or `smaps_rollup`, in kB; `None` if the process has ended.
pub fn kilobytes(pid: u32, file: &str, field: &str) -> Option<u64> {
    field_of(&fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?, field)
}

fn field_of(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_follows_the_name_and_the_state() {
        assert_eq!(parent("12 (a) b (c) S 7 12 12 0"), Some(7));
        assert_eq!(parent(""), None);
    }

    #[test]
    fn only_descendants_are_kept() {
        let parents = BTreeMap::from([(1, 0), (5, 1), (6, 5), (7, 6), (8, 1)]);
        assert_eq!(below(&BTreeSet::from([5]), parents), BTreeMap::from([(5, 1), (6, 5), (7, 6)]));
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "Pss_Dirty:  9 kB\nPss:       12 kB\n";
        assert_eq!(field_of(text, "Pss"), Some(12));
        assert_eq!(field_of(text, "Rss"), None);
    }
}
