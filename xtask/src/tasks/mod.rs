//! The tasks, one per subcommand.

mod accuracy;
mod bench;
mod build;
mod chaos;
mod coverage;
mod dist;
mod frameworks;
mod gpu;
mod lattice;
mod newest;
mod planted;
mod provision;
mod record_traces;
mod run;
mod test;

pub use accuracy::accuracy;
pub use bench::bench;
pub use build::{build, launcher as build_launcher};
pub use chaos::chaos;
pub use coverage::coverage;
pub use dist::dist;
pub use frameworks::frameworks;
pub use gpu::gpu;
pub use lattice::lattice;
pub use newest::newest;
pub use planted::planted;
pub use provision::provision;
pub use record_traces::record_traces;
pub use run::run;
pub use test::{launchers as test_launchers, quick as test_quickly, test};
