//! The picture of a weight matrix. If there are many microbatches, neighbouring columns that are alike are merged;
//! colours show whether a weight is below or above its planned value.

use super::form::{MatrixForm, MatrixLine, Who};
use super::labels::runs;
use crate::Contribution;
use crate::words::{earlier_gradient, weight_text};

/// The largest number of microbatches with a column each; of more microbatches, neighbours that are alike share a
/// column.
const COLUMNS_SHOWN: usize = 16;

/// The largest number of different lines that are drawn; further lines are only counted.
const LINES_SHOWN: usize = 64;

/// A weight matrix, prepared for the template.
pub(super) struct Picture {
    pub columns: Vec<Column>,
    pub rows: Vec<PictureRow>,
    /// The number of lines that are not drawn.
    pub more_rows: usize,
    /// The planned weights in one line of text; `None` if all are 1.
    pub planned: Option<String>,
}

/// The side of a cell in the small picture of a matrix, in pixels.
const MINI: usize = 7;

impl Picture {
    /// Makes the picture of a form. `leftover` is true if gradients of earlier steps were searched for; weights within
    /// `tolerance` of the planned value count as planned.
    pub fn new(form: &MatrixForm, leftover: bool, tolerance: f64) -> Self {
        let shown = &form.lines[..form.lines.len().min(LINES_SHOWN)];
        let earlier = shown.iter().map(|(_, line)| line.leftover.len()).max().unwrap_or(0);
        let microbatches = shown.first().map_or(0, |(_, line)| line.weights.len());
        let mut columns = Vec::new();
        for group in
            columns_of(shown, earlier, earlier > 0, |line, at| (line.leftover.get(at), None))
        {
            // Each earlier step has one column for each microbatch, as the current step does.
            let place = |at: usize| {
                let back = (earlier - at - 1) / microbatches.max(1) + 1;
                earlier_gradient(back, at % microbatches.max(1))
            };
            columns.push(Column {
                label: range(&group, place),
                microbatches: None,
                earlier: Some(group.start),
            });
        }
        if leftover && earlier == 0 {
            let label = "earlier".to_owned();
            columns.push(Column { label, microbatches: None, earlier: None });
        }
        let merges = microbatches > COLUMNS_SHOWN;
        for group in columns_of(shown, microbatches, merges, |line, at| {
            (line.weights.get(at), line.expected.get(at))
        }) {
            let label = range(&group, |m| format!("m{m}"));
            columns.push(Column { label, microbatches: Some(group), earlier: None });
        }
        let world_size: usize = form.lines.iter().map(|(who, _)| who.count()).sum();
        let row = |(who, line): &(Who, MatrixLine)| PictureRow {
            label: who.label(world_size),
            cells: columns.iter().map(|column| PictureCell::new(line, column, tolerance)).collect(),
        };
        Self {
            rows: shown.iter().map(row).collect(),
            more_rows: form.lines.len() - shown.len(),
            planned: planned(form),
            columns,
        }
    }

    /// The width and the height of the small picture, in pixels.
    pub fn mini_size(&self) -> (usize, usize) {
        (self.columns.len() * MINI, self.rows.len() * MINI)
    }

    /// The cells of the small picture: x, y and the class that sets the colour.
    pub fn mini_cells(&self) -> impl Iterator<Item = (usize, usize, &'static str)> {
        self.rows.iter().enumerate().flat_map(|(y, row)| {
            let place = move |(x, cell): (usize, &PictureCell)| (x * MINI, y * MINI, cell.class);
            row.cells.iter().enumerate().map(place)
        })
    }
}

/// A column of the picture: one or several microbatches that are alike, or gradients of earlier steps.
pub(super) struct Column {
    pub label: String,
    pub microbatches: Option<std::ops::Range<usize>>,
    earlier: Option<usize>,
}

/// A row of the picture: the weights of a source rank or of several.
pub(super) struct PictureRow {
    pub label: String,
    pub cells: Vec<PictureCell>,
}

/// A cell of the picture: one weight.
pub(super) struct PictureCell {
    pub text: String,
    pub class: &'static str,
    pub title: String,
}

impl Column {
    /// The first microbatch of the column; `None` for a column of earlier steps.
    pub fn first(&self) -> Option<usize> {
        self.microbatches.as_ref().map(|group| group.start)
    }

    /// The last microbatch of the column; `None` for a column of earlier steps.
    pub fn last(&self) -> Option<usize> {
        self.microbatches.as_ref().map(|group| group.end - 1)
    }
}

/// The planned weights in words; `None` if all are 1.
fn planned(form: &MatrixForm) -> Option<String> {
    let expected = || form.lines.iter().flat_map(|(_, line)| &line.expected);
    if expected().all(|bits| f64::from_bits(*bits) == 1.0) {
        return None;
    }
    let line = |(_, line): &(Who, MatrixLine)| {
        let weights = line.expected.iter().map(|bits| weight_text(f64::from_bits(*bits)));
        format!("[{}]", weights.collect::<Vec<_>>().join(", "))
    };
    let lines: Vec<String> = form.lines.iter().take(LINES_SHOWN).map(line).collect();
    Some(lines.join(" "))
}

/// The ranges of indices that become columns. If `merges` is true, neighbours that are alike in every line share a
/// column.
fn columns_of(
    lines: &[(Who, MatrixLine)],
    count: usize,
    merges: bool,
    part: impl for<'a> Fn(&'a MatrixLine, usize) -> (Option<&'a u64>, Option<&'a u64>),
) -> Vec<std::ops::Range<usize>> {
    if !merges {
        return (0..count).map(|at| at..at + 1).collect();
    }
    let column = |at: usize| -> Vec<(Option<&u64>, Option<&u64>)> {
        lines.iter().map(|(_, line)| part(line, at)).collect()
    };
    runs(&(0..count).map(column).collect::<Vec<_>>())
}

fn range(group: &std::ops::Range<usize>, name: impl Fn(usize) -> String) -> String {
    match group.len() {
        1 => name(group.start),
        _ => format!("{} to {}", name(group.start), name(group.end - 1)),
    }
}

impl PictureCell {
    fn new(line: &MatrixLine, column: &Column, tolerance: f64) -> Self {
        let value =
            |list: &[u64], at: usize| list.get(at).map_or(0.0, |bits| f64::from_bits(*bits));
        let (weight, expected) = match (&column.microbatches, column.earlier) {
            (Some(group), _) => {
                (value(&line.weights, group.start), value(&line.expected, group.start))
            }
            (None, at) => (at.map_or(0.0, |at| value(&line.leftover, at)), 0.0),
        };
        let title = if column.microbatches.is_some() {
            format!("{}, planned {}", weight_text(weight), weight_text(expected))
        } else {
            format!("{} of a gradient of an earlier step, planned 0", weight_text(weight))
        };
        Self { text: weight_text(weight), class: class(weight, expected, tolerance), title }
    }
}

/// The class that sets the colour of a weight: neutral if the weight is as planned, otherwise one of four steps below
/// or above.
fn class(weight: f64, expected: f64, tolerance: f64) -> &'static str {
    let difference = weight - expected;
    let size = difference.abs();
    if size <= tolerance {
        return if expected == 0.0 { "none" } else { "same" };
    }
    let step = [0.25, 0.5, 0.999].iter().filter(|limit| size > **limit).count();
    if difference < 0.0 { ["n1", "n2", "n3", "n4"][step] } else { ["p1", "p2", "p3", "p4"][step] }
}

/// The classes of the cells of a buffer's picture, line by line.
pub(in crate::render) fn classes(entry: &Contribution) -> Vec<Vec<&'static str>> {
    let looked_back = entry.leftover.iter().any(|row| !row.is_empty());
    let picture = Picture::new(&MatrixForm::new(entry), looked_back, entry.tolerance);
    let line = |row: &PictureRow| row.cells.iter().map(|cell| cell.class).collect();
    picture.rows.iter().map(line).collect()
}

/// The letters of an index: `A` to `Z`, then `AA` and so on.
pub(super) fn letters(mut index: usize) -> String {
    let mut text = String::new();
    loop {
        text.insert(0, char::from(b'A' + (index % 26) as u8));
        match (index / 26).checked_sub(1) {
            Some(next) => index = next,
            None => return text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Contribution;
    use zprobe_model::trace::Point;

    fn picture(entry: &Contribution, leftover: bool) -> Picture {
        Picture::new(&MatrixForm::new(entry), leftover, 0.0)
    }

    fn entry(rank: usize, weights: Vec<Vec<f64>>) -> Contribution {
        let expected = vec![vec![1.0; weights[0].len()]; weights.len()];
        Contribution {
            point: Point::OptimizerInput,
            step: 0,
            microbatch: None,
            rank,
            params: None,
            leftover: vec![vec![]; weights.len()],
            as_planned: weights == expected,
            expected,
            weights,
            residual: 0.0,
            tolerance: 0.0,
            covered: 1.0,
            elements: Vec::new(),
            possible: Vec::new(),
            also: Vec::new(),
        }
    }

    /// The weights on one of `world_size` ranks after a leak of the boundary microbatch.
    fn leak(rank: usize, world_size: usize) -> Contribution {
        let row = |source| vec![1.0, if source == rank { world_size as f64 } else { 0.0 }];
        entry(rank, (0..world_size).map(row).collect())
    }

    fn texts(picture: &Picture) -> Vec<(String, Vec<String>)> {
        let cells = |row: &PictureRow| row.cells.iter().map(|cell| cell.text.clone()).collect();
        picture.rows.iter().map(|row| (row.label.clone(), cells(row))).collect()
    }

    #[test]
    fn few_ranks_have_a_line_each_and_many_share_theirs() {
        let few = picture(&leak(0, 2), false);
        assert_eq!(texts(&few)[0], ("rank 0".to_owned(), vec!["1".to_owned(), "2".to_owned()]));
        let many = picture(&leak(3, 512), false);
        let labels: Vec<&str> = many.rows.iter().map(|row| row.label.as_str()).collect();
        assert_eq!(labels, ["ranks 0-2 and 4-511", "rank 3"]);
    }

    #[test]
    fn a_line_that_is_each_ranks_own_is_the_same_on_all_of_them() {
        let forms: Vec<_> = [3, 400]
            .map(|rank| MatrixForm::new(&leak(rank, 512)).without_names(rank).unwrap())
            .into_iter()
            .collect();
        assert_ne!(forms[0].0, forms[1].0);
        assert_eq!(forms[0].1, forms[1].1);
        assert_eq!(texts(&Picture::new(&forms[0].1, false, 0.0))[0].0, "the rank itself");
        assert!(MatrixForm::new(&leak(0, 2)).without_names(0).is_none());
    }

    #[test]
    fn many_microbatches_that_are_alike_share_a_column() {
        let mut weights = vec![vec![1.0; 64]; 2];
        weights[0][63] = 2.0;
        let picture = picture(&entry(0, weights), true);
        let labels: Vec<&str> =
            picture.columns.iter().map(|column| column.label.as_str()).collect();
        assert_eq!(labels, ["earlier", "m0 to m62", "m63"]);
        assert_eq!((picture.columns[1].first(), picture.columns[1].last()), (Some(0), Some(62)));
    }

    #[test]
    fn what_earlier_steps_left_has_columns_that_name_the_step() {
        let mut entry = entry(0, vec![vec![1.0, 1.0]; 2]);
        entry.leftover = vec![vec![0.0, 0.0, 1.0, 0.0], vec![0.0; 4]];
        let picture = picture(&entry, true);
        let labels: Vec<&str> =
            picture.columns.iter().map(|column| column.label.as_str()).collect();
        assert_eq!(labels, ["−2·m0 to −2·m1", "−1·m0", "−1·m1", "m0", "m1"]);
        assert_eq!(
            (picture.rows[0].cells[1].text.as_str(), picture.rows[0].cells[1].class),
            ("1", "p4")
        );
    }

    #[test]
    fn colours_diverge_around_what_is_planned() {
        let classes = [(1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (2.0, 1.0), (1.3, 1.0), (0.4, 1.0)];
        let classes = classes.map(|(weight, expected)| class(weight, expected, 1e-6));
        assert_eq!(classes, ["same", "none", "n4", "p4", "p2", "n3"]);
    }

    #[test]
    fn letters_go_on_after_z() {
        assert_eq!([0, 25, 26, 27, 51, 52].map(letters), ["A", "Z", "AA", "AB", "AZ", "BA"]);
    }
}
