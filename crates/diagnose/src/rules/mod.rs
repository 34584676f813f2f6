//! The rules: one file each, except for the rules about weights, which share one file.
//!
//! A rule looks at a [`Case`] and reports everything that it sees, whether or not another finding explains it.
//! [`crate::causes`] sorts out the explanations.

mod zp108_unequal_microbatches;
mod zp109_tokens_unequal;
mod zp110_windows_differ;
mod zp111_loss_scaled;
mod zp112_term_scaled;
mod zp113_share_differs;
mod zp114_transformed_early;
mod zp115_padding_counts;
mod zp116_same_samples;
mod zp1xx_weights;
mod zp201_dead_hooks;
mod zp202_hook_fired_twice;
mod zp203_block_unreached;
mod zp301_empty_bucket;
mod zp302_bucket_misfilled;
mod zp401_misplaced;
mod zp402_slice_displaced;
mod zp501_not_finite;
mod zp502_overflow_not_agreed;
mod zp503_spurious_overflow;
mod zp504_wrong_dtype;
mod zp505_loss_scale_wrong;
mod zp601_replicas_disagree;
mod zp602_stale_parameters;
mod zp603_update_differs;
mod zp604_gradient_norm_wrong;
mod zp605_gradient_changed;
mod zp606_steps_differ;
mod zp607_clipping_differs;
mod zp608_settings_differ;
mod zp609_weights_untied;
mod zp610_update_swallowed;
mod zp611_state_not_restored;
mod zp701_offload_copy;
mod zp801_collective_mismatch;
mod zp802_collectives_differ;
mod zp901_rank_died;
mod zp902_rank_hung;
mod zp903_protocol_broken;
mod zp904_digests_disagree;
mod zp905_repeats_differ;

pub(crate) use zp203_block_unreached::unused as unused_blocks;
pub(crate) use zp608_settings_differ::is_slip;

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use zprobe_report::RuleCode;

/// All rules, ordered by code.
pub const RULES: &[Rule] = &{
    let [zp101, zp102, zp103, zp104, zp105, zp106, zp107] = zp1xx_weights::RULES;
    [
        zp101,
        zp102,
        zp103,
        zp104,
        zp105,
        zp106,
        zp107,
        zp108_unequal_microbatches::RULE,
        zp109_tokens_unequal::RULE,
        zp110_windows_differ::RULE,
        zp111_loss_scaled::RULE,
        zp112_term_scaled::RULE,
        zp113_share_differs::RULE,
        zp114_transformed_early::RULE,
        zp115_padding_counts::RULE,
        zp116_same_samples::RULE,
        zp201_dead_hooks::RULE,
        zp202_hook_fired_twice::RULE,
        zp203_block_unreached::RULE,
        zp301_empty_bucket::RULE,
        zp302_bucket_misfilled::RULE,
        zp401_misplaced::RULE,
        zp402_slice_displaced::RULE,
        zp501_not_finite::RULE,
        zp502_overflow_not_agreed::RULE,
        zp503_spurious_overflow::RULE,
        zp504_wrong_dtype::RULE,
        zp505_loss_scale_wrong::RULE,
        zp601_replicas_disagree::RULE,
        zp602_stale_parameters::RULE,
        zp603_update_differs::RULE,
        zp604_gradient_norm_wrong::RULE,
        zp605_gradient_changed::RULE,
        zp606_steps_differ::RULE,
        zp607_clipping_differs::RULE,
        zp608_settings_differ::RULE,
        zp609_weights_untied::RULE,
        zp610_update_swallowed::RULE,
        zp611_state_not_restored::RULE,
        zp701_offload_copy::RULE,
        zp801_collective_mismatch::RULE,
        zp802_collectives_differ::RULE,
        zp901_rank_died::RULE,
        zp902_rank_hung::RULE,
        zp903_protocol_broken::RULE,
        zp904_digests_disagree::RULE,
        zp905_repeats_differ::RULE,
    ]
};

/// The rules for findings about a script that compare no parameters of different ranks.
const WITHOUT_PARAMETERS: [&str; 7] =
    ["ZP110", "ZP111", "ZP112", "ZP113", "ZP115", "ZP606", "ZP608"];

/// Returns the sightings of all rules, ordered by code. If the ranks of a script have different parameters, the rules
/// that compare parameters by their index are left out.
pub fn check_all(case: &Case<'_>) -> Vec<Sighting> {
    let observed = &case.observed;
    let differ = observed.spec.script().is_some() && observed.model.other_rank().is_some();
    let is_possible =
        |rule: &&Rule| !differ || rule.crash || WITHOUT_PARAMETERS.contains(&&*rule.code);
    let rules = RULES.iter().filter(is_possible);
    rules.flat_map(|rule| (rule.check)(case, rule)).collect()
}

/// Returns the rule with this code; upper and lower case count as equal.
pub fn find(code: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.code.eq_ignore_ascii_case(code))
}

/// True if a finding of this rule is about several repeats of a run.
pub fn is_about_repeats(code: RuleCode) -> bool {
    code == zp905_repeats_differ::RULE.code
}

/// True if a finding of this rule means that the engine crashed or hung.
pub fn is_crash(code: RuleCode) -> bool {
    find(&code).is_some_and(|rule| rule.crash)
}
