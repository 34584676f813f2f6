//! The data of zprobe, on which all other crates build.
//!
//! - [`spec`]: the command line and a user's files become one validated [`spec::RunSpec`]; its [`spec::Plan`] says
//!   where every gradient should go.
//! - [`trace`]: the events of the launcher and the ranks, as they are written down.
//! - [`run_dir`]: the files of a run directory.
//! - [`document`]: TOML files that people write, read with the line in every complaint.
//! - [`visible`]: text of strangers, made visible before it is shown.

pub mod document;
pub mod run_dir;
pub mod spec;
pub mod trace;
pub mod visible;
