//! A plot of two curves over the steps, drawn with characters.

use std::fmt::Write as _;

/// Number of rows of a plot.
const HEIGHT: usize = 10;

/// Largest number of columns of a plot.
const WIDTH: usize = 60;

/// Number of columns between two steps if there is room.
const APART: usize = 6;

/// A plot of two curves: `A`, `B`, and `*` where the curves meet. `None` for fewer than three steps, which a table
/// shows as clearly, and for curves without values.
pub fn plot(title: &str, a: &[Option<f64>], b: &[Option<f64>]) -> Option<String> {
    let count = a.len().max(b.len());
    let values = || a.iter().chain(b).flatten().copied();
    if count < 3 || values().next().is_none() {
        return None;
    }
    let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
    let width = WIDTH.min((count - 1) * APART + 1);
    let column = |step: usize| step * (width - 1) / (count - 1);
    let row = |value: f64| {
        // A constant curve lies in the middle.
        let height = if high > low { (high - value) / (high - low) } else { 0.5 };
        (height * (HEIGHT - 1) as f64).round() as usize
    };
    let mut grid = vec![vec![' '; width]; HEIGHT];
    for (mark, curve) in [('A', a), ('B', b)] {
        for (step, value) in curve.iter().enumerate() {
            let Some(value) = value else { continue };
            let cell = &mut grid[row(*value)][column(step)];
            *cell = if matches!(*cell, ' ') || *cell == mark { mark } else { '*' };
        }
    }
    let label = |at: usize| match at {
        _ if high == low && at == row(low) => format!("{low:.4}"),
        0 if high > low => format!("{high:.4}"),
        at if high > low && at + 1 == HEIGHT => format!("{low:.4}"),
        _ => String::new(),
    };
    let margin = (0..HEIGHT).map(|at| label(at).len()).max().unwrap_or(0);
    let mut text = format!("{title} (A, B, * both)\n");
    for (at, cells) in grid.iter().enumerate() {
        let line: String = cells.iter().collect();
        let _ = writeln!(text, "{:>margin$} |{}", label(at), line.trim_end());
    }
    let _ = writeln!(text, "{:margin$} +{}", "", "-".repeat(width));
    let last = (count - 1).to_string();
    let _ = writeln!(text, "{:margin$}  0{last:>1$}", "", width - 1);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_that_meet_are_stars_and_those_apart_are_their_letters() {
        let a = [Some(3.0), Some(2.0), Some(1.0)];
        let b = [Some(3.0), Some(2.5), None];
        let plot = plot("loss", &a, &b).expect("a plot");
        let lines: Vec<&str> = plot.lines().collect();
        assert_eq!(lines[1], "3.0000 |*");
        assert!(lines[3..5].contains(&"       |      B"), "{plot}");
        assert!(lines[5..7].contains(&"       |      A"), "{plot}");
        assert_eq!(lines[10], "1.0000 |            A");
        assert_eq!(lines[12], "        0           2");
    }

    #[test]
    fn a_level_line_lies_in_the_middle_and_two_steps_are_no_curve() {
        let level = [Some(1.0); 4];
        let drawn = plot("loss", &level, &level).expect("a plot");
        assert_eq!(drawn.lines().nth(6), Some("1.0000 |*     *     *     *"), "{drawn}");
        assert_eq!(plot("loss", &level[..2], &level[..2]), None);
        assert_eq!(plot("loss", &[None; 5], &[None; 5]), None);
    }
}
