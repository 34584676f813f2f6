//! The codes of rules, as used in findings, in baselines and in rows of the zoo.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The letters before the number of a code.
const PREFIX: &str = "ZP";

/// The code of a rule: `ZP` and three digits. The first digit is the rule's [`Family`].
///
/// A code need not belong to a rule of this zprobe: a report of a later release may have newer codes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleCode([u8; PREFIX.len() + 3]);

/// The part of a run that a rule looks at, by the first digit of the rule's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Codes 1xx: contribution weights.
    Weights,
    /// Codes 2xx: the autograd graph and gradient hooks.
    Hooks,
    /// Codes 3xx: buckets.
    Buckets,
    /// Codes 4xx: partitions and placement.
    Placement,
    /// Codes 5xx: precision and the loss scale.
    Precision,
    /// Codes 6xx: the update that the step computed from the gradient.
    Update,
    /// Codes 7xx: offload.
    Offload,
    /// Codes 8xx: collectives.
    Collectives,
    /// Codes 9xx: the run itself.
    Run,
}

impl RuleCode {
    /// The code of a rule, written in zprobe's source as a literal.
    ///
    /// # Panics
    /// If the text is not a code; in a `const`, this is a compile error.
    pub const fn new(text: &str) -> Self {
        match Self::read(text.as_bytes()) {
            Some(code) => code,
            None => panic!("a rule code is ZP and three digits, the first of them not 0"),
        }
    }

    /// Several codes of rules, written in zprobe's source as literals.
    ///
    /// # Panics
    /// If one of the texts is not a code, as [`RuleCode::new`] does.
    pub const fn all<const N: usize>(texts: [&str; N]) -> [Self; N] {
        let mut codes = [Self(*b"ZP100"); N];
        let mut number = 0;
        while number < N {
            codes[number] = Self::new(texts[number]);
            number += 1;
        }
        codes
    }

    const fn read(text: &[u8]) -> Option<Self> {
        let &[z, p, family @ b'1'..=b'9', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = text else {
            return None;
        };
        if !(z.eq_ignore_ascii_case(&b'Z') && p.eq_ignore_ascii_case(&b'P')) {
            return None;
        }
        Some(Self([b'Z', b'P', family, tens, ones]))
    }

    /// The code as text: `ZP101`.
    pub fn as_str(&self) -> &str {
        // The bytes are always ASCII, because `read` accepts nothing else.
        str::from_utf8(&self.0).unwrap_or(PREFIX)
    }

    /// The part of a run that the rule looks at.
    pub const fn family(self) -> Family {
        match self.0[PREFIX.len()] {
            b'1' => Family::Weights,
            b'2' => Family::Hooks,
            b'3' => Family::Buckets,
            b'4' => Family::Placement,
            b'5' => Family::Precision,
            b'6' => Family::Update,
            b'7' => Family::Offload,
            b'8' => Family::Collectives,
            _ => Family::Run,
        }
    }
}

/// The error for a text that is not a rule code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a rule code is ZP and three digits, for example ZP101")]
pub struct NotACode;

impl FromStr for RuleCode {
    type Err = NotACode;

    /// Reads a code in uppercase or lowercase letters.
    fn from_str(text: &str) -> Result<Self, NotACode> {
        Self::read(text.as_bytes()).ok_or(NotACode)
    }
}

impl Deref for RuleCode {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for RuleCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for RuleCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq<str> for RuleCode {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for RuleCode {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

impl Serialize for RuleCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for RuleCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for RuleCode {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RuleCode".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_in_any_case_and_nothing_else_is() {
        assert_eq!("zp101".parse(), Ok(RuleCode::new("ZP101")));
        for text in ["", "ZP", "ZP1", "ZP1010", "ZP010", "XP101", "ZP10x", "101", " ZP101"] {
            assert_eq!(text.parse::<RuleCode>(), Err(NotACode), "{text}");
        }
    }

    #[test]
    fn the_first_digit_is_the_family() {
        assert_eq!(RuleCode::new("ZP107").family(), Family::Weights);
        assert_eq!(RuleCode::new("ZP604").family(), Family::Update);
        assert_eq!(RuleCode::new("ZP905").family(), Family::Run);
    }

    #[test]
    fn json_has_a_code_as_text() {
        let code = RuleCode::new("ZP101");
        assert_eq!(serde_json::to_string(&code).unwrap(), "\"ZP101\"");
        assert_eq!(serde_json::from_str::<RuleCode>("\"ZP101\"").unwrap(), code);
        assert!(serde_json::from_str::<RuleCode>("\"fine\"").is_err());
    }
}
