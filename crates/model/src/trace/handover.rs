//! Messages between launcher and pool, on a socket that keeps messages apart.
//!
//! The pool says [`WARM`] once. For each run, the launcher then sends one message: the environment
//! variables of the run, with descriptors beside it. The run's host answers on the first of them
//! with its process id. See `docs/protocol.md`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// The only message of a pool: the engine is loaded.
pub const WARM: &[u8] = b"warm";

/// Longest message about a run, in bytes: the kernel's limit for a single variable of a new
/// process, so that a run that can be started can be handed over.
pub const MESSAGE_LIMIT: usize = 128 << 10;

/// Largest number of descriptors of one message; a limit of the kernel (`SCM_MAX_FD`).
pub const MOST_DESCRIPTORS: usize = 253;

/// Number of descriptors before the ranks' event channels: for the answer, standard output,
/// standard error, the store's socket and the host channel.
pub const LEADING_DESCRIPTORS: usize = 5;

/// Encodes variables as one message: `NAME=VALUE`, each ended by a zero byte, which neither a name
/// nor a value can hold.
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

/// The variables of a message, as they were encoded. None when it is no such message.
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
