//! Scope of a finding: what it may explain, and what may explain it.

use std::collections::BTreeSet;

/// Members of one dimension of a run: some of them, all of them, or an unknown part.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Extent<T> {
    /// All of them, or an unknown part.
    #[default]
    All,
    /// Exactly the listed members.
    Only(BTreeSet<T>),
}

impl<T: Clone + Ord> Extent<T> {
    /// An extent of the given members; the whole dimension if they are all `of` its members.
    pub fn of(members: impl IntoIterator<Item = T>, of: usize) -> Self {
        let members: BTreeSet<T> = members.into_iter().collect();
        if members.len() == of { Self::All } else { Self::Only(members) }
    }

    /// The member, if there is exactly one.
    pub fn only(&self) -> Option<&T> {
        match self {
            Self::Only(members) if members.len() == 1 => members.first(),
            _ => None,
        }
    }

    /// The first member; none for all.
    pub fn first(&self) -> Option<&T> {
        match self {
            Self::Only(members) => members.first(),
            Self::All => None,
        }
    }

    /// The members; empty for all.
    pub fn members(&self) -> impl Iterator<Item = &T> {
        match self {
            Self::Only(members) => Some(members),
            Self::All => None,
        }
        .into_iter()
        .flatten()
    }

    /// True if some member may be in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Only(one), Self::Only(other)) => !one.is_disjoint(other),
            _ => true,
        }
    }

    /// Takes in the members of another extent.
    pub fn extend(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Only(members), Self::Only(others)) => members.extend(others),
            _ => *self = Self::All,
        }
    }
}

impl<T: Ord> FromIterator<T> for Extent<T> {
    fn from_iter<I: IntoIterator<Item = T>>(members: I) -> Self {
        Self::Only(members.into_iter().collect())
    }
}

/// Steps, gradients, parameters and ranks that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Scope {
    /// Optimizer steps.
    pub steps: Extent<usize>,
    /// Gradients, as (rank, microbatch) of the backward that made them.
    pub gradients: Extent<(usize, usize)>,
    /// Parameters, by their place in the flat order.
    pub params: Extent<usize>,
    /// Runs of elements, as a parameter with the first element and the one after the last, where the finding is
    /// about some elements only.
    pub elements: Extent<(usize, [usize; 2])>,
    /// Ranks whose buffers show it, which may be others than those that made the gradients.
    pub holders: Extent<usize>,
}

impl Scope {
    /// The scope of one step, and everything in it.
    pub fn step(step: usize) -> Self {
        Self { steps: [step].into_iter().collect(), ..Self::default() }
    }

    /// The only microbatch that the gradients are of.
    pub fn only_microbatch(&self) -> Option<usize> {
        let mut microbatches = self.gradients.members().map(|&(_, microbatch)| microbatch);
        let first = microbatches.next()?;
        microbatches.all(|other| other == first).then_some(first)
    }

    /// True if what happened in this scope may be the reason for what is seen in `effect`: in the
    /// same step, or, where the effect is about something that steps hand on, in the same or an
    /// earlier step.
    pub fn may_explain(&self, effect: &Self, is_handed_on: bool) -> bool {
        let in_time = match (self.steps.first(), effect.steps.first()) {
            (Some(cause), Some(effect)) if is_handed_on => cause <= effect,
            _ => self.steps.overlaps(&effect.steps),
        };
        in_time
            && self.gradients.overlaps(&effect.gradients)
            && self.params.overlaps(&effect.params)
            && self.holders.overlaps(&effect.holders)
    }

    /// Takes in another scope.
    pub fn extend(&mut self, other: Self) {
        self.steps.extend(other.steps);
        self.gradients.extend(other.gradients);
        self.params.extend(other.params);
        self.elements.extend(other.elements);
        self.holders.extend(other.holders);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_params(steps: &[usize], params: &[usize]) -> Scope {
        Scope {
            steps: steps.iter().copied().collect(),
            params: params.iter().copied().collect(),
            ..Scope::default()
        }
    }

    #[test]
    fn a_cause_has_a_step_and_a_parameter_in_common_with_what_it_explains() {
        let cause = of_params(&[1], &[0, 1]);
        assert!(cause.may_explain(&of_params(&[1, 2], &[1]), false));
        assert!(!cause.may_explain(&of_params(&[1], &[2]), false));
        assert!(!cause.may_explain(&of_params(&[2], &[0]), false));
        assert!(cause.may_explain(&Scope::default(), false), "what is not known may be the same");
    }

    #[test]
    fn what_steps_hand_on_may_be_explained_by_an_earlier_step_and_never_by_a_later_one() {
        let cause = of_params(&[1], &[0]);
        assert!(cause.may_explain(&of_params(&[2], &[0]), true));
        assert!(!cause.may_explain(&of_params(&[0, 1], &[0]), true));
    }

    #[test]
    fn all_ranks_are_no_rank_in_particular() {
        assert_eq!(Extent::of([0, 1], 2), Extent::All);
        assert_eq!(Extent::of([1], 2).only(), Some(&1));
    }

    #[test]
    fn the_only_microbatch_is_that_of_all_gradients() {
        let of = |gradients: &[(usize, usize)]| Scope {
            gradients: gradients.iter().copied().collect(),
            ..Scope::default()
        };
        assert_eq!(of(&[(0, 3), (1, 3)]).only_microbatch(), Some(3));
        assert_eq!(of(&[(0, 3), (1, 2)]).only_microbatch(), None);
        assert_eq!(Scope::default().only_microbatch(), None);
    }
}
