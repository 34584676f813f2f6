//! The command that repeats the run of a report.

use super::Report;
use zprobe_model::spec::Command;

/// The file name of the DeepSpeed configuration in a command, for a run that flags cannot describe completely. A bug
/// report contains the file under this name.
pub const CONFIG_FILE: &str = "deepspeed.json";

impl Report {
    /// The command that repeats the run, with the same number of repeats; `None` if no flags describe the run. The
    /// command names no interpreter, because the interpreter's path is private.
    pub fn command(&self) -> Option<Command> {
        let mut command = self.run.spec.command(CONFIG_FILE)?;
        if let Some(repeats) = &self.repeats {
            command.arguments.extend(["--repeat".to_owned(), repeats.verdicts.len().to_string()]);
        }
        Some(command)
    }
}
