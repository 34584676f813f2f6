//! The dtype in which gradients were really summed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use zprobe_model::spec::{Dtype, named_enum};
use zprobe_model::trace::Point;

named_enum! {
    /// The kind of gradients that a sum adds up.
    pub enum Over {
        /// The gradients of a rank's microbatches, which are accumulated.
        Microbatches = "microbatches",
        /// The gradients of all ranks, which are reduced.
        Ranks = "ranks",
    }
}

/// The precision with which the gradients in the buffers of one point of the journey were summed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Precision {
    /// The point of the journey. The accumulator holds sums over microbatches; later points also hold sums over ranks.
    pub point: Point,
    /// The narrowest dtype that the run requested on the way to this point; if a sum ran in a narrower dtype, the dtype
    /// that was requested for this sum.
    pub asked: Dtype,
    /// The dtype whose rounding matches the largest observed error over all ranks and steps.
    pub as_exact_as: Dtype,
    /// The largest norm of the difference from the sum in fp64, relative to the norm of that sum.
    pub relative_error: f64,
    /// The sum that ran in a narrower dtype than the run requested; `None` if there is no such sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrower: Option<Over>,
}

impl Precision {
    /// The precision in a few words: the point, the dtype and the error.
    pub fn describe(&self) -> String {
        let Self { point, as_exact_as, relative_error, .. } = self;
        let how = match *relative_error {
            0.0 => "exact".to_owned(),
            error => {
                format!("rounded as in {as_exact_as}, off by 2^{:.1} of its norm", error.log2())
            }
        };
        format!("{}: {how}", point.describe())
    }
}
