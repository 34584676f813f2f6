//! The content of a buffer inside a trace.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use blake2::{Blake2b, Digest as _, digest::consts::U8};
use half::{bf16, f16, slice::HalfFloatSliceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::Dtype;

/// The elements of a buffer, bit for bit.
///
/// A trace stores each content only once: a payload without `data` has the content of an earlier payload with the
/// same digest, dtype and number of elements. If there is no such payload, the content was not recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Payload {
    /// The dtype of the elements.
    pub dtype: Dtype,
    /// The number of elements.
    pub numel: usize,
    /// The Euclidean norm in fp64, as the rank computed it; `None` if the norm is not finite.
    pub norm: Option<f64>,
    /// The [`digest`] of the bytes.
    pub digest: String,
    /// The bytes, little-endian, in base64; empty if the trace does not store them here.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub data: Arc<str>,
}

impl Payload {
    /// Wraps little-endian `bytes`; `norm` is the norm that the rank computed.
    pub fn new(dtype: Dtype, bytes: &[u8], norm: f64) -> Self {
        Self {
            dtype,
            numel: bytes.len() / dtype.size(),
            norm: norm.is_finite().then_some(norm),
            digest: digest(bytes),
            data: BASE64.encode(bytes).into(),
        }
    }

    /// Returns a copy of the payload without its content.
    #[must_use]
    pub fn without_content(&self) -> Self {
        Self { data: Arc::default(), digest: self.digest.clone(), ..*self }
    }

    /// Returns true if the payload has its content, so that the elements can be read.
    pub fn has_content(&self) -> bool {
        self.numel == 0 || !self.data.is_empty()
    }

    /// Returns the bytes of the elements, little-endian.
    ///
    /// # Errors
    /// Returns a sentence if the text is not base64, if its length is wrong, or if the content was not recorded.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        if !self.has_content() {
            return Err("the content of the buffer was not recorded".to_owned());
        }
        let bytes = BASE64
            .decode(self.data.as_bytes())
            .map_err(|err| format!("buffer data is not base64: {err}"))?;
        let expected = self.numel * self.dtype.size();
        if bytes.len() != expected {
            return Err(format!(
                "buffer of {} {} elements has {} bytes instead of {expected}",
                self.numel,
                self.dtype,
                bytes.len(),
            ));
        }
        Ok(bytes)
    }

    /// Returns the elements in fp64, which represents every value of every [`Dtype`] exactly.
    ///
    /// # Errors
    /// Fails like [`Payload::bytes`].
    pub fn values(&self) -> Result<Vec<f64>, String> {
        Ok(self.values_of(&self.bytes()?))
    }

    /// Returns the elements in fp64, read from the buffer's `bytes`.
    pub fn values_of(&self, bytes: &[u8]) -> Vec<f64> {
        match self.dtype {
            Dtype::Bf16 => {
                let halves: Vec<bf16> = words(bytes).map(bf16::from_bits).collect();
                halves.to_f64_vec()
            }
            Dtype::Fp16 => {
                let halves: Vec<f16> = words(bytes).map(f16::from_bits).collect();
                halves.to_f64_vec()
            }
            Dtype::Fp32 => bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|chunk| f64::from(f32::from_le_bytes(*chunk)))
                .collect(),
        }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.as_chunks::<2>().0.iter().map(|chunk| u16::from_le_bytes(*chunk))
}

/// Returns the BLAKE2b hash with 8 bytes of output, in hexadecimal (Python: `hashlib.blake2b(digest_size=8)`).
pub fn digest(bytes: &[u8]) -> String {
    hex(&Blake2b::<U8>::digest(bytes))
}

/// Returns the digest of the concatenated hexadecimal texts of several digests.
pub fn combined_digest<'a>(digests: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = Blake2b::<U8>::new();
    for digest in digests {
        hasher.update(digest);
    }
    hex(&hasher.finalize())
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_exactly_in_every_dtype() {
        let numbers = [0.0f64, 1.0, -2.5, 240.0];
        for &dtype in Dtype::ALL {
            let bytes: Vec<u8> = numbers
                .iter()
                .flat_map(|&x| match dtype {
                    Dtype::Bf16 => bf16::from_f64(x).to_le_bytes().to_vec(),
                    Dtype::Fp16 => f16::from_f64(x).to_le_bytes().to_vec(),
                    Dtype::Fp32 => (x as f32).to_le_bytes().to_vec(),
                })
                .collect();
            let payload = Payload::new(dtype, &bytes, 1.0);
            assert_eq!(payload.values().as_deref(), Ok(&numbers[..]), "{dtype}");
        }
    }

    #[test]
    fn a_payload_of_the_wrong_length_is_refused() {
        let mut payload = Payload::new(Dtype::Fp32, &[0; 8], 0.0);
        payload.numel = 3;
        assert!(payload.values().is_err());
    }

    #[test]
    fn the_digest_is_that_of_pythons_hashlib() {
        // The expected value is that of hashlib.blake2b(b"zprobe", digest_size=8).hexdigest().
        assert_eq!(digest(b"zprobe"), "44b0cd6e3d926afe");
    }
}
