//! Contents of buffers, each held once.

use std::collections::HashMap;
use std::sync::Arc;

use super::Payload;
use crate::spec::Dtype;

/// The contents that a trace has had so far, by the digest, dtype and number of elements that name
/// them.
#[derive(Debug, Default)]
pub struct Contents {
    by_name: HashMap<(String, Dtype, usize), Arc<str>>,
}

impl Contents {
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
    fn nothing_is_a_content_too() {
        let nothing = payload(&[]);
        assert!(nothing.has_content());
        assert_eq!(nothing.bytes(), Ok(Vec::new()));
    }
}
