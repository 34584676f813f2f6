//! The contents of buffers and lists of digests, each of which a trace stores only once.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Event, Payload};
use crate::spec::Dtype;

/// The contents that a trace has stored so far, identified by digest, dtype and number of elements, and the first
/// list of digests that was gathered in each step.
#[derive(Debug, Default)]
pub struct Contents {
    by_name: HashMap<(String, Dtype, usize), Arc<str>>,
    gathered: HashMap<usize, Arc<Vec<String>>>,
}

impl Contents {
    /// Returns the event without the part that the trace already has: the content of a buffer, or the list of digests
    /// that another rank gathered in the same step. Returns `None` if the whole event is new, and stores its content
    /// then.
    pub fn shortened(&mut self, event: &Event) -> Option<Event> {
        match event {
            Event::Buffer { step, microbatch, point, layout, payload } => {
                (payload.has_content() && self.has(payload)).then(|| Event::Buffer {
                    step: *step,
                    microbatch: *microbatch,
                    point: *point,
                    layout: *layout,
                    payload: payload.without_content(),
                })
            }
            Event::DigestsGathered { step, digests } => {
                let first = self.gathered.entry(*step).or_default();
                if first == digests {
                    return Some(Event::DigestsGathered { step: *step, digests: Arc::default() });
                }
                if first.is_empty() {
                    *first = Arc::clone(digests);
                }
                None
            }
            _ => None,
        }
    }

    /// Returns true if the content of a payload is already stored. If not, and if no content with its digest, dtype
    /// and size is stored, the content is added.
    ///
    /// Different content with the same digest, dtype and size does not count as the same. Only a wrong digest leads
    /// to such content.
    pub fn has(&mut self, payload: &Payload) -> bool {
        match self.by_name.get(&name(payload)) {
            Some(known) => *known == payload.data,
            None => {
                if !payload.data.is_empty() {
                    self.by_name.insert(name(payload), Arc::clone(&payload.data));
                }
                false
            }
        }
    }

    /// Restores the parts that the trace stores only once: a buffer without content gets the earlier content with its
    /// digest, dtype and size, and an empty list of digests becomes the first list of the step.
    pub fn complete(&mut self, event: &mut Event) {
        match event {
            Event::Buffer { payload, .. } if payload.has_content() => {
                self.has(payload);
            }
            Event::Buffer { payload, .. } => {
                if let Some(data) = self.by_name.get(&name(payload)) {
                    payload.data = Arc::clone(data);
                }
            }
            Event::DigestsGathered { step, digests } => {
                let first = self.gathered.entry(*step).or_insert_with(|| Arc::clone(digests));
                if digests.is_empty() {
                    *digests = Arc::clone(first);
                }
            }
            _ => {}
        }
    }
}

fn name(payload: &Payload) -> (String, Dtype, usize) {
    (payload.digest.clone(), payload.dtype, payload.numel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{LayoutName, Point};

    fn payload(bytes: &[u8]) -> Payload {
        Payload::new(Dtype::Bf16, bytes, 0.0)
    }

    #[test]
    fn content_that_was_there_before_is_found_by_its_digest() {
        let (first, other) = (payload(&[1, 2]), payload(&[3, 4]));
        let mut written = Contents::default();
        assert!(!written.has(&first) && written.has(&first) && !written.has(&other));
        let mut read = Contents::default();
        let mut completed = |payload: Payload| {
            let (layout, point) = (LayoutName::Full, Point::Parameters);
            let mut event = Event::Buffer { step: None, microbatch: None, point, layout, payload };
            read.complete(&mut event);
            match event {
                Event::Buffer { payload, .. } => payload,
                other => panic!("{other:?}"),
            }
        };
        completed(first.clone());
        assert_eq!(completed(first.without_content()), first);
        let unknown = completed(other.without_content());
        assert!(!unknown.has_content() && unknown.bytes().is_err());
    }

    #[test]
    fn other_content_under_the_same_digest_is_written_all_the_same() {
        let first = payload(&[1, 2]);
        let forged = Payload { digest: first.digest.clone(), ..payload(&[3, 4]) };
        let mut written = Contents::default();
        assert!(!written.has(&first) && !written.has(&forged));
    }

    #[test]
    fn a_list_of_digests_is_had_once_in_each_step() {
        let gathered = |step, digests: &[&str]| Event::DigestsGathered {
            step,
            digests: Arc::new(digests.iter().map(|&it| it.to_owned()).collect()),
        };
        let mut contents = Contents::default();
        assert_eq!(contents.shortened(&gathered(0, &["a", "b"])), None);
        assert_eq!(contents.shortened(&gathered(0, &["a", "b"])), Some(gathered(0, &[])));
        assert_eq!(contents.shortened(&gathered(0, &["a", "c"])), None, "another list is kept");
        assert_eq!(contents.shortened(&gathered(1, &["a", "b"])), None, "another step");
        let mut read = Contents::default();
        let mut short = [gathered(0, &["a", "b"]), gathered(0, &[]), gathered(0, &["a", "c"])];
        short.iter_mut().for_each(|event| read.complete(event));
        assert_eq!(short[1], gathered(0, &["a", "b"]));
        assert_eq!(short[2], gathered(0, &["a", "c"]));
    }

    #[test]
    fn nothing_is_a_content_too() {
        let nothing = payload(&[]);
        assert!(nothing.has_content());
        assert_eq!(nothing.bytes(), Ok(Vec::new()));
    }
}
