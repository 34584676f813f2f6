//! The tables' place in the documentation.

use std::fs;

use anyhow::{Context, Result};

use crate::workspace;

/// The page, from the root of the repository.
const PAGE: &str = "docs/benchmarks.md";

/// The command whose results stand there.
#[derive(Clone, Copy)]
pub enum Part {
    /// `cargo xtask bench`
    Native,
    /// `cargo xtask bench --engines`
    Engines,
}

impl Part {
    /// What stands before and after the tables.
    fn markers(self) -> [String; 2] {
        let command = match self {
            Self::Native => "cargo xtask bench --write",
            Self::Engines => "cargo xtask bench --engines --write",
        };
        ["begin", "end"].map(|place| format!("<!-- {command}: {place} -->\n"))
    }
}

/// Puts `measured` where the last measurement stands.
pub fn write(part: Part, measured: &str) -> Result<()> {
    let path = workspace::root().join(PAGE);
    let old = fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    let new = replaced(&old, part, measured)
        .with_context(|| format!("{PAGE} has lost the comments that the tables stand between"))?;
    fs::write(&path, new).with_context(|| format!("cannot write {PAGE}"))
}

/// `page` with other tables.
fn replaced(page: &str, part: Part, measured: &str) -> Option<String> {
    let [begin, end] = part.markers();
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{measured}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_comments_changes() {
        let [begin, end] = Part::Engines.markers();
        let page = format!("# Page\n{begin}old\n{end}end\n");
        let new = replaced(&page, Part::Engines, "new\n").unwrap();
        assert_eq!(new, format!("# Page\n{begin}\nnew\n\n{end}end\n"));
        assert_eq!(replaced(&new, Part::Engines, "new\n").unwrap(), new);
        assert!(replaced(&new, Part::Native, "new\n").is_none());
    }

    #[test]
    fn the_page_has_a_place_for_the_tables() {
        let page = fs::read_to_string(workspace::root().join(PAGE)).unwrap();
        assert!(replaced(&page, Part::Native, "").is_some());
        assert!(replaced(&page, Part::Engines, "").is_some());
    }
}
