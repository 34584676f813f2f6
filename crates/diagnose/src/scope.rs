//! The scope of a finding: the steps, gradients, parameters and ranks that it is about. The scope decides which other
//! findings it may explain.

use std::collections::BTreeSet;

/// The members of one dimension of a run, such as its steps or its ranks, that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Extent<T> {
    /// All members of the dimension, or an unknown part of them.
    #[default]
    All,
    /// Exactly the listed members.
    Only(BTreeSet<T>),
}

impl<T: Clone + Ord> Extent<T> {
    /// Creates an extent of the given members; it is `All` if there are `of` different members.
    pub fn of(members: impl IntoIterator<Item = T>, of: usize) -> Self {
        let members: BTreeSet<T> = members.into_iter().collect();
        if members.len() == of { Self::All } else { Self::Only(members) }
    }

    /// Returns the member, if there is exactly one.
    pub fn only(&self) -> Option<&T> {
        match self {
            Self::Only(members) if members.len() == 1 => members.first(),
            _ => None,
        }
    }

    /// Returns the first listed member; `None` for `All`.
    pub fn first(&self) -> Option<&T> {
        match self {
            Self::Only(members) => members.first(),
            Self::All => None,
        }
    }

    /// Iterates over the listed members; empty for `All`.
    pub fn members(&self) -> impl Iterator<Item = &T> {
        match self {
            Self::Only(members) => Some(members),
            Self::All => None,
        }
        .into_iter()
        .flatten()
    }

    /// True if some member may be in both extents.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Only(one), Self::Only(other)) => !one.is_disjoint(other),
            _ => true,
        }
    }

    /// Adds the members of another extent.
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

/// The steps, gradients, parameters and ranks that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Scope {
    /// The indices of optimizer steps.
    pub steps: Extent<usize>,
    /// The gradients, as (rank, microbatch) of the backward that produced them.
    pub gradients: Extent<(usize, usize)>,
    /// The indices of parameters in the flat order.
    pub params: Extent<usize>,
    /// The runs of elements, as (parameter, [first, end]), for a finding that is about a part of the elements only.
    pub elements: Extent<(usize, [usize; 2])>,
    /// The ranks whose buffers show the finding; they may differ from the ranks that produced the gradients.
    pub holders: Extent<usize>,
}

impl Scope {
    /// Creates a scope that covers all of one step.
    pub fn step(step: usize) -> Self {
        Self { steps: [step].into_iter().collect(), ..Self::default() }
    }

    /// Returns the microbatch, if all gradients are of the same one.
    pub fn only_microbatch(&self) -> Option<usize> {
        let mut microbatches = self.gradients.members().map(|&(_, microbatch)| microbatch);
        let first = microbatches.next()?;
        microbatches.all(|other| other == first).then_some(first)
    }

    /// True if an event in this scope may have caused the finding with scope `effect`. The cause must lie in the same
    /// step; if steps hand on the affected state, it may also lie in an earlier step.
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

    /// Adds another scope to this one.
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
