//! Makes a report without content, for tests.

use super::{Ending, Hooks, Method, Power, Report, Run, Schema, Verdict};
use zprobe_model::spec::RunSpec;

/// The report on a clean run of `spec` without any measurements.
pub fn report(spec: RunSpec) -> Report {
    Report {
        schema: Schema::CURRENT,
        verdict: Verdict::Clean,
        run: Run {
            spec,
            versions: [("torch".to_owned(), "2.11.0".to_owned())].into(),
            optimizer_class: None,
            inner_optimizer: None,
            engine_facts: Default::default(),
            not_observed: Vec::new(),
            ending: Ending::Complete,
            command: None,
        },
        findings: Vec::new(),
        first_divergence: None,
        journey: Vec::new(),
        contributions: Vec::new(),
        contributions_left_out: 0,
        norms: Vec::new(),
        steps: Vec::new(),
        ranks: Vec::new(),
        buckets: Vec::new(),
        hooks: Hooks {
            observed: false,
            counts: Vec::new(),
            params: Vec::new(),
            firings: Vec::new(),
        },
        precision: Vec::new(),
        power: Power {
            method: Method::Coded,
            smallest_weight_deviation: None,
            condition: None,
            smallest_element_deviation: None,
            statement: String::new(),
        },
        tokens: Vec::new(),
        remarks: Vec::new(),
        not_exercised: Vec::new(),
        masked: 0,
        repeats: None,
        minimised: None,
    }
}
