//! The tasks, one per subcommand.

mod build;
mod provision;
mod run;
mod test;

pub use build::build;
pub use provision::provision;
pub use run::run;
pub use test::test;
