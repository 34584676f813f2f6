//! The forms in which a text may hold another: as it is, escaped for JSON or for a URL, in base64.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

use super::Kind;

/// Smallest number of characters of base64 that are looked for: fewer are found by chance.
const LEAST_BASE64: usize = 8;

/// All forms of a text. Only secrets are looked for in base64, where a text may begin at any of
/// three bytes.
pub(super) fn of(text: &str, kind: Kind) -> Vec<String> {
    let mut forms = vec![text.to_owned()];
    let json = serde_json::Value::from(text).to_string();
    let json = json[1..json.len() - 1].to_owned();
    forms.push(json.replace('/', "\\/"));
    forms.push(json);
    forms.push(percent(text, |byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)));
    // The form of a path that is escaped except for its slashes.
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

/// The characters of base64 that a text has behind `shift` other bytes, as far as they depend on
/// the text alone.
fn base64(text: &str, shift: usize, engine: &base64::engine::GeneralPurpose) -> Option<String> {
    let encoded = engine.encode([&vec![0; shift], text.as_bytes()].concat());
    let first = (8 * shift).div_ceil(6);
    let last = 8 * (shift + text.len()) / 6;
    let kept = encoded.get(first..last)?;
    (kept.len() >= LEAST_BASE64).then(|| kept.to_owned())
}
