//! The times of one program.

use std::time::Duration;

/// The times of one program, in milliseconds, in ascending order.
#[derive(Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// Adds a time.
    pub fn add(&mut self, time: Duration) {
        let place = self.0.partition_point(|other| *other < millis(time));
        self.0.insert(place, millis(time));
    }

    /// The number of times.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the sample has no times.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest time, in milliseconds; NaN for an empty sample.
    pub fn min(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }

    /// The median in milliseconds: the middle time, or the mean of the two middle times; NaN for an empty
    /// sample.
    pub fn median(&self) -> f64 {
        let middle = self.0.len() / 2;
        match self.0.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => self.0[middle],
            _ => self.0[middle - 1].midpoint(self.0[middle]),
        }
    }
}

/// A duration in milliseconds.
fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(millis: &[u64]) -> Sample {
        let mut sample = Sample::default();
        for time in millis {
            sample.add(Duration::from_millis(*time));
        }
        sample
    }

    #[test]
    fn order_does_not_matter() {
        let sample = sample(&[5, 1, 9]);
        assert_eq!((sample.len(), sample.min(), sample.median()), (3, 1.0, 5.0));
    }

    #[test]
    fn the_median_of_an_even_number_is_between_two() {
        assert_eq!(sample(&[4, 1, 2, 9]).median(), 3.0);
    }

    #[test]
    fn nothing_has_no_median() {
        assert!(sample(&[]).median().is_nan());
    }
}
