//! The chart of the norms: a line for each rank over the moments of the run.

use std::fmt::Write as _;

use super::labels::moment;
use crate::Report;
use zprobe_model::trace::Point;

/// The preferred width of the chart, and the range of widths for one moment, in pixels.
const WIDTH: usize = 900;
const COLUMN: std::ops::RangeInclusive<usize> = 56..=110;

/// The height of the chart, in pixels.
const HEIGHT: f64 = 150.0;

/// The data of the chart, with one mark for each moment.
pub(super) struct Chart {
    pub width: usize,
    /// A line for each rank; if there are many ranks, one line for their median.
    pub lines: Vec<ChartLine>,
    /// The path of the area between the smallest and the largest norm; `None` if there are few ranks.
    pub band: Option<String>,
    /// The y coordinates of the grid lines, with their values.
    pub grid: Vec<(String, String)>,
    /// The labels of the moments below the chart.
    pub ticks: Vec<MomentTick>,
    /// The x coordinate at which each step begins, with the number of the step.
    pub steps: Vec<(usize, usize)>,
}

/// A line of the chart.
pub(super) struct ChartLine {
    pub label: String,
    pub path: String,
    pub dots: Vec<Dot>,
}

/// A point on a line of the chart.
pub(super) struct Dot {
    pub x: usize,
    pub y: String,
    pub title: String,
}

/// The label of a moment below the chart.
pub(super) struct MomentTick {
    pub x: usize,
    pub text: String,
    pub differs: bool,
}

impl Chart {
    /// Makes the chart: if there are few ranks, a line for each rank; otherwise a line for the median and a band for
    /// the extremes.
    pub fn new(report: &Report, few: bool) -> Self {
        let rows = &report.norms;
        let largest = rows.iter().flat_map(|row| &row.norms).flatten().copied().fold(0.0, f64::max);
        let top = round_up(largest);
        let y = |norm: f64| HEIGHT - norm / top * HEIGHT;
        let column = (WIDTH / rows.len().max(1)).clamp(*COLUMN.start(), *COLUMN.end());
        let x = |at: usize| at * column + column / 2;
        let lines = if few {
            let norm = |rank: usize| move |row: &crate::Norms| row.norms.get(rank).copied()?;
            (0..report.ranks.len())
                .map(|rank| line(report, format!("rank {rank}"), &norm(rank), &x, &y))
                .collect()
        } else {
            let median = |row: &crate::Norms| {
                let sorted = row.sorted();
                sorted.get(sorted.len() / 2).map(|(norm, _)| *norm)
            };
            vec![line(report, "median of all ranks".to_owned(), &median, &x, &y)]
        };
        let begins = |at: &usize| *at == 0 || rows[*at].step != rows[at - 1].step;
        Self {
            width: rows.len() * column,
            lines,
            band: (!few).then(|| band(rows, &x, &y)),
            grid: [0.0, 0.5, 1.0]
                .map(|part| (format!("{:.1}", y(part * top)), format!("{}", part * top)))
                .to_vec(),
            ticks: rows
                .iter()
                .enumerate()
                .map(|(at, row)| MomentTick {
                    x: x(at),
                    text: short(row),
                    differs: row.agree == Some(false),
                })
                .collect(),
            steps: (0..rows.len()).filter(begins).map(|at| (at * column, rows[at].step)).collect(),
        }
    }
}

/// A short name of a moment.
fn short(row: &crate::Norms) -> String {
    match (row.point, row.microbatch) {
        (Point::Accumulator, Some(m)) => format!("acc m{m}"),
        (Point::BeforeStep, _) => "before".to_owned(),
        (point, _) => point.to_string(),
    }
}

fn line(
    report: &Report,
    label: String,
    norm: &dyn Fn(&crate::Norms) -> Option<f64>,
    x: &dyn Fn(usize) -> usize,
    y: &dyn Fn(f64) -> f64,
) -> ChartLine {
    let (mut path, mut dots) = (String::new(), Vec::new());
    let mut step = None;
    for (at, row) in report.norms.iter().enumerate() {
        let Some(norm) = norm(row) else {
            step = None;
            continue;
        };
        let command = if step == Some(row.step) { 'L' } else { 'M' };
        let _ = write!(path, "{command}{} {:.1}", x(at), y(norm));
        let what = moment(report, row.point, row.microbatch);
        let title = format!("{label}, step {}, {what}: {norm:.4}", row.step);
        dots.push(Dot { x: x(at), y: format!("{:.1}", y(norm)), title });
        step = Some(row.step);
    }
    ChartLine { label, path, dots }
}

fn band(rows: &[crate::Norms], x: &dyn Fn(usize) -> usize, y: &dyn Fn(f64) -> f64) -> String {
    let mut path = String::new();
    for (at, row) in rows.iter().enumerate() {
        let sorted = row.sorted();
        if let (Some((low, _)), Some((high, _))) = (sorted.first(), sorted.last()) {
            // The band is a bar for each moment, because nothing was measured between moments.
            let _ = write!(path, "M{} {:.1}V{:.1}", x(at), y(*high) - 0.5, y(*low) + 0.5);
        }
    }
    path
}

/// A round number that is at least as large as `value`.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let unit = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|factor| factor * unit)
        .find(|round| *round >= value)
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_ends_at_a_round_number() {
        assert_eq!([0.0, 44.9, 5000.0, 9.5].map(round_up), [1.0, 50.0, 5000.0, 10.0]);
    }
}
