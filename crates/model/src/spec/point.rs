//! The points of the gradient's journey at which buffers are read.

use super::named_enum;

named_enum! {
    /// A point of the gradient's journey, in the order of the journey.
    pub enum Point {
        /// The gradient of one microbatch as autograd computed it, divided by `GA` where the engine
        /// does so before backward.
        LocalGradient = "local-gradient",
        /// The rank's own sum over the microbatches so far.
        Accumulator = "accumulator",
        /// The gradient after the reduction across ranks: the whole of it where the dataflow
        /// all-reduces, else the rank's partition.
        Reduced = "reduced",
        /// The gradient buffer as the optimizer step finds it.
        BeforeStep = "before-step",
        /// The gradient that the inner optimizer's step consumed.
        OptimizerInput = "optimizer-input",
        /// Master weights after the step: their change is the update itself.
        MasterWeights = "master-weights",
        /// The model's parameters after the step, on every rank.
        Parameters = "parameters",
    }
}

impl Point {
    /// Name of a buffer at this point, in words.
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
