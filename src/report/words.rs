//! Words that findings and renderers share, so that both say the same thing the same way.

/// A weight with as many digits as it takes, three at most.
pub fn weight_text(weight: f64) -> String {
    let text = format!("{weight:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// A small number, as precise as a person needs.
pub fn two_digits(number: f64) -> String {
    let places = (1.0 - number.log10().floor()).clamp(0.0, 12.0) as usize;
    format!("{number:.places$}")
}

/// `step 0`, `steps 0, 1 and 2`, or `ranks 0 to 511`: what follows each other is a range, from four
/// numbers on.
pub fn counted(noun: &str, numbers: &[usize]) -> String {
    const SHORTEST: usize = 4;
    let follow = numbers.chunk_by(|a, b| a + 1 == *b);
    let texts: Vec<String> = follow
        .flat_map(|run| match run {
            [first, .., last] if run.len() >= SHORTEST => vec![format!("{first} to {last}")],
            few => few.iter().map(usize::to_string).collect(),
        })
        .collect();
    match texts.split_last() {
        None => format!("no {noun}"),
        Some((only, [])) if numbers.len() == 1 => format!("{noun} {only}"),
        Some((only, [])) => format!("{} {only}", plural(noun)),
        Some((last, others)) => {
            format!("{} {} and {last}", plural(noun), others.join(", "))
        }
    }
}

/// `1 step`, or `3 steps`.
pub fn amount(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {}", plural(noun)) }
}

fn plural(noun: &str) -> String {
    let ending = if noun.ends_with("ch") { "es" } else { "s" };
    format!("{noun}{ending}")
}

/// `[[1, 2], [1, 0]]`: one row a source rank, one column a microbatch.
pub fn matrix_text(weights: &[Vec<f64>]) -> String {
    let rows: Vec<String> = weights
        .iter()
        .map(|row| {
            let cells: Vec<String> = row.iter().map(|&weight| weight_text(weight)).collect();
            format!("[{}]", cells.join(", "))
        })
        .collect();
    format!("[{}]", rows.join(", "))
}

/// The first few of many names.
pub fn abridged(names: &[String]) -> String {
    const SHOWN: usize = 4;
    if names.len() <= SHOWN {
        return names.join(", ");
    }
    format!("{} and {} more", names[..SHOWN].join(", "), names.len() - SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_as_many_digits_as_they_need() {
        let texts = [1.0, 0.25, 1.0 / 3.0, -0.5, 0.0, -0.0001].map(weight_text);
        assert_eq!(texts, ["1", "0.25", "0.333", "-0.5", "0", "0"]);
    }

    #[test]
    fn numbers_are_counted_in_words() {
        assert_eq!(counted("rank", &[]), "no rank");
        assert_eq!(counted("rank", &[3]), "rank 3");
        assert_eq!(counted("step", &[0, 1, 2]), "steps 0, 1 and 2");
        assert_eq!(counted("microbatch", &[1, 3]), "microbatches 1 and 3");
        assert_eq!(counted("rank", &[0, 1, 2, 3]), "ranks 0 to 3");
        assert_eq!(counted("rank", &[0, 2, 3, 4, 5, 7]), "ranks 0, 2 to 5 and 7");
        assert_eq!([amount(1, "rank"), amount(2, "rank")], ["1 rank", "2 ranks"]);
    }
}
