//! ZP608: the settings of optimizers differ between ranks or from their configuration, or an optimizer does not start
//! at step 0.

use std::collections::{BTreeMap, BTreeSet};

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_model::spec::deepspeed;
use zprobe_model::trace::{OptimizerStepped, UnreadKeys};
use zprobe_report::words::by_rank;
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP608"),
    name: "settings-differ",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP606"]),
    doc: include_str!("../../docs/ZP608.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    if case.observed.spec.script().is_none() {
        return Vec::new();
    }
    let ways = [between_ranks, not_as_asked, not_at_the_beginning, misspelt];
    ways.iter().filter_map(|way| way(case, rule)).collect()
}

/// Returns the steps of optimizers, by (step, optimizer), each with its rank.
fn by_optimizer<'a>(
    case: &'a Case<'_>,
) -> BTreeMap<(usize, usize), Vec<(usize, &'a OptimizerStepped)>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (&(step, rank), steps) in &case.observed.updates.stepped {
        for it in steps {
            let of_rank: &mut Vec<(usize, &OptimizerStepped)> =
                all.entry((step, it.optimizer)).or_default();
            if of_rank.last().is_none_or(|(last, _)| *last != rank) {
                of_rank.push((rank, it));
            }
        }
    }
    all
}

/// Reports a setting or a step counter that differs between ranks.
fn between_ranks(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    by_optimizer(case).into_iter().find_map(|((step, _), of_ranks)| {
        let (_, first) = of_ranks.first()?;
        let is_like = |(_, it): &&(usize, &OptimizerStepped)| {
            it.name == first.name && it.groups.len() == first.groups.len()
        };
        let alike: Vec<_> = of_ranks.iter().filter(is_like).collect();
        if let Some(finding) = counters(rule, step, &alike) {
            return Some(Sighting::new(finding, Scope::step(step)));
        }
        let names = first
            .groups
            .iter()
            .enumerate()
            .flat_map(|(at, group)| group.keys().map(move |name| (at, name)));
        let (at, name) = names.clone().find(|(at, name)| {
            alike.iter().any(|(_, it)| it.groups[*at].get(*name) != first.groups[*at].get(*name))
        })?;
        let text =
            |values: Option<&Vec<f64>>| values.map_or("unset".to_owned(), |values| numbers(values));
        let message = format!("the setting {name} of {} is not the same on all ranks", first.name);
        let told = alike.iter().map(|(rank, it)| (*rank, text(it.groups[at].get(name))));
        let finding =
            Finding { evidence: by_rank(told), step: Some(step), ..rule.finding(message) };
        Some(Sighting::new(finding, Scope::step(step)))
    })
}

/// Reports step counters that differ between ranks before a step.
fn counters(rule: &Rule, step: usize, of_ranks: &[&(usize, &OptimizerStepped)]) -> Option<Finding> {
    // A tensor that some steps leave out has its own counter.
    let counted = || {
        let counters = of_ranks.iter().filter_map(|(rank, it)| Some((*rank, it.counter?)));
        counters.filter(|(_, (least, most))| least == most).map(|(rank, (_, most))| (rank, most))
    };
    let counts: BTreeSet<u64> = counted().map(|(_, count)| count.to_bits()).collect();
    let (_, first) = of_ranks.first()?;
    (counts.len() > 1).then(|| {
        let message = format!("the step counter of {} is not the same on all ranks", first.name);
        let told = counted().map(|(rank, count)| (rank, format!("{count} steps")));
        Finding { evidence: by_rank(told), step: Some(step), ..rule.finding(message) }
    })
}

/// Reports a setting that a trainer's configuration requests and the optimizer does not have.
fn not_as_asked(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let steps = || case.observed.updates.stepped.values().flatten();
    // A learning rate that a scheduler sets, or that changes from step to step, is no setting.
    let is_scheduled = |it: &OptimizerStepped| {
        let rates = |it: &OptimizerStepped| -> Vec<Option<Vec<f64>>> {
            it.groups.iter().map(|group| group.get("lr").cloned()).collect()
        };
        let mut same = steps().filter(|other| other.optimizer == it.optimizer);
        it.groups.iter().any(|group| group.contains_key("initial_lr"))
            || same.any(|other| rates(other) != rates(it))
    };
    steps().find_map(|it| {
        let (name, asked) = it.asked.iter().find(|(name, asked)| {
            let is_set = *name != "lr" || !is_scheduled(it);
            is_set
                && it.groups.iter().all(|group| group.get(*name).is_some_and(|have| have != *asked))
        })?;
        let have = it.groups.first()?.get(name)?;
        let message = format!(
            "{} has {name} {}, but {} was requested in its configuration",
            it.name,
            numbers(have),
            numbers(asked),
        );
        Some(Sighting::new(rule.finding(message), Scope::default()))
    })
}

/// Reports an optimizer whose step counter is above 0 before its first step, although its averages are 0.
fn not_at_the_beginning(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let mut first = case.observed.updates.stepped.iter().filter(|((step, _), _)| *step == 0);
    let ((_, rank), it) = first.find_map(|(at, steps)| {
        let is_first = |place: usize| {
            steps[..place].iter().all(|other| other.optimizer != steps[place].optimizer)
        };
        let has_counted =
            |it: &OptimizerStepped| it.fresh && it.counter.is_some_and(|(_, most)| most > 0.0);
        let place = (0..steps.len()).find(|&it| is_first(it) && has_counted(steps[it]))?;
        let it = &steps[place];
        Some((*at, *it))
    })?;
    let counted = it.counter?.1;
    let message = format!(
        "the step counter of {} is {counted} before its first step, but its averages are 0: the bias correction is \
         that of another step",
        it.name,
    );
    let holders = Extent::of([rank], case.observed.spec.world_size);
    Some(Sighting::new(rule.finding(message), Scope { holders, ..Scope::step(0) }))
}

/// Reports a key of a configuration that no code reads and that is similar to a key that is read.
fn misspelt(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let all = || {
        let remarks = case.observed.script.remarks.iter();
        remarks.flat_map(|(rank, it)| it.unread.iter().map(move |unread| (*rank, unread)))
    };
    let (unread, key, meant) = all().find_map(|(_, unread)| {
        let (key, meant) = slip(unread)?;
        Some((unread, key, meant))
    })?;
    let place = match &unread.optimizer {
        Some(name) => format!("a group of {name}"),
        None => "DeepSpeed's configuration".to_owned(),
    };
    let ranks = all().filter(|(_, it)| it.keys.contains(key)).map(|(rank, _)| rank);
    let holders = Extent::of(ranks, case.observed.spec.world_size);
    let message = format!("nothing reads {key} in {place}; did you mean {meant}?");
    Some(Sighting::new(rule.finding(message), Scope { holders, ..Scope::default() }))
}

/// Returns the first misspelt key, and the key that was meant.
fn slip(unread: &UnreadKeys) -> Option<(&String, &str)> {
    let read: Vec<&str> = match unread.optimizer {
        Some(_) => unread.read.iter().map(String::as_str).collect(),
        None => deepspeed::top_level().collect(),
    };
    let meant = |key: &str| read.iter().copied().find(|it| is_slip(key, it));
    // DeepSpeed reads some of its keys by name, without a constant that shows it.
    let mut strange = unread.keys.iter().filter(|key| !read.contains(&key.as_str()));
    strange.find_map(|key| Some((key, meant(key)?)))
}

/// True if a key is probably meant as another one: by a typo (wrong, missing or swapped letters), by abbreviated
/// parts (`grad_clip` for `gradient_clipping`), or by the name that other libraries use. Keys with digits are never
/// taken for misspelt ones.
pub(crate) fn is_slip(key: &str, meant: &str) -> bool {
    const SHORTEST: usize = 5;
    const LONG: usize = 8;
    const OTHER_NAMES: [(&str, &str); 3] =
        [("learning_rate", "lr"), ("wd", "weight_decay"), ("epsilon", "eps")];
    let is_numbered = key.contains(|letter: char| letter.is_ascii_digit());
    let length = key.len().min(meant.len());
    let letters = if length < LONG { 1 } else { 2 };
    let is_typo = length >= SHORTEST && strsim::damerau_levenshtein(key, meant) <= letters;
    let is_other_name = OTHER_NAMES.contains(&(key, meant));
    !is_numbered && (is_typo || abbreviates(key, meant) || is_other_name)
}

/// True if each of several parts of a name is the beginning of the same part of another name.
fn abbreviates(short: &str, long: &str) -> bool {
    const SHORTEST: usize = 3;
    let parts = || short.split('_').zip(long.split('_'));
    let begins = |(short, long): (&str, &str)| short.len() >= SHORTEST && long.starts_with(short);
    let count = short.split('_').count();
    count > 1 && long.split('_').count() == count && parts().all(begins)
}

fn numbers(values: &[f64]) -> String {
    let values: Vec<String> = values.iter().map(|value| value.to_string()).collect();
    if let [only] = &values[..] { only.clone() } else { format!("({})", values.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_schedules_are_no_slips() {
        assert!(is_slip("weight_deacy", "weight_decay"));
        assert!(is_slip("grad_clip", "gradient_clipping"));
        assert!(is_slip("learning_rate", "lr") && is_slip("wd", "weight_decay"));
        assert!(is_slip("epsilon", "eps"));
        for (key, meant) in [
            ("max_momentum", "momentum"),
            ("weight_decay_mult", "weight_decay"),
            ("beta1", "betas"),
            ("initial_lr", "lr"),
            ("lr_scale", "lr"),
            ("lora_rank", "lr"),
            ("bytes", "betas"),
            ("tokenizer", "token"),
            ("eps2", "eps"),
            ("name", "fused"),
        ] {
            assert!(!is_slip(key, meant), "{key}");
        }
    }
}
