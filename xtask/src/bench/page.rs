//! The tables' place in the documentation.

use std::fs;

use anyhow::{Context, Result};

use crate::workspace;

/// The page, from the root of the repository.
const PAGE: &str = "docs/benchmarks.md";

/// What stands before the tables.
const BEGIN: &str = "<!-- cargo xtask bench --write: begin -->\n";

/// What stands after them.
const END: &str = "<!-- cargo xtask bench --write: end -->\n";

/// Puts `measured` where the last measurement stands.
pub fn write(measured: &str) -> Result<()> {
    let path = workspace::root().join(PAGE);
    let old = fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    let new = replaced(&old, measured)
        .with_context(|| format!("{PAGE} has lost the comments that the tables stand between"))?;
    fs::write(&path, new).with_context(|| format!("cannot write {PAGE}"))
}

/// `page` with other tables.
fn replaced(page: &str, measured: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{measured}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_comments_changes() {
        let page = format!("# Page\n{BEGIN}old\n{END}end\n");
        let new = replaced(&page, "new\n").unwrap();
        assert_eq!(new, format!("# Page\n{BEGIN}\nnew\n\n{END}end\n"));
        assert_eq!(replaced(&new, "new\n").unwrap(), new);
    }

    #[test]
    fn the_page_has_a_place_for_the_tables() {
        let page = fs::read_to_string(workspace::root().join(PAGE)).unwrap();
        assert!(replaced(&page, "").is_some());
    }
}
