//! The panel with the norms of gradient buffers, moment by moment.

use super::chart::Chart;
use super::labels::moment;
use crate::Report;

/// The largest number of ranks with a line each; more ranks are shown as a band from the smallest to the largest norm.
const LINES_SHOWN: usize = 8;

/// The data of the panel of norms.
pub(super) struct NormPanel {
    pub heads: Vec<String>,
    pub rows: Vec<NormRow>,
    pub chart: Chart,
}

/// A row of the table: the norms at one moment.
pub(super) struct NormRow {
    pub step: usize,
    pub what: String,
    pub cells: Vec<String>,
    pub agree: Option<bool>,
}

impl NormPanel {
    pub fn new(report: &Report) -> Option<Self> {
        if report.norms.is_empty() {
            return None;
        }
        let world_size = report.ranks.len();
        let few = world_size <= LINES_SHOWN;
        let heads = if few {
            (0..world_size).map(|rank| format!("rank {rank}")).collect()
        } else {
            ["rank 0", "smallest", "median", "largest"].map(str::to_owned).to_vec()
        };
        let row = |row: &crate::Norms| NormRow {
            step: row.step,
            what: moment(report, row.point, row.microbatch),
            cells: if few {
                (0..world_size).map(|rank| cell(row, rank)).collect()
            } else {
                summary(row)
            },
            agree: row.agree,
        };
        let rows = report.norms.iter().map(row).collect();
        Some(Self { heads, rows, chart: Chart::new(report, few) })
    }
}

/// The norm of a rank, with the difference to the norm of rank 0 in percent.
fn cell(row: &crate::Norms, rank: usize) -> String {
    let norm = text(row.norms.get(rank).copied().flatten());
    match row.difference_percent.get(rank) {
        Some(Some(difference)) if rank > 0 && *difference != 0.0 => {
            format!("{norm} ({difference:+.2} %)")
        }
        _ => norm,
    }
}

fn text(norm: Option<f64>) -> String {
    norm.map_or("–".to_owned(), |norm| format!("{norm:.4}"))
}

/// The cells of a row for many ranks: the norm of rank 0, the smallest, the median and the largest norm.
fn summary(row: &crate::Norms) -> Vec<String> {
    let sorted = row.sorted();
    let at = |place: Option<&(f64, usize)>| {
        place.map_or("–".to_owned(), |(norm, rank)| format!("{norm:.4} (rank {rank})"))
    };
    let median = sorted.get(sorted.len() / 2).map(|(norm, _)| *norm);
    let first = row.norms.first().copied().flatten();
    vec![text(first), at(sorted.first()), text(median), at(sorted.last())]
}
