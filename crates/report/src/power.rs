//! The power of a run in a report: the smallest deviation that the run could have detected.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use zprobe_model::spec::named_enum;

/// The smallest deviation that this run could have detected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Power {
    /// The method by which weights were read.
    pub method: Method,
    /// The smallest change of a weight at the optimizer's input that would have been a finding; `None` if no weights
    /// could be read there.
    pub smallest_weight_deviation: Option<f64>,
    /// The condition number of the least-squares problem: 1 for coded data; `None` if no problem was solved.
    pub condition: Option<f64>,
    /// The smallest change of a single element that would have been a finding, in units of one contribution; `None` for
    /// dense data.
    pub smallest_element_deviation: Option<f64>,
    /// One sentence that states the smallest deviation.
    pub statement: String,
}

named_enum! {
    /// The method by which contribution weights were read.
    pub enum Method {
        /// Decoding of Walsh–Hadamard codes, which is exact.
        Coded = "coded",
        /// A least-squares fit to the recorded local gradients.
        LeastSquares = "least-squares",
    }
}
