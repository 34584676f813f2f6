//! Outcomes of faults and known bugs, counted on the pages that their runs write.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// The section of the accuracy page about faults and known bugs.
pub fn table() -> Result<String> {
    let faults = Matrix::read("docs/faults.md", "| fault |")?;
    let cells = || faults.rows.iter().flat_map(|row| &row[2..]);
    let count = |is: &dyn Fn(&str) -> bool| cells().filter(|cell| is(cell)).count();
    let (named, silent) = (count(&|cell| cell.starts_with("ZP")), count(&|cell| cell == "clean"));
    let refused = count(&|cell| cell == "·");
    ensure!(
        named + silent + refused == cells().count(),
        "docs/faults.md has cells that are neither a rule, `clean` nor `·`"
    );
    let zoo = Matrix::read("docs/zoo.md", "| row ")?;
    let column = |name: &str| zoo.column(name);
    let (ok, expected) = (column("ok")?, column("expected")?);
    // A run that the machine cannot make has neither caught nor missed its bug.
    let (ran, skipped): (Vec<_>, Vec<_>) = zoo.rows.iter().partition(|row| row[ok] != "skipped");
    let bugs = || ran.iter().filter(|row| row[expected] != "clean");
    let found = bugs().filter(|row| row[ok] == "yes").count();
    let total = bugs().count();
    let fixed = ran.len() - total;
    let quiet = ran.iter().filter(|row| row[expected] == "clean" && row[ok] == "yes").count();
    Ok(format!(
        "| what | runs | caught | root cause and place right | of which |\n\
         |---|--:|--:|--:|---|\n\
         | faults that changed anything, or can be seen | {named} | {named} | {named} | {} faults \
         ([faults.md](faults.md)) |\n\
         | bugs of released engines | {total} | {found} | {found} | {:.1} % ([zoo.md](zoo.md)) |\n\n\
         In {silent} more runs with a fault nothing was changed, bit for bit, and nothing was found; \
         {refused} were refused, as the configuration has no place for the fault. Of the zoo's {fixed} \
         runs on releases that are right, {quiet} were clean. {} of its runs were skipped.\n",
        faults.rows.len(),
        100.0 * found as f64 / total as f64,
        skipped.len(),
    ))
}

/// A table of a page in docs.
struct Matrix {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Matrix {
    /// The table of `page` whose first line begins with `begin`.
    fn read(page: &str, begin: &str) -> Result<Self> {
        let path = workspace::root().join(page);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {page}"))?;
        let mut lines = text.lines().skip_while(|line| !line.starts_with(begin));
        let cells = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let head = cells(lines.next().with_context(|| format!("{page} has lost its table"))?);
        let rows: Vec<_> = lines.skip(1).take_while(|it| it.starts_with('|')).map(cells).collect();
        let whole = rows.iter().all(|row| row.len() == head.len());
        ensure!(whole && !rows.is_empty(), "the table of {page} is broken");
        Ok(Self { head, rows })
    }

    fn column(&self, name: &str) -> Result<usize> {
        self.head.iter().position(|it| it == name).with_context(|| format!("no column {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_pages_have_the_tables_that_are_counted() {
        let text = table().unwrap();
        assert!(text.contains("46 faults"), "{text}");
    }
}
