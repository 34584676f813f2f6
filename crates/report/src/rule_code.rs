//! Codes of rules, as findings, baselines and rows of the zoo name them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Letters before the number of a code.
const PREFIX: &str = "ZP";

/// Code of a rule: `ZP` and three digits, of which the first is that of its [`Family`].
///
/// Codes that this zprobe has no rule for are codes as well: a report of a later release may have
/// them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleCode([u8; PREFIX.len() + 3]);

/// Part of a run that a rule looks at, by the first digit of its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// 1xx: contribution weights.
    Weights,
    /// 2xx: the autograd graph and hooks.
    Hooks,
    /// 3xx: buckets.
    Buckets,
    /// 4xx: partitions and placement.
    Placement,
    /// 5xx: precision and the loss scale.
    Precision,
    /// 6xx: what the step made of the gradient.
    Update,
    /// 7xx: offload.
    Offload,
    /// 8xx: collectives.
    Collectives,
    /// 9xx: the run itself.
    Run,
}

impl RuleCode {
    /// The code of a rule in this source.
    ///
    /// # Panics
    /// At compile time in a `const`, for a text that is no code.
    pub const fn new(text: &str) -> Self {
        match Self::read(text.as_bytes()) {
            Some(code) => code,
            None => panic!("a code is ZP and three digits, the first of them not 0"),
        }
    }

    /// Several codes of rules in this source.
    ///
    /// # Panics
    /// As [`RuleCode::new`].
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
        // Only ASCII is ever read.
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

/// A text that is no code of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a code is ZP and three digits, for example ZP101")]
pub struct NotACode;

impl FromStr for RuleCode {
    type Err = NotACode;

    /// Reads a code in capital or small letters.
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
