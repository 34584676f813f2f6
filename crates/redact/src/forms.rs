//! The forms in which a text may contain a secret or a name: unchanged, escaped for JSON or for a URL, or in base64.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

use super::Kind;

/// The smallest number of base64 characters that are searched for: shorter texts would be found by chance.
const LEAST_BASE64: usize = 8;

/// All forms of a text. Only secrets are also searched for in base64, where a text may begin at any of three byte
/// offsets.
pub(super) fn of(text: &str, kind: Kind) -> Vec<String> {
    let mut forms = vec![text.to_owned()];
    let json = serde_json::Value::from(text).to_string();
    let json = json[1..json.len() - 1].to_owned();
    forms.push(json.replace('/', "\\/"));
    forms.push(json);
    forms.push(percent(text, |byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)));
    // The form of a path in a URL, escaped except for its slashes.
    forms.push(percent(text, |byte| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte)));
    if kind == Kind::Secret {
        for engine in [&STANDARD, &URL_SAFE] {
            forms.extend((0..3).filter_map(|shift| base64(text, shift, engine)));
        }
    }
    forms.sort_unstable();
    forms.dedup();
    forms
}

fn percent(text: &str, stays: fn(u8) -> bool) -> String {
    text.bytes()
        .map(|byte| if stays(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The base64 characters of a text that follows `shift` other bytes, as far as the characters depend only on the text.
fn base64(text: &str, shift: usize, engine: &base64::engine::GeneralPurpose) -> Option<String> {
    let encoded = engine.encode([&vec![0; shift], text.as_bytes()].concat());
    let first = (8 * shift).div_ceil(6);
    let last = 8 * (shift + text.len()) / 6;
    let kept = encoded.get(first..last)?;
    (kept.len() >= LEAST_BASE64).then(|| kept.to_owned())
}
