//! Coded gradients: the gradient of each (step, rank, microbatch) is a row of a Walsh–Hadamard matrix.
//!
//! Gradient `k` has the value `s(k)·t(e)·H[k, e mod D]` in element `e`, where `H` is the D×D Walsh–Hadamard matrix
//! and `s`, `t` are known pseudo-random signs. Rows are orthogonal over any `D` consecutive elements, so a fast
//! Walsh–Hadamard transform decodes a sum `Σ w[k]·g[k]` window by window, exactly and with condition number 1.
//! Because of `t`, a slice at the wrong place decodes to noise instead of weights; `s` makes partial sums a random
//! walk.

use std::ops::Range;

/// The code of one run: the value of every gradient in every element.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    length: usize,
    seed: u64,
    /// The assignment of gradients to rows; `None` if they take the first rows.
    spread: Option<Spread>,
}

/// The assignment of gradients to rows if more rows were reserved than there are gradients.
#[derive(Clone, Copy, Debug)]
struct Spread {
    /// The number of gradients in the run.
    contributions: usize,
    /// The number of microbatches in a step.
    microbatches: usize,
    /// The number of rows that were reserved for the microbatches of a rank in a step.
    reserved: usize,
}

impl Code {
    /// The length of the shortest code, which leaves spare rows even in small runs.
    pub const MIN_LENGTH: usize = 32;

    /// The largest absolute value that [`Code::initial`] returns.
    pub const MOST_INITIAL: usize = 8;

    /// A code for `contributions` gradients.
    ///
    /// The length `D` of the code is at least `2 * contributions`. The spare rows are expected to be zero: a value
    /// in a spare row is data that no gradient of the run can explain.
    pub fn new(contributions: usize, seed: u64) -> Self {
        let length = (2 * contributions).next_power_of_two().max(Self::MIN_LENGTH);
        Self { length, seed, spread: None }
    }

    /// A code for `contributions` gradients in steps of `microbatches`, with `reserved` rows for the microbatches
    /// of each rank in each step.
    pub fn spread(contributions: usize, microbatches: usize, reserved: usize, seed: u64) -> Self {
        let groups = contributions / microbatches;
        let spread = Some(Spread { contributions, microbatches, reserved });
        Self { spread, ..Self::new(groups * reserved, seed) }
    }

    /// The row of the matrix that belongs to a gradient.
    fn row(&self, column: usize) -> usize {
        self.spread.map_or(column, |Spread { microbatches, reserved, .. }| {
            column / microbatches * reserved + column % microbatches
        })
    }

    /// Moves the rows of the gradients to the front, in the order of the gradients.
    fn in_order(&self, rows: Vec<f64>) -> Vec<f64> {
        let Some(Spread { contributions, .. }) = self.spread else { return rows };
        let taken: Vec<usize> = (0..contributions).map(|column| self.row(column)).collect();
        let spare = (0..rows.len()).filter(|row| taken.binary_search(row).is_err());
        taken.iter().copied().chain(spare).map(|row| rows[row]).collect()
    }

    /// The code length `D`: every window of `D` elements can be decoded by itself, with at least as many spare rows
    /// as gradients.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The length of the shortest window that can be decoded by itself, which has the fewest spare rows.
    ///
    /// The rows below `D/2` do not depend on the highest bit of the element, so over `D/2` consecutive elements
    /// these rows are the Walsh–Hadamard matrix of half the size. All gradients have rows below `D/2`.
    pub fn shortest(&self) -> usize {
        self.length / 2
    }

    /// The value (±1) of gradient `column` in flat element `element`.
    pub fn value(&self, column: usize, element: usize) -> i8 {
        let row = self.row(column);
        let hadamard = (row & (element % self.length)).count_ones() % 2 == 1;
        let negative = hadamard ^ self.row_negative(row) ^ self.element_negative(element);
        if negative { -1 } else { 1 }
    }

    /// The starting value of flat element `element` of the parameters, in units of the learning rate: a small
    /// integer that is not 0 and differs from element to element. Because of this value, misplaced slices are
    /// visible, a run of elements can be attributed to its parameter, and padding can be recognised.
    pub fn initial(&self, element: usize) -> i8 {
        let value = (mix(self.seed ^ 0x1717, element as u64) % 16) as i8;
        if value < 8 { value - 8 } else { value - 7 }
    }

    /// Decodes the window of `D` or [`Code::shortest`] elements that starts at flat element `start`.
    ///
    /// Returns as many coefficients as `window` has elements: first those of the run's gradients,
    /// then those of the spare rows.
    ///
    /// # Panics
    /// If `window` has any other length.
    pub fn decode(&self, window: &[f64], start: usize) -> Vec<f64> {
        let length = window.len();
        assert!(
            length == self.length || length == self.shortest(),
            "a window is one code or half a code long"
        );
        let mut rows = vec![0.0; length];
        for (i, &value) in window.iter().enumerate() {
            let element = start + i;
            let sign = if self.element_negative(element) { -1.0 } else { 1.0 };
            rows[element % length] = sign * value;
        }
        fast_walsh_hadamard(&mut rows);
        for (number, row) in rows.iter_mut().enumerate() {
            let sign = if self.row_negative(number) { -1.0 } else { 1.0 };
            *row *= sign / length as f64;
        }
        self.in_order(rows)
    }

    /// The sum of all gradients with these weights, in the flat elements of `range`.
    pub fn encode(&self, weights: &[f64], range: Range<usize>) -> Vec<f64> {
        let sum = self.sum(weights);
        range.map(|element| sum.value(element)).collect()
    }

    /// The sum of all gradients with these weights in every element, computed with a single transform.
    pub fn sum(&self, weights: &[f64]) -> Sum {
        let mut rows = vec![0.0; self.length];
        for (column, &weight) in weights.iter().enumerate() {
            let row = self.row(column);
            rows[row] = if self.row_negative(row) { -weight } else { weight };
        }
        fast_walsh_hadamard(&mut rows);
        Sum { code: *self, rows }
    }

    fn element_negative(&self, element: usize) -> bool {
        mix(self.seed ^ 0xe1e3, element as u64) & 1 == 1
    }

    fn row_negative(&self, row: usize) -> bool {
        mix(self.seed ^ 0xc01, row as u64) & 1 == 1
    }
}

/// A sum of gradients in every element of the flat order.
#[derive(Clone, Debug)]
pub struct Sum {
    code: Code,
    /// One period of the sum, before the signs of the elements are applied.
    rows: Vec<f64>,
}

impl Sum {
    /// The sum in flat element `element`.
    pub fn value(&self, element: usize) -> f64 {
        let value = self.rows[element % self.code.length];
        if self.code.element_negative(element) { -value } else { value }
    }
}

/// In-place transform `x ← H·x` in natural (Hadamard) order; the length is a power of two.
fn fast_walsh_hadamard(x: &mut [f64]) {
    let mut half = 1;
    while half < x.len() {
        for block in x.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// SplitMix64's finaliser over seed and index: a stateless source of pseudo-random bits.
fn mix(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_window_decodes_to_the_weights_it_was_made_with(
            weights in prop::collection::vec(-8i32..8, 1..64),
            start in 0usize..10_000,
            seed: u64,
        ) {
            let code = Code::new(weights.len(), seed);
            let range = start..start + code.length();
            let window: Vec<f64> = range
                .clone()
                .map(|e| {
                    weights.iter().enumerate()
                        .map(|(k, &w)| f64::from(w) * f64::from(code.value(k, e)))
                        .sum()
                })
                .collect();
            let exact: Vec<f64> = weights.iter().copied().map(f64::from).collect();
            prop_assert_eq!(&code.encode(&exact, range), &window);
            let decoded = code.decode(&window, start);
            for (k, value) in decoded.iter().enumerate() {
                let expected = weights.get(k).copied().unwrap_or(0);
                prop_assert_eq!(*value, f64::from(expected));
            }
            let half = code.decode(&window[..code.shortest()], start);
            prop_assert_eq!(&half[..], &decoded[..code.shortest()]);
        }
    }

    #[test]
    fn a_window_read_at_the_wrong_place_spills_into_the_spare_rows() {
        let code = Code::new(16, 7);
        let window: Vec<f64> = (0..code.length())
            .map(|e| (0..16).map(|k| f64::from(code.value(k, e))).sum())
            .collect();
        let decoded = code.decode(&window, 1);
        assert!(decoded[16..].iter().any(|spare| *spare != 0.0));
    }
}
