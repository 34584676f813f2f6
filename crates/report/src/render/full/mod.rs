//! Renders the whole document for a terminal: first the verdict, then the findings, then the sections.

mod brief;
mod page;

use std::fmt::Write as _;

use anstyle::Style;

pub(super) use self::brief::render as brief;
pub(super) use self::page::TerminalPage;
use self::page::{BOLD, DIM, verdict_style};
use super::Report;
use crate::document::{Block, Document, Fact, Matrix, RankGroup, Section, Surroundings};
use crate::words::one_line;
use crate::{Finding, Severity, Verdict};
use zprobe_model::visible::Visible;

/// The largest number of names with values that are shown.
const PAIRS: usize = 8;

/// The largest number of columns (microbatches) and of rows (ranks) that are drawn as a matrix.
const MATRIX_COLUMNS: usize = 12;
const MATRIX_ROWS: usize = 16;

pub(super) fn render(
    report: &Visible<Report>,
    width: usize,
    around: &Surroundings<'_>,
) -> serde_json::Result<String> {
    let document = Document::of(report)?;
    let mut page = TerminalPage::new(width);
    let style = verdict_style(document.verdict);
    let verdict = document.verdict.name().to_uppercase();
    let first = format!("{style}{verdict}{style:#}  ");
    page.wrapped(&first, "  ", &document.headline, Style::new());
    for line in &document.setting {
        page.wrapped("", "  ", line, DIM);
    }
    page.again(around.again.or(document.again));
    for finding in document.findings {
        page.finding(finding);
    }
    let sections = document.sections.iter().filter(|it| !it.is_detail);
    sections.for_each(|section| page.whole(section, around));
    Ok(page.into_text())
}

impl TerminalPage {
    /// Writes a section with its title.
    fn whole(&mut self, section: &Section<'_>, around: &Surroundings<'_>) {
        self.section(&section.title);
        section.blocks.iter().for_each(|block| self.block(block, around));
    }

    /// Writes a finding with its evidence, consequences and known bugs.
    pub fn finding(&mut self, finding: &Finding) {
        let style = match finding.severity {
            Severity::Error => verdict_style(Verdict::Findings),
            Severity::Warning => verdict_style(Verdict::Inconclusive),
        };
        let place = finding.place();
        let space = if place.is_empty() { "" } else { "  " };
        let (code, name) = (&finding.code, &finding.name);
        let title = format!("{style}{code}{style:#} {BOLD}{name}{BOLD:#}{space}");
        let _ = writeln!(self);
        self.wrapped(&title, "    ", &place, Style::new());
        self.paragraph("", &finding.message);
        for evidence in &finding.evidence {
            self.paragraph("- ", evidence);
        }
        for consequence in &finding.consequences {
            self.paragraph(&format!("= {}: ", consequence.code), &consequence.message);
        }
        for known in &finding.known {
            self.facts(&known.facts());
        }
        let _ = writeln!(self, "  {DIM}more: zprobe explain {}{DIM:#}", finding.code);
    }

    fn block(&mut self, block: &Block<'_>, around: &Surroundings<'_>) {
        match block {
            Block::Facts(facts) => self.facts(facts),
            Block::Pairs(pairs) => {
                for (name, value) in pairs.iter().take(PAIRS) {
                    self.paragraph(&format!("{name}: "), value);
                }
                if pairs.len() > PAIRS {
                    let more = pairs.len() - PAIRS;
                    self.paragraph("", &format!("and {more} more in report.json"));
                }
            }
            Block::Table(table) => self.table(table),
            Block::Matrices(what, matrices) => {
                let _ = writeln!(self, "  {what}:");
                matrices.iter().for_each(|matrix| self.matrix(matrix));
            }
            Block::Ranks(groups) => groups.iter().for_each(|group| self.ranks(group, around)),
            // The command is meant to be copied, so it is not wrapped.
            Block::Command(command) => {
                let _ = writeln!(self, "  {BOLD}{}{BOLD:#}", one_line(command));
            }
        }
    }

    /// Writes the command that repeats the run, if there is one. The command is meant to be copied, so it is not
    /// wrapped.
    fn again(&mut self, command: Option<&str>) {
        if let Some(command) = command {
            let _ = writeln!(self, "again: {}", one_line(command));
        }
    }

    fn facts(&mut self, facts: &[Fact]) {
        for fact in facts {
            for said in &fact.said {
                self.paragraph(&fact.lead(), said.text());
            }
        }
    }

    fn matrix(&mut self, matrix: &Matrix) {
        self.paragraph("in ", &matrix.place);
        if let Some(table) = &matrix.table {
            let small = table.head.len() <= 1 + MATRIX_COLUMNS && table.rows.len() <= MATRIX_ROWS;
            if !(small && self.indented(table)) {
                matrix.words.iter().for_each(|line| self.paragraph("  ", line));
            }
        }
        matrix.notes.iter().for_each(|note| self.paragraph("    ", note));
    }

    /// Writes the outcomes of a group of ranks, and the own words of the first of them.
    fn ranks(&mut self, group: &RankGroup<'_>, around: &Surroundings<'_>) {
        let first = group.first();
        self.paragraph(&format!("{} ({}): ", group.label(), first.ending()), &first.last);
        let words = around.words.into_iter().flat_map(|words| words.of_rank(first));
        words.for_each(|text| self.quotation(text));
        for (title, lines) in group.stacks() {
            self.paragraph("  ", &title);
            self.quotation(&lines);
        }
    }
}
