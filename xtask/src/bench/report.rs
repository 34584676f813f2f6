//! The measurements as Markdown tables, which are readable as plain text too.

use std::fmt;

use super::contender;
use super::machine::Machine;
use super::memory::{self, Memory};
use super::sample::Sample;

/// A contender and its times.
pub struct Measured {
    /// The name of the contender.
    pub name: String,
    /// The times of the contender; empty if the contender was not run.
    pub times: Sample,
}

/// All measurements of `zprobe run` and of the programs that it is compared with.
pub struct Report {
    /// The command that repeats the measurements.
    pub command: String,
    /// The machine, and the versions of the software that ran.
    pub machine: Machine,
    /// The times of each program; those of the forked floor come first.
    pub measured: Vec<Measured>,
    /// The memory of one rank, by contender.
    pub memory: Vec<(String, Memory)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}`\n\n{}", self.command, self.machine)?;
        let median = |measured: &Measured| measured.times.median();
        let floor = self.measured.first().map_or(f64::NAN, median);
        let run = self.measured.iter().find(|measured| measured.name == contender::RUN);
        let run = run.map_or(f64::NAN, median);
        let rows: Vec<Vec<String>> =
            self.measured.iter().map(|measured| measured.row(floor, run)).collect();
        table(f, &["wall time", "median", "min", "runs", "÷ first row", "÷ zprobe run"], &rows)?;
        writeln!(f)?;
        let rows: Vec<Vec<String>> = self
            .memory
            .iter()
            .map(|(name, memory)| vec![name.clone(), mib(memory.peak_rss), mib(memory.pss)])
            .collect();
        table(f, &["memory of one rank", "peak RSS", "PSS"], &rows)?;
        writeln!(f, "\nMemory is the largest seen in {} runs.", memory::RUNS)
    }
}

impl Measured {
    fn row(&self, floor: f64, run: f64) -> Vec<String> {
        let name = self.name.clone();
        if self.times.is_empty() {
            return [&name, "not run", "", "0", "", ""].map(str::to_owned).into();
        }
        let (median, min) = (self.times.median(), self.times.min());
        vec![
            name,
            time(median),
            time(min),
            self.times.len().to_string(),
            ratio(median / floor),
            ratio(median / run),
        ]
    }
}

/// A time in milliseconds, as text with the precision that a reader needs.
pub fn time(millis: f64) -> String {
    if millis < 10.0 {
        format!("{millis:.1} ms")
    } else if millis < 10_000.0 {
        format!("{millis:.0} ms")
    } else {
        format!("{:.1} s", millis / 1e3)
    }
}

/// A ratio as text, with about three digits.
pub fn ratio(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.2}") } else { format!("{ratio:.0}") }
}

/// A size in kB as text in mebibytes; `not seen` for 0.
pub fn mib(kilobytes: u64) -> String {
    if kilobytes == 0 {
        return "not seen".to_owned();
    }
    format!("{:.0} MiB", kilobytes as f64 / 1024.0)
}

/// Writes a table whose columns line up; all columns but the first one are numbers.
pub fn table(f: &mut fmt::Formatter<'_>, head: &[&str], rows: &[Vec<String>]) -> fmt::Result {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |f: &mut fmt::Formatter<'_>, cells: &mut dyn Iterator<Item = &str>| {
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            match column {
                0 => write!(f, "| {cell:<width$} |")?,
                _ => write!(f, " {cell:>width$} |")?,
            }
        }
        writeln!(f)
    };
    line(f, &mut head.iter().copied())?;
    for (column, width) in widths.iter().enumerate() {
        match column {
            0 => write!(f, "|{:-<1$}|", "", width + 2)?,
            _ => write!(f, "{:-<1$}:|", "", width + 1)?,
        }
    }
    writeln!(f)?;
    rows.iter().try_for_each(|row| line(f, &mut row.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Table<'a>(&'a [&'a str], Vec<Vec<String>>);

    impl fmt::Display for Table<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            table(f, self.0, &self.1)
        }
    }

    #[test]
    fn columns_line_up() {
        let row = |name: &str, value: &str| vec![name.to_owned(), value.to_owned()];
        let shown = Table(&["what", "n"], vec![row("a", "100"), row("longer", "2")]).to_string();
        let expected = "\
| what   |   n |
|--------|----:|
| a      | 100 |
| longer |   2 |
";
        assert_eq!(shown, expected);
    }

    #[test]
    fn times_are_rounded_by_their_size() {
        assert_eq!([1.26, 211.4, 48_230.0].map(time), ["1.3 ms", "211 ms", "48.2 s"]);
    }
}
