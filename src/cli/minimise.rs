//! `zprobe run --minimise`: searches for the smallest configuration that still shows a finding.

use zprobe_diagnose::rules;

/// The flags of `zprobe run` for minimisation.
#[derive(clap::Args)]
pub struct MinimiseFlags {
    /// Look for the smallest configuration that still shows this finding [default: the first one]
    #[arg(
        long,
        alias = "minimize",
        value_name = "CODE",
        num_args = 0..=1,
        default_missing_value = "",
        value_parser = rule,
        help_heading = "Run"
    )]
    pub minimise: Option<String>,

    /// Maximum number of runs that --minimise makes
    #[arg(
        long,
        alias = "minimize-runs",
        value_name = "N",
        default_value_t = 100,
        help_heading = "Run"
    )]
    pub minimise_runs: usize,
}

/// Accepts the code of a rule, or the empty string for the first finding.
fn rule(code: &str) -> Result<String, String> {
    match rules::find(code) {
        None if !code.is_empty() => {
            Err("there is no such rule; `zprobe list rules` lists them".to_owned())
        }
        _ => Ok(code.to_owned()),
    }
}
