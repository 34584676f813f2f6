//! The command that makes the run of a report again.

use super::Report;
use zprobe_model::spec::Command;

/// Name that a command gives the DeepSpeed file that a run needs, where flags alone cannot say it. A bug report has
/// the file under this name.
pub const CONFIG_FILE: &str = "deepspeed.json";

impl Report {
    /// The command that makes the run again, as often as it was made. It names no interpreter: the path of one
    /// says more of a user's machine than of the run.
    pub fn command(&self) -> Option<Command> {
        let mut command = self.run.spec.command(CONFIG_FILE)?;
        if let Some(repeats) = &self.repeats {
            command.arguments.extend(["--repeat".to_owned(), repeats.verdicts.len().to_string()]);
        }
        Some(command)
    }
}
