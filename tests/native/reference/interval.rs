//! Numbers with known bounds, in fp64.

/// The unit roundoff of fp32.
const ROUNDOFF: f64 = 1.0 / (1u32 << 24) as f64;

/// The largest error of fp32 for numbers that are too small for all its significant bits.
const SMALLEST: f64 = f32::MIN_POSITIVE as f64;

/// The numbers from `low` to `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// An interval with only one number.
    pub fn exactly(value: f64) -> Self {
        Self { low: value, high: value }
    }

    /// The numbers that are at most `radius` from `value`.
    pub fn around(value: f64, radius: f64) -> Self {
        Self { low: value - radius, high: value + radius }
    }

    /// Returns true if the interval has only one number.
    pub fn is_exact(self) -> bool {
        self.low == self.high
    }

    /// The largest absolute value in the interval.
    pub fn magnitude(self) -> f64 {
        self.low.abs().max(self.high.abs())
    }

    /// The interval after operations that fp32 rounds. A number that fp32 can hold is not rounded, and
    /// rounding keeps order, so each end moves by a part of its own size.
    pub fn rounded(self, operations: u32) -> Self {
        if self.is_exact() && f64::from(self.low as f32) == self.low {
            return self;
        }
        let [low, high] =
            [self.low, self.high].map(|end| room(f64::from(operations) * ROUNDOFF * end.abs()));
        Self { low: self.low - low, high: self.high + high }
    }

    /// The interval after operations that fp32 rounds, on terms that may cancel; `terms` is the sum of the
    /// terms' absolute values.
    pub fn rounded_terms(self, operations: u32, terms: f64) -> Self {
        let by = room(f64::from(operations) * ROUNDOFF * terms);
        Self { low: self.low - by, high: self.high + by }
    }

    /// The interval multiplied by a number.
    pub fn times(self, factor: f64) -> Self {
        let (one, other) = (self.low * factor, self.high * factor);
        Self { low: one.min(other), high: one.max(other) }
    }

    /// The sum of two intervals.
    pub fn plus(self, other: Self) -> Self {
        Self { low: self.low + other.low, high: self.high + other.high }
    }

    /// The difference of two intervals of independent numbers.
    pub fn minus(self, other: Self) -> Self {
        Self { low: self.low - other.high, high: self.high - other.low }
    }

    /// The squares of the numbers in the interval.
    pub fn squared(self) -> Self {
        let (one, other) = (self.low * self.low, self.high * self.high);
        let low = if self.low <= 0.0 && self.high >= 0.0 { 0.0 } else { one.min(other) };
        Self { low, high: one.max(other) }
    }

    /// The square roots of the numbers in the interval, with negative numbers taken as 0.
    pub fn root(self) -> Self {
        Self { low: self.low.max(0.0).sqrt(), high: self.high.max(0.0).sqrt() }
    }

    /// The quotient by an interval of positive numbers.
    pub fn over(self, divisor: Self) -> Self {
        assert!(divisor.low > 0.0, "a divisor is positive: {divisor:?}");
        let smallest = |value: f64| value / if value < 0.0 { divisor.low } else { divisor.high };
        let largest = |value: f64| value / if value < 0.0 { divisor.high } else { divisor.low };
        Self { low: smallest(self.low), high: largest(self.high) }
    }
}

/// A distance with a margin for the roundings of fp64 itself.
fn room(distance: f64) -> f64 {
    distance * (1.0 + 1e-6) + SMALLEST
}
