//! Groups of configurations that have the same value, such as the same outcome.

use super::{Configuration, labels};

/// A value, such as an outcome, and all configurations that have this value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationGroup<'a, T> {
    /// The value of the configurations.
    pub what: T,
    /// The configurations with this value, by class.
    pub classes: Vec<ConfigurationClass<'a>>,
}

/// Configurations of one value whose bases (stage and dtypes) have the same additional choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationClass<'a> {
    /// The labels of the bases.
    pub bases: Vec<String>,
    /// The labels of the smallest sets of additional choices that give the value; empty if a base gives the value by
    /// itself.
    pub with: Vec<String>,
    /// All configurations of the class.
    pub members: Vec<&'a Configuration>,
}

impl<'a> ConfigurationClass<'a> {
    /// The configuration with the fewest arguments.
    pub fn smallest(&self) -> Option<&'a Configuration> {
        self.members.iter().min_by_key(|it| it.arguments().len()).copied()
    }
}

/// Groups configurations by equal values, in the order in which the values first occur.
pub fn group<'a, T: PartialEq>(
    rows: impl IntoIterator<Item = (&'a Configuration, T)>,
) -> Vec<ConfigurationGroup<'a, T>> {
    let mut groups: Vec<(T, Vec<&Configuration>)> = Vec::new();
    for (configuration, what) in rows {
        match groups.iter_mut().find(|(known, _)| *known == what) {
            Some((_, members)) => members.push(configuration),
            None => groups.push((what, vec![configuration])),
        }
    }
    let with_classes = |(what, members): (T, Vec<&'a Configuration>)| ConfigurationGroup {
        what,
        classes: classes(&members),
    };
    groups.into_iter().map(with_classes).collect()
}

/// Sorts configurations by base (stage and dtypes), and joins bases that have the same additional choices.
fn classes<'a>(members: &[&'a Configuration]) -> Vec<ConfigurationClass<'a>> {
    let mut bases: Vec<(String, Vec<&Configuration>)> = Vec::new();
    for member in members {
        let label = member.base_label();
        match bases.iter_mut().find(|(known, _)| *known == label) {
            Some((_, same)) => same.push(member),
            None => bases.push((label, vec![member])),
        }
    }
    let mut classes: Vec<ConfigurationClass<'a>> = Vec::new();
    for (base, members) in bases {
        let with = fewest(&members);
        match classes.iter_mut().find(|class| class.with == with) {
            Some(class) => {
                class.bases.push(base);
                class.members.extend(members);
            }
            None => classes.push(ConfigurationClass { bases: vec![base], with, members }),
        }
    }
    classes
}

/// The labels of the smallest sets of additional choices: the sets that contain no other set. Empty if a configuration
/// has no additional choice.
fn fewest(members: &[&Configuration]) -> Vec<String> {
    let part_of = |less: &Configuration, more: &Configuration| {
        less.extra.len() < more.extra.len()
            && less.extra.iter().all(|choice| more.extra.contains(choice))
    };
    members
        .iter()
        .filter(|member| !members.iter().any(|other| part_of(other, member)))
        .filter(|member| !member.extra.is_empty())
        .map(|member| labels(&member.extra, " × "))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{AxisChoice, DesignPart};
    use super::*;
    use zprobe_model::spec::Engine;

    /// Makes a configuration from a label such as `stage 1, tied × ga 3`: the base, a comma, the additional choices.
    fn configuration(label: &str) -> Configuration {
        let choices = |text: &str| -> Vec<AxisChoice> {
            let labels = text.split(" × ").filter(|label| !label.is_empty());
            labels.map(|label| AxisChoice::new(label, label)).collect()
        };
        let (base, extra) = label.split_once(", ").unwrap_or((label, ""));
        let engine = Engine::DeepSpeed;
        Configuration { engine, part: DesignPart::Base, base: choices(base), extra: choices(extra) }
    }

    fn class_texts(labels: &[&str]) -> Vec<(String, String)> {
        let all: Vec<_> = labels.iter().map(|label| configuration(label)).collect();
        let groups = group(all.iter().map(|it| (it, ())));
        let classes = groups.iter().flat_map(|group| &group.classes);
        classes.map(|class| (class.bases.join("; "), class.with.join("; "))).collect()
    }

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(left, right)| ((*left).to_owned(), (*right).to_owned())).collect()
    }

    #[test]
    fn a_base_stands_for_everything_that_is_built_on_it() {
        assert_eq!(class_texts(&["s1, tied", "s1", "s1, ga 1 × tied"]), owned(&[("s1", "")]));
    }

    #[test]
    fn an_addition_stands_for_everything_that_contains_it() {
        let with =
            class_texts(&["s1, ga 1 × tied", "s1, tied", "s1, tied × ga 3", "s1, frozen × ga 3"]);
        assert_eq!(with, owned(&[("s1", "tied; frozen × ga 3")]));
    }

    #[test]
    fn bases_with_the_same_additions_are_one_class() {
        let with = class_texts(&["s1, tied", "s2, ga 1", "s3, tied"]);
        assert_eq!(with, owned(&[("s1; s3", "tied"), ("s2", "ga 1")]));
    }

    #[test]
    fn different_outcomes_are_different_groups() {
        let (one, two) = (configuration("s1"), configuration("s2"));
        let groups = group([(&one, "ZP104"), (&two, "clean"), (&one, "ZP104")]);
        let whats: Vec<_> = groups.iter().map(|group| group.what).collect();
        assert_eq!(whats, ["ZP104", "clean"]);
    }
}
