//! The strict reading of a baseline, in which every error names its line.

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;
use toml::value::{Date, Datetime};

use super::{Baseline, BaselineEntry};
use zprobe_model::document::{Complaint, Document};

/// The content of a baseline file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaselineFile {
    /// The findings that are accepted.
    #[serde(default)]
    #[schemars(with = "Vec<BaselineFileEntry>")]
    accept: Vec<Spanned<BaselineFileEntry>>,
}

/// An `[[accept]]` entry of a baseline file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BaselineFileEntry {
    /// The code of the finding's rule.
    #[schemars(with = "String")]
    code: Spanned<String>,
    /// The probes that the entry is about, by name or by engine and name (`deepspeed/stage1-*`). `*` stands for any
    /// text, `?` for any one character.
    #[schemars(with = "String")]
    probe: Spanned<String>,
    /// The rank that the finding must be on; any rank if the key is missing.
    rank: Option<usize>,
    /// The parameter that the finding must be about; any parameter if the key is missing.
    param: Option<String>,
    /// The reason why the finding is accepted.
    #[schemars(with = "String")]
    reason: Spanned<String>,
    /// The last day on which the finding is accepted: a date like 2026-12-31.
    #[schemars(with = "String")]
    expires: Spanned<toml::Value>,
}

impl Baseline {
    /// Reads a baseline from its file.
    ///
    /// # Errors
    /// If the text is not TOML, a key is unknown or missing, or a value is not allowed.
    pub fn read(document: &Document) -> Result<Self, Complaint> {
        let file: BaselineFile = document.read()?;
        let entries = file.accept.iter().map(|entry| {
            let BaselineFileEntry { code, probe, rank, param, reason, expires } = entry.get_ref();
            let rule = code.get_ref().parse().map_err(|_| {
                let text = code.get_ref();
                let problem =
                    format!("code: `{text}` is not a rule's code; write one like `ZP101`");
                document.complain(code.span(), problem)
            })?;
            let pattern = glob::Pattern::new(probe.get_ref())
                .map_err(|error| document.complain(probe.span(), format!("probe: {error}")))?;
            if reason.get_ref().trim().is_empty() {
                let problem = "reason: is empty; say why this is accepted";
                return Err(document.complain(reason.span(), problem));
            }
            let day = match expires.get_ref() {
                toml::Value::Datetime(day) => day_of(day),
                toml::Value::String(text) => day(text),
                _ => None,
            };
            let Some(expires) = day else {
                let problem = "expires: is not a date; write a day like 2026-12-31";
                return Err(document.complain(expires.span(), problem));
            };
            Ok(BaselineEntry {
                line: document.place(entry.span()).0,
                code: rule,
                probe: pattern,
                rank: *rank,
                param: param.clone(),
                reason: reason.get_ref().trim().to_owned(),
                expires,
            })
        });
        Ok(Self { file: document.file.clone(), entries: entries.collect::<Result<_, _>>()? })
    }
}

/// Reads a day like `2026-12-31`, without a time.
pub fn day(text: &str) -> Option<Date> {
    day_of(&text.parse().ok()?)
}

fn day_of(datetime: &Datetime) -> Option<Date> {
    datetime.date.filter(|_| datetime.time.is_none())
}
