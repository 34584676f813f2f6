//! The points of the gradient's journey at which buffers are read.

use super::named_enum;

named_enum! {
    /// A point of the gradient's journey, in the order of the journey.
    pub enum Point {
        /// The gradient of one microbatch as autograd computed it, divided by `GA` if the engine does so before the
        /// backward.
        LocalGradient = "local-gradient",
        /// The rank's own sum of gradients over the microbatches so far.
        Accumulator = "accumulator",
        /// The gradient after the reduction across ranks: the whole gradient if the dataflow all-reduces, otherwise
        /// the rank's partition.
        Reduced = "reduced",
        /// The gradient buffer at the start of the optimizer step.
        BeforeStep = "before-step",
        /// The gradient that the inner optimizer's step consumed.
        OptimizerInput = "optimizer-input",
        /// The master weights after the step; their change is the update.
        MasterWeights = "master-weights",
        /// The model's parameters after the step, on every rank.
        Parameters = "parameters",
    }
}

impl Point {
    /// The name of a buffer at this point, in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Point::LocalGradient => "local gradient",
            Point::Accumulator => "accumulator",
            Point::Reduced => "reduced gradient",
            Point::BeforeStep => "gradient before the step",
            Point::OptimizerInput => "optimizer's input",
            Point::MasterWeights => "master weights",
            Point::Parameters => "parameters",
        }
    }
}
