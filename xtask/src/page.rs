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
        let page = self.page()?;
        let new = self.replaced(&page, text).with_context(|| self.has_no_place())?;
        let path = workspace::root().join(self.path);
        fs::write(path, new).with_context(|| format!("cannot write {}", self.path))
    }

    /// The last output of the command.
    pub fn read(&self) -> Result<String> {
        let page = self.page()?;
        let (_, section, _) = self.parts(&page).with_context(|| self.has_no_place())?;
        let text = section.strip_prefix('\n').and_then(|it| it.strip_suffix('\n'));
        Ok(text.unwrap_or(section).to_owned())
    }

    fn page(&self) -> Result<String> {
        let path = workspace::root().join(self.path);
        fs::read_to_string(path).with_context(|| format!("cannot read {}", self.path))
    }

    fn has_no_place(&self) -> String {
        format!("{} has lost the comments before and after its tables", self.path)
    }

    /// The page up to the section, the section, and the rest; `None` if the page has no comments around the
    /// section.
    fn parts<'a>(&self, page: &'a str) -> Option<(&'a str, &'a str, &'a str)> {
        let [begin, end] =
            ["begin", "end"].map(|which| format!("<!-- {}: {which} -->\n", self.command));
        let start = page.find(&begin)? + begin.len();
        let (before, rest) = page.split_at(start);
        let (section, after) = rest.split_at(rest.find(&end)?);
        Some((before, section, after))
    }

    /// The page with `text` as its section; `None` if the page has no comments around the section.
    fn replaced(&self, page: &str, text: &str) -> Option<String> {
        let (before, _, after) = self.parts(page)?;
        Some(format!("{before}\n{text}\n{after}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{accuracy, bench, chaos, coverage, frameworks, lattice, newest, planted};

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
            bench::ENGINES_PAGE,
            bench::SCALE_PAGE,
            bench::NATIVE_PAGE,
            bench::SUITE_PAGE,
            bench::EXEC_PAGE,
            lattice::PAGE,
            accuracy::PAGE,
            chaos::PAGE,
            newest::PAGE,
            frameworks::PAGE,
        ];
        let of_engines = coverage::ENGINES.map(|it| it.page);
        let of_sets = planted::SETS.map(|it| it.page);
        for page in pages.into_iter().chain(of_engines).chain(of_sets) {
            let text = fs::read_to_string(workspace::root().join(page.path)).unwrap();
            assert!(page.replaced(&text, "").is_some(), "{}", page.path);
        }
    }
}
