//! Contents of buffers and lists of digests, each held once.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Event, Payload};
use crate::spec::Dtype;

/// The contents that a trace has had so far, by the digest, dtype and number of elements that name
/// them, and the first list of digests that was gathered in each step.
#[derive(Debug, Default)]
pub struct Contents {
    by_name: HashMap<(String, Dtype, usize), Arc<str>>,
    gathered: HashMap<usize, Vec<String>>,
}

impl Contents {
    /// An event without what the trace has had already: the content of a buffer, or the list of digests that
    /// another rank gathered in the same step. None if all of it is new; it is added then.
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
                    return Some(Event::DigestsGathered { step: *step, digests: Vec::new() });
                }
                if first.is_empty() {
                    first.clone_from(digests);
                }
                None
            }
            _ => None,
        }
    }

    /// Returns true if the content of a payload is one of these. If not, and if there is none of
    /// its name, it is added.
    ///
    /// Other content under the same name, which only a wrong digest leads to, does not count as the
    /// same.
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

    /// Gives a payload without content the content of the earlier payload with its name, if there
    /// is one.
    pub fn complete(&mut self, payload: &mut Payload) {
        if payload.has_content() {
            self.has(payload);
        } else if let Some(data) = self.by_name.get(&name(payload)) {
            payload.data = Arc::clone(data);
        }
    }
}

fn name(payload: &Payload) -> (String, Dtype, usize) {
    (payload.digest.clone(), payload.dtype, payload.numel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(bytes: &[u8]) -> Payload {
        Payload::new(Dtype::Bf16, bytes, 0.0)
    }

    #[test]
    fn content_that_was_there_before_is_found_by_its_digest() {
        let (first, other) = (payload(&[1, 2]), payload(&[3, 4]));
        let mut written = Contents::default();
        assert!(!written.has(&first) && written.has(&first) && !written.has(&other));
        let mut read = Contents::default();
        read.complete(&mut first.clone());
        let mut short = first.without_content();
        read.complete(&mut short);
        assert_eq!(short, first);
        let mut unknown = other.without_content();
        read.complete(&mut unknown);
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
            digests: digests.iter().map(|&it| it.to_owned()).collect(),
        };
        let mut contents = Contents::default();
        assert_eq!(contents.shortened(&gathered(0, &["a", "b"])), None);
        assert_eq!(contents.shortened(&gathered(0, &["a", "b"])), Some(gathered(0, &[])));
        assert_eq!(contents.shortened(&gathered(0, &["a", "c"])), None, "another list is kept");
        assert_eq!(contents.shortened(&gathered(1, &["a", "b"])), None, "another step");
    }

    #[test]
    fn nothing_is_a_content_too() {
        let nothing = payload(&[]);
        assert!(nothing.has_content());
        assert_eq!(nothing.bytes(), Ok(Vec::new()));
    }
}
