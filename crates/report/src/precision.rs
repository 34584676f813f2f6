//! Dtype in which sums really ran.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use zprobe_model::spec::{Dtype, named_enum};
use zprobe_model::trace::Point;

named_enum! {
    /// The addends of a sum.
    pub enum Over {
        /// Gradients of a rank's microbatches, as they are accumulated.
        Microbatches = "microbatches",
        /// Gradients of the ranks, as they are reduced.
        Ranks = "ranks",
    }
}

/// Precision with which gradients were added up that buffers hold at one point of the journey.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Precision {
    /// Point of the journey. The accumulator holds sums over microbatches, later points those over
    /// ranks too.
    pub point: Point,
    /// The narrowest dtype that the run asked for on the way to this point; of a sum that ran in a narrower one,
    /// the dtype that was asked for.
    pub asked: Dtype,
    /// The dtype that rounds as much as was seen, on the rank and in the step where it was most.
    pub as_exact_as: Dtype,
    /// Largest norm of the difference from the sum in fp64, as a share of the norm of that sum.
    pub relative_error: f64,
    /// The sum that ran in fewer bits than the run asked for, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrower: Option<Over>,
}

impl Precision {
    /// The precision in a few words.
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
