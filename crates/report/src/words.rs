//! Formats numbers, ranks and weights for findings and renderers, so that both use the same words.

use std::collections::HashMap;

/// A weight as text, with at most three decimals and without trailing zeros.
pub fn weight_text(weight: f64) -> String {
    let text = format!("{weight:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// The largest distance from 1 that is attributed to rounding in fp32.
const ROUNDING: f64 = 1e-6;

/// A multiple of the right value as text, with enough decimals to differ from 0 and from 1.
pub fn multiple_text(multiple: f64) -> String {
    let from_one = (multiple - 1.0).abs();
    if multiple != 0.0 && multiple.abs() < 1e-3 {
        two_digits(multiple)
    } else if (ROUNDING..1e-3).contains(&from_one) {
        let places = places(from_one);
        format!("{multiple:.places$}")
    } else {
        weight_text(multiple)
    }
}

/// A number as text, with its first two significant digits.
pub fn two_digits(number: f64) -> String {
    let places = places(number);
    format!("{number:.places$}")
}

/// The number of decimals, at most 12, that show the first two significant digits of a number.
fn places(number: f64) -> usize {
    (1.0 - number.abs().log10().floor()).clamp(0.0, 12.0) as usize
}

/// The largest number of ranks or steps that are listed one by one; more are listed as ranges.
const NAMED: usize = 8;

/// Numbers with their noun: `step 0`, or `steps 0, 1 and 2`; for many numbers, ranges: `ranks 0-4094 and 4096`.
pub fn counted(noun: &str, numbers: &[usize]) -> String {
    let texts = runs(numbers);
    if let ([run], 2..) = (&texts[..], numbers.len()) {
        return format!("{} {run}", plural(noun));
    }
    match texts.split_last() {
        None => format!("no {noun}"),
        Some((only, [])) => format!("{noun} {only}"),
        Some((last, others)) => {
            format!("{} {} and {last}", plural(noun), others.join(", "))
        }
    }
}

/// Numbers as texts; many numbers, which must ascend, become ranges of consecutive numbers.
pub fn runs(numbers: &[usize]) -> Vec<String> {
    if numbers.len() <= NAMED {
        return numbers.iter().map(usize::to_string).collect();
    }
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let text = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(usize::to_string).collect(),
    };
    runs.map(text).collect()
}

/// A line for each rank, `rank 0: text`; if there are many ranks, those with equal texts share a line.
pub fn by_rank(texts: impl IntoIterator<Item = (usize, String)>) -> Vec<String> {
    let texts: Vec<(usize, String)> = texts.into_iter().collect();
    let apart = texts.len() <= NAMED;
    let mut lines: Vec<(String, Vec<usize>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (rank, text) in texts {
        match places.get(&text).filter(|_| !apart) {
            Some(&place) => lines[place].1.push(rank),
            None => {
                places.insert(text.clone(), lines.len());
                lines.push((text, vec![rank]));
            }
        }
    }
    lines.into_iter().map(|(text, ranks)| format!("{}: {text}", counted("rank", &ranks))).collect()
}

/// The name of a gradient of an earlier step: `−1·m0` is the first microbatch of the previous step.
pub fn earlier_gradient(steps_back: usize, microbatch: usize) -> String {
    format!("−{steps_back}·m{microbatch}")
}

/// A count with its noun: `1 step`, or `3 steps`.
pub fn amount(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {}", plural(noun)) }
}

/// A part of a count with its noun: `31 of 32 probes`.
pub fn of_all(number: usize, all: usize, noun: &str) -> String {
    format!("{number} of {}", amount(all, noun))
}

fn plural(noun: &str) -> String {
    let ending = if noun.ends_with("ch") { "es" } else { "s" };
    format!("{noun}{ending}")
}

/// The largest number of weights of a matrix that are written one by one.
const WRITTEN: usize = 64;

/// A matrix as text, `[[1, 2], [1, 0]]`: one row for each source rank, one column for each microbatch. For a large
/// matrix, the most frequent weight and the exceptions: `all 1, but for rank 17: m3 0`.
pub fn matrix_text(weights: &[Vec<f64>]) -> String {
    let count: usize = weights.iter().map(Vec::len).sum();
    if count > WRITTEN {
        let (usual, others) = exceptions(weights);
        return match others.as_slice() {
            [] => format!("all {usual}"),
            others => format!("all {usual}, but for {}", others.join("; ")),
        };
    }
    let rows: Vec<String> = weights
        .iter()
        .map(|row| {
            let cells: Vec<String> = row.iter().map(|&weight| weight_text(weight)).collect();
            format!("[{}]", cells.join(", "))
        })
        .collect();
    format!("[{}]", rows.join(", "))
}

/// A text in one line: line feeds become spaces.
pub fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// The names as a list, of which only the first few are written if there are many.
pub fn abridged(names: &[String]) -> String {
    const SHOWN: usize = 4;
    if names.len() <= SHOWN {
        return names.join(", ");
    }
    format!("{} and {} more", names[..SHOWN].join(", "), names.len() - SHOWN)
}

/// The most frequent weight of a matrix, and the weights that differ from it: `rank 17: m3 0`.
pub fn exceptions(weights: &[Vec<f64>]) -> (String, Vec<String>) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for &weight in weights.iter().flatten() {
        *counts.entry(weight_text(weight)).or_default() += 1;
    }
    let usual = counts.into_iter().max_by(|a, b| (a.1, &b.0).cmp(&(b.1, &a.0)));
    let usual = usual.map_or_else(String::new, |(text, _)| text);
    let row = |(rank, row): (usize, &Vec<f64>)| {
        let cells = row.iter().map(|&weight| weight_text(weight)).enumerate();
        let wrong: Vec<String> = cells
            .filter(|(_, text)| *text != usual)
            .map(|(m, text)| format!("m{m} {text}"))
            .collect();
        (!wrong.is_empty()).then(|| (rank, wrong.join(", ")))
    };
    let others = by_rank(weights.iter().enumerate().filter_map(row));
    (usual, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_as_many_digits_as_they_need() {
        let texts = [1.0, 0.25, 1.0 / 3.0, -0.5, 0.0, -0.0001].map(weight_text);
        assert_eq!(texts, ["1", "0.25", "0.333", "-0.5", "0", "0"]);
        let texts = [1.000_000_1, 0.0, 0.3333, 1.000_42, 0.999_96, -0.000_123].map(multiple_text);
        assert_eq!(texts, ["1", "0", "0.333", "1.00042", "0.999960", "-0.00012"]);
    }

    #[test]
    fn of_a_large_matrix_only_what_differs_is_written() {
        let mut weights = vec![vec![1.0; 4]; 4096];
        assert_eq!(matrix_text(&weights), "all 1");
        weights[17][3] = 0.0;
        assert_eq!(matrix_text(&weights), "all 1, but for rank 17: m3 0");
        for row in &mut weights[20..] {
            row[1] = 2.0;
        }
        let text = "all 1, but for rank 17: m3 0; ranks 20-4095: m1 2";
        assert_eq!(matrix_text(&weights), text);
        assert_eq!(matrix_text(&weights[16..19]), "[[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]");
    }

    #[test]
    fn numbers_are_counted_in_words() {
        assert_eq!(counted("rank", &[]), "no rank");
        assert_eq!(counted("rank", &[3]), "rank 3");
        assert_eq!(counted("step", &[0, 1, 2]), "steps 0, 1 and 2");
        let many: Vec<usize> = (0..20).filter(|rank| *rank != 17).collect();
        assert_eq!(counted("rank", &many), "ranks 0-16 and 18-19");
        assert_eq!(counted("rank", &(0..20).collect::<Vec<_>>()), "ranks 0-19");
        assert_eq!(counted("microbatch", &[1, 3]), "microbatches 1 and 3");
        assert_eq!([amount(1, "rank"), amount(2, "rank")], ["1 rank", "2 ranks"]);
    }
}
