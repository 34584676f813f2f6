//! Races: differences between repeats of the same run. Only chance can cause them.

mod moments;

use crate::observed::Observed;
use zprobe_report::words::amount;

use self::moments::{DifferingElements, InParam, RecordedValue, elements};
pub use self::moments::{RecordedAt, ValueKind, moments};

/// The first moment at which repeats of a run differ.
#[derive(Clone, Debug)]
pub struct FirstDifference {
    /// The moment, on the first rank that differs.
    pub moment: RecordedAt,
    /// The ranks that differ at this moment.
    pub ranks: Vec<usize>,
    /// The numbers of the repeats that differ from the first one at this moment, on any rank.
    pub repeats: Vec<usize>,
    /// The number of repeats that reached this moment.
    pub seen: usize,
    /// The difference between repeat 0 and the repeat `example`.
    pub difference: ValueDifference,
    /// The number of the repeat that `difference` is about.
    pub example: usize,
    /// The number of moments after the first difference at which repeats differ too, and the number of all moments of
    /// the run.
    pub later: (usize, usize),
}

/// The difference between the values that two repeats recorded at the same moment.
#[derive(Clone, Debug)]
pub enum ValueDifference {
    /// Some elements of a buffer differ.
    Elements(DifferingElements),
    /// Two numbers differ: those of repeat 0 and of the other repeat. `None` stands for a number that is not finite.
    Numbers(Option<f64>, Option<f64>),
    /// One of the two repeats recorded no value at the moment, although both repeats finished.
    Absent {
        /// True if only the later repeat reached the moment.
        here: bool,
    },
}

/// Returns the difference between two values of the same moment; `None` if they are the same.
pub fn difference(
    observed: &Observed<'_>,
    rank: usize,
    one: &RecordedValue<'_>,
    two: &RecordedValue<'_>,
) -> Option<ValueDifference> {
    if one.is_same(two) {
        return None;
    }
    Some(match (one, two) {
        (RecordedValue::Buffer(layout, one), RecordedValue::Buffer(_, two)) => {
            match elements(observed, rank, *layout, one, two) {
                Some(elements) if elements.differing == 0 => return None,
                Some(elements) => ValueDifference::Elements(elements),
                None => ValueDifference::Absent { here: false },
            }
        }
        (RecordedValue::Number(one), RecordedValue::Number(two)) => {
            ValueDifference::Numbers(*one, *two)
        }
        _ => ValueDifference::Absent { here: false },
    })
}

impl FirstDifference {
    /// Returns the index of the only parameter that differs; `None` if several parameters differ.
    pub fn only_param(&self) -> Option<usize> {
        match &self.difference {
            ValueDifference::Elements(DifferingElements { params, .. }) => match &params[..] {
                [only] => Some(only.param),
                _ => None,
            },
            _ => None,
        }
    }

    /// Describes the difference between the two repeats, one fact per line.
    pub fn facts(&self, observed: &Observed<'_>) -> Vec<String> {
        const SHOWN: usize = 4;
        let repeat = self.example;
        let number = |it: &Option<f64>| it.map_or("not finite".to_owned(), |it| it.to_string());
        let elements = match &self.difference {
            ValueDifference::Elements(elements) => elements,
            ValueDifference::Numbers(one, two) => {
                return vec![format!(
                    "{} in repeat 0, {} in repeat {repeat}",
                    number(one),
                    number(two)
                )];
            }
            ValueDifference::Absent { here } => {
                let (less, more) = if *here { (0, repeat) } else { (repeat, 0) };
                return vec![format!(
                    "at this moment, repeat {less} recorded fewer values than repeat {more}"
                )];
            }
        };
        let mut facts = vec![format!(
            "repeats 0 and {repeat} differ in {} of {} elements; the first of these is {} in repeat 0 and {} in \
             repeat {repeat}",
            elements.differing, elements.of, elements.first.0, elements.first.1,
        )];
        for InParam { param, first, last, count } in elements.params.iter().take(SHOWN) {
            let name = observed.model.param_name(*param);
            facts.push(format!("{name}: {}, from {first} to {last}", amount(*count, "element")));
        }
        if elements.params.len() > SHOWN {
            facts.push(format!("and {} more parameters", elements.params.len() - SHOWN));
        }
        facts
    }
}
