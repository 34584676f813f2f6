//! The search for the first new release: which releases to try next, and when the answer is known.
//!
//! The releases are in order, the old end first. Releases that cannot be tested are skipped, and the answer then
//! names all candidates for the first new release. The search works like `git bisect`, but makes several trials at a
//! time.

use std::ops::RangeInclusive;

/// The result of the trial of a release or commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialMark {
    /// The release or commit behaves like the old end.
    Old,
    /// The release or commit behaves like the new end.
    New,
    /// The release or commit could not be tested.
    Skipped,
}

/// The state of a search: the marks of the releases that were tried.
#[derive(Clone, Debug)]
pub struct ReleaseSearch {
    marks: Vec<Option<TrialMark>>,
}

impl ReleaseSearch {
    /// A search among this number of releases; no release has been tried.
    pub fn new(releases: usize) -> Self {
        Self { marks: vec![None; releases] }
    }

    /// The approximate number of trials of a whole search, with `most` trials at a time.
    pub fn trials(releases: usize, most: usize) -> usize {
        let mut search = Self::new(releases);
        search.mark(0, TrialMark::Old);
        search.mark(releases - 1, TrialMark::New);
        2 + search.left(most)
    }

    /// Notes the result of a trial.
    pub fn mark(&mut self, release: usize, mark: TrialMark) {
        self.marks[release] = Some(mark);
    }

    /// The releases to try next, at most `most`, spread evenly over the untested candidates; empty if the answer is
    /// known. The two ends come first.
    pub fn next(&self, most: usize) -> Vec<usize> {
        let last = self.marks.len() - 1;
        let ends: Vec<usize> =
            [0, last].into_iter().filter(|&end| self.marks[end].is_none()).collect();
        if !ends.is_empty() {
            return ends;
        }
        let Some(answer) = self.among() else { return Vec::new() };
        let open: Vec<usize> = answer.filter(|&it| self.marks[it].is_none()).collect();
        let count = most.min(open.len());
        (1..=count).map(|nth| open[nth * open.len() / (count + 1)]).collect()
    }

    /// The approximate number of trials that are still to come, with `most` trials at a time.
    pub fn left(&self, most: usize) -> usize {
        let open =
            self.among().into_iter().flatten().filter(|&it| self.marks[it].is_none()).count();
        let (mut left, mut trials) = (open, 0);
        while left > 0 {
            let round = most.min(left);
            trials += round;
            left = (left - round).div_ceil(round + 1);
        }
        trials
    }

    /// The candidates for the first new release: the releases after the last old one, up to a new one. `None` if an
    /// end does not have the mark that it must have.
    pub fn among(&self) -> Option<RangeInclusive<usize>> {
        let new = self.marks.iter().position(|mark| *mark == Some(TrialMark::New))?;
        let old = self.marks[..new].iter().rposition(|mark| *mark == Some(TrialMark::Old))?;
        Some(old + 1..=new)
    }

    /// The releases that behave like the old end although they come after a new release.
    pub fn old_again(&self) -> Vec<usize> {
        let new = self.marks.iter().position(|mark| *mark == Some(TrialMark::New));
        let behind = new.unwrap_or(self.marks.len())..self.marks.len();
        behind.filter(|&it| self.marks[it] == Some(TrialMark::Old)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches among releases whose marks are `truth`; returns the answer and the number of trials.
    fn search(truth: &[TrialMark], most: usize) -> (Option<RangeInclusive<usize>>, usize) {
        let mut search = ReleaseSearch::new(truth.len());
        let mut trials = 0;
        loop {
            let next = search.next(most);
            if next.is_empty() {
                return (search.among(), trials);
            }
            for release in next {
                assert!(search.marks[release].is_none(), "tried twice: {release}");
                search.mark(release, truth[release]);
                trials += 1;
            }
        }
    }

    fn releases(count: usize, first_new: usize) -> Vec<TrialMark> {
        (0..count).map(|at| if at < first_new { TrialMark::Old } else { TrialMark::New }).collect()
    }

    #[test]
    fn the_first_new_release_is_found_with_few_trials() {
        for count in 2..40 {
            for first_new in 1..count {
                for most in 1..4 {
                    let (answer, trials) = search(&releases(count, first_new), most);
                    assert_eq!(answer, Some(first_new..=first_new), "{count}, {first_new}");
                    let halvings = usize::BITS - (count - 1).leading_zeros();
                    assert!(trials <= 2 + most * halvings as usize, "{count}: {trials}");
                }
            }
        }
    }

    #[test]
    fn the_number_of_trials_to_come_is_never_too_small_where_all_can_be_tested() {
        for count in 2..40 {
            for first_new in 1..count {
                for most in 1..4 {
                    let mut search = ReleaseSearch::new(count);
                    let truth = releases(count, first_new);
                    for end in search.next(most) {
                        search.mark(end, truth[end]);
                    }
                    let (estimate, mut trials) = (search.left(most), 0);
                    loop {
                        let next = search.next(most);
                        if next.is_empty() {
                            break;
                        }
                        trials += next.len();
                        next.into_iter().for_each(|it| search.mark(it, truth[it]));
                    }
                    assert!(
                        trials <= estimate,
                        "{count}, {first_new}, {most}: {trials}, not {estimate}"
                    );
                    assert!(
                        estimate <= trials + most,
                        "{count}, {first_new}, {most}: {trials}, not {estimate}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_tested_is_named_where_it_matters_and_only_there() {
        let mut truth = releases(12, 7);
        truth[6] = TrialMark::Skipped;
        truth[7] = TrialMark::Skipped;
        truth[2] = TrialMark::Skipped;
        for most in 1..4 {
            assert_eq!(search(&truth, most).0, Some(6..=8));
        }
        // None of the releases between the ends can be tested.
        let mut truth = vec![TrialMark::Skipped; 5];
        truth[0] = TrialMark::Old;
        truth[4] = TrialMark::New;
        assert_eq!(search(&truth, 2), (Some(1..=4), 5));
    }

    #[test]
    fn an_end_that_is_not_what_it_has_to_be_ends_the_search() {
        for ends in [
            [TrialMark::New, TrialMark::New],
            [TrialMark::Old, TrialMark::Old],
            [TrialMark::Skipped, TrialMark::New],
        ] {
            let mut truth = releases(9, 4);
            (truth[0], truth[8]) = (ends[0], ends[1]);
            let answer = search(&truth, 1);
            assert!(answer.1 <= 2 || answer.0.is_none(), "{ends:?}: {answer:?}");
        }
    }

    #[test]
    fn a_release_that_is_old_again_is_known() {
        let mut search = ReleaseSearch::new(4);
        for (at, mark) in
            [TrialMark::Old, TrialMark::New, TrialMark::Old, TrialMark::New].into_iter().enumerate()
        {
            search.mark(at, mark);
        }
        assert_eq!((search.among(), search.old_again()), (Some(1..=1), vec![2]));
    }
}
