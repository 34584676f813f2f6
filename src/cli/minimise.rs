//! `zprobe run --minimise`: the smallest configuration that still shows a finding.

use zprobe_diagnose::rules;

/// Flags of the search.
#[derive(clap::Args)]
pub struct Flags {
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

    /// Most runs that --minimise may make
    #[arg(
        long,
        alias = "minimize-runs",
        value_name = "N",
        default_value_t = 100,
        help_heading = "Run"
    )]
    pub minimise_runs: usize,
}

/// The code of a rule, or nothing.
fn rule(code: &str) -> Result<String, String> {
    match rules::find(code) {
        None if !code.is_empty() => Err("there is no such rule; see zprobe list rules".to_owned()),
        _ => Ok(code.to_owned()),
    }
}
