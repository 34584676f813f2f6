//! The place in the training at which a rank was when it wrote its last note.

use super::notes::{Line, Note};
use crate::trace::{Event, Phase};

/// Index of the note after which a rank went on to a microbatch whose backward it never began, with
/// the beginning of that microbatch as an event; none where the rank was in a backward or a step, or
/// behind the last of `microbatches`, as far as their number is known.
pub fn unbegun(lines: &[Line], microbatches: Option<usize>) -> Option<(usize, Event)> {
    let mut last = None;
    for (index, line) in lines.iter().enumerate() {
        match &line.note {
            Note::Backward(backward) => {
                last = Some((index, backward.step, backward.microbatch + 1));
            }
            Note::Stepped { step, is_last: true } => last = Some((index, step + 1, 0)),
            Note::GivenUp { step, .. } => last = Some((index, *step, 0)),
            Note::Event(event) if matches!(**event, Event::PhaseEntered { .. }) => last = None,
            _ => {}
        }
    }
    let (index, step, microbatch) = last?;
    let is_known = microbatches.is_none_or(|microbatches| microbatch < microbatches);
    is_known.then_some((index, Event::PhaseEntered { step, microbatch, phase: Phase::Forward }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::notes::Backward;
    use super::*;

    fn entered(phase: Phase, step: usize, microbatch: usize) -> Note {
        Note::Event(Box::new(Event::PhaseEntered { step, microbatch, phase }))
    }

    fn backward(step: usize, microbatch: usize) -> Note {
        let (reached, fired) = (Vec::new(), BTreeMap::new());
        Note::Backward(Backward { step, microbatch, nodes: 1, reached, fired })
    }

    /// Step and microbatch of what the rank with these notes never began.
    fn of(notes: Vec<Note>, microbatches: Option<usize>) -> Option<(usize, usize)> {
        let lines: Vec<Line> = notes.into_iter().map(|note| Line { t_ns: 0, note }).collect();
        match unbegun(&lines, microbatches)?.1 {
            Event::PhaseEntered { step, microbatch, phase: Phase::Forward } => {
                Some((step, microbatch))
            }
            event => panic!("{event:?}"),
        }
    }

    #[test]
    fn a_rank_goes_on_behind_a_backward_or_a_step() {
        let begun = || entered(Phase::Backward, 1, 0);
        assert_eq!(of(vec![begun()], Some(2)), None);
        assert_eq!(of(vec![begun(), backward(1, 0)], Some(2)), Some((1, 1)));
        assert_eq!(of(vec![begun(), backward(1, 0)], Some(1)), None);
        assert_eq!(of(vec![begun(), backward(1, 0)], None), Some((1, 1)));
        let stepping = || entered(Phase::OptimizerStep, 1, 1);
        assert_eq!(of(vec![backward(1, 1), stepping()], Some(2)), None);
        let stepped = |is_last| Note::Stepped { step: 1, is_last };
        assert_eq!(of(vec![backward(1, 1), stepping(), stepped(true)], Some(2)), Some((2, 0)));
        assert_eq!(of(vec![backward(1, 1), stepping(), stepped(false)], Some(2)), None);
    }
}
