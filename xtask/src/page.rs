//! Pages of the documentation with a section that a program writes.

use std::fs;

use anyhow::{Context, Result};

use crate::workspace;

/// A page of the documentation, and the command whose output is a section of the page.
pub struct Page {
    /// The path of the page, from the root of the repository.
    pub path: &'static str,
    /// The command that writes the section.
    pub command: &'static str,
}

impl Page {
    /// Replaces the last output of the command by `text`.
    pub fn write(&self, text: &str) -> Result<()> {
        let path = workspace::root().join(self.path);
        let old =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", self.path))?;
        let new = self.replaced(&old, text).with_context(|| {
            format!("{} has lost the comments before and after its tables", self.path)
        })?;
        fs::write(&path, new).with_context(|| format!("cannot write {}", self.path))
    }

    /// The page with `text` as its section; `None` if the page has no comments around the section.
    fn replaced(&self, page: &str, text: &str) -> Option<String> {
        let [begin, end] =
            ["begin", "end"].map(|which| format!("<!-- {}: {which} -->\n", self.command));
        let (before, rest) = page.split_once(&begin)?;
        let (_, after) = rest.split_once(&end)?;
        Some(format!("{before}{begin}\n{text}\n{end}{after}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{accuracy, bench, chaos, coverage, lattice, planted};

    #[test]
    fn only_what_is_between_the_comments_changes() {
        let page = Page { path: "docs/page.md", command: "make" };
        let text = "# Page\n<!-- make: begin -->\nold\n<!-- make: end -->\nend\n";
        let new = page.replaced(text, "new\n").unwrap();
        let expected = "# Page\n<!-- make: begin -->\n\nnew\n\n<!-- make: end -->\nend\n";
        assert_eq!(new, expected);
        assert_eq!(page.replaced(&new, "new\n").unwrap(), new);
    }

    #[test]
    fn every_page_has_a_place_for_its_part() {
        let pages = [
            bench::PAGE,
            planted::PAGE,
            bench::ENGINES_PAGE,
            bench::SCALE_PAGE,
            bench::NATIVE_PAGE,
            bench::SUITE_PAGE,
            bench::EXEC_PAGE,
            lattice::PAGE,
            accuracy::PAGE,
            chaos::PAGE,
        ];
        for page in pages.into_iter().chain(coverage::ENGINES.map(|it| it.page)) {
            let text = fs::read_to_string(workspace::root().join(page.path)).unwrap();
            assert!(page.replaced(&text, "").is_some(), "{}", page.path);
        }
    }
}
