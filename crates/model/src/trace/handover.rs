//! The messages between launcher and pool, on a socket that preserves message boundaries.
//!
//! The pool sends [`WARM`] once. For each run, the launcher then sends one message with the environment variables of
//! the run, together with descriptors. The host of the run answers with its process id on the first of these
//! descriptors. See `docs/protocol.md`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// The only message of a pool, which says that its engine is loaded.
pub const WARM: &[u8] = b"warm";

/// The length of the longest message about a run, in bytes. This is the kernel's limit for a single environment
/// variable of a new process, so every run that can be started can also be handed over to a pool.
pub const MESSAGE_LIMIT: usize = 128 << 10;

/// The largest number of descriptors of one message, a limit of the kernel (`SCM_MAX_FD`).
pub const MOST_DESCRIPTORS: usize = 253;

/// The number of descriptors before the ranks' event channels: the answer pipe, standard output, standard error, the
/// socket of the TCPStore, and the host channel.
pub const LEADING_DESCRIPTORS: usize = 5;

/// Encodes variables as one message: each as `NAME=VALUE` with a terminating zero byte, which neither a name nor a
/// value can contain.
pub fn encode<'a>(variables: impl IntoIterator<Item = (&'a str, &'a OsStr)>) -> Vec<u8> {
    let mut message = Vec::new();
    for (name, value) in variables {
        message.extend_from_slice(name.as_bytes());
        message.push(b'=');
        message.extend_from_slice(value.as_bytes());
        message.push(0);
    }
    message
}

/// Decodes the variables of a message, or returns `None` if the message is malformed.
pub fn decode(message: &[u8]) -> Option<Vec<(OsString, OsString)>> {
    let variables = message.strip_suffix(&[0])?.split(|&byte| byte == 0);
    variables
        .map(|variable| {
            let equals = memchr::memchr(b'=', variable).filter(|&at| at > 0)?;
            let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
            Some((text(&variable[..equals]), text(&variable[equals + 1..])))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_even_if_it_is_no_utf8() {
        let given = [("A", "x=y\nz".as_bytes()), ("EMPTY", b""), ("DIR", b"caf\xe9")];
        let message = encode(given.map(|(name, value)| (name, OsStr::from_bytes(value))));
        let expected = given.map(|(name, value)| (name.into(), OsStr::from_bytes(value).into()));
        assert_eq!(decode(&message).unwrap(), expected);
    }

    #[test]
    fn anything_else_is_no_message() {
        for message in [&b""[..], b"A=cut", b"A\0", b"=x\0", b"A=1\0\0"] {
            assert_eq!(decode(message), None, "{message:?}");
        }
    }
}
