//! An upper bound on a rate, from a count.

/// The upper end of the one-sided 95 % interval of Clopper and Pearson (1934) for a rate. At this rate `hits`
/// or fewer of `runs` happen once in twenty times; without hits it is about `3/runs`.
pub fn upper(hits: usize, runs: usize) -> f64 {
    if hits >= runs {
        return 1.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if at_most(hits, runs, middle) > 0.05 {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The probability of `hits` or fewer in `runs` runs at this rate.
fn at_most(hits: usize, runs: usize, rate: f64) -> f64 {
    let mut term = (1.0 - rate).powi(i32::try_from(runs).unwrap_or(i32::MAX));
    let mut sum = term;
    for hit in 1..=hits {
        term *= (runs - hit + 1) as f64 / hit as f64 * rate / (1.0 - rate);
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_that_of_the_tables() {
        // The expected values are 1 − 0.05^(1/n), and qbeta(0.95, 2, 99) of R.
        assert!((upper(0, 1000) - (1.0 - 0.05f64.powf(0.001))).abs() < 1e-12);
        assert!((upper(1, 100) - 0.046_559_8).abs() < 1e-6);
        assert_eq!(upper(3, 3), 1.0);
    }
}
