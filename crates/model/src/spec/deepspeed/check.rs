//! Compares a DeepSpeed file with the registry, key by key.

use super::document::{Json, LARGEST_WHOLE, Member, meant_by};
use super::key::{Key, Neutral, Role, Shape};
use super::message::{MOST_SHOWN, Problem, Remark, Spot};
use super::registry::{self, OLD_BF16, RELEASE};

/// The results of comparing a file with the registry.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// The reasons why the file cannot be run.
    pub problems: Vec<Problem>,
    /// The remarks on keys that are accepted with a note.
    pub remarks: Vec<Remark>,
    /// The keys whose value is `"auto"`.
    pub auto: Vec<Spot>,
}

/// Compares a whole DeepSpeed file with the registry.
pub(super) fn check(members: &[Member]) -> Checked {
    let mut checked = Checked::default();
    checked.section("", false, members);
    checked
}

impl Checked {
    /// Checks the members of one section.
    ///
    /// `section` is the section's name in the registry, which differs from the name in the file if the file uses an
    /// old name; it is empty at the top level.
    fn section(&mut self, section: &str, refuses_unknown: bool, members: &[Member]) {
        for member in members {
            let registered = match (section, member.key.as_str()) {
                ("", OLD_BF16) => {
                    self.remark(
                        member,
                        "the old name of bf16, which DeepSpeed still reads if the file has no section bf16",
                    );
                    "bf16".to_owned()
                }
                ("", key) => key.to_owned(),
                (section, key) => format!("{section}.{key}"),
            };
            match registry::find(&registered) {
                // A key with a dot is a single key, and not a key in a section.
                Some(key) if !member.key.contains('.') => self.known(key, member),
                _ => self.unknown(&registered, refuses_unknown, member),
            }
        }
    }

    fn known(&mut self, key: &'static Key, member: &Member) {
        let spot = || member.spot.clone();
        let value = &member.value;
        // For most keys, null means the default; for some, pydantic refuses null, which DeepSpeed then reports
        // itself. In both cases the key has no effect on this run.
        if *value == Json::Null {
            return;
        }
        // If a key takes any value, "auto" may be a value that DeepSpeed itself defines.
        if value.is_auto() && key.shape != Shape::Free {
            self.auto.push(spot());
            return;
        }
        if !key.shape.takes(value) {
            self.problems.push(Problem::mistake(vec![spot()], refusal(key, value)));
            return;
        }
        match key.role {
            Role::NotYet(neutral, why) if !neutral.is(value) => {
                self.problems.push(Problem::not_yet(
                    vec![spot()],
                    None,
                    not_yet(value, neutral, why),
                ));
            }
            Role::Noted(text) => self.remark(member, text),
            Role::NotYet(..) | Role::Used | Role::Inert => {}
        }
        if let Json::Object(members) = value
            && key.shape.is_section()
        {
            self.section(key.path, key.shape.refuses_unknown_keys(), members);
        }
    }

    fn unknown(&mut self, registered: &str, refused: bool, member: &Member) {
        let consequence = if refused { "refuses to start" } else { "ignores it silently" };
        let meant = match registered.rsplit_once('.') {
            // A file with this many unknown keys is more than misspelt: suggest nothing.
            _ if self.problems.len() > MOST_SHOWN => None,
            Some((section, key)) if registry::find(registered).is_some() => {
                Some(format!("did you mean {key} inside of {section}?"))
            }
            _ => registry::suggestion(registered).map(|path| format!("did you mean {path}?")),
        };
        let or = |else_said: &str| meant.clone().unwrap_or_else(|| else_said.to_owned());
        let advice = or("remove it in a copy of the file");
        self.problems.push(Problem::unknown(
            vec![member.spot.clone()],
            format!("DeepSpeed {RELEASE} has no such key and {consequence}; {advice}"),
            format!(
                "not a key of DeepSpeed {RELEASE}, and passed on unchanged; {}",
                or("the installed DeepSpeed decides")
            ),
        ));
    }

    fn remark(&mut self, member: &Member, text: &'static str) {
        Remark::add(&mut self.remarks, vec![member.spot.clone()], text);
    }
}

fn refusal(key: &Key, value: &Json) -> String {
    let switch = format!("{}.enabled", key.path);
    let advice = match value {
        Json::Text(text) => meant_by(text).map(|meant| format!("; {meant}")).unwrap_or_default(),
        // The key takes whole numbers, but this number is too large.
        Json::Number(_) if key.shape.takes(&Json::Number(1.into())) && is_too_large(value) => {
            format!("; the largest accepted number is {LARGEST_WHOLE}")
        }
        Json::Bool(on) if key.shape.is_section() && registry::find(&switch).is_some() => {
            format!("; write {{\"enabled\": {on}}}")
        }
        _ => String::new(),
    };
    format!("must be {}, not {}{advice}", key.shape.in_words(), value.in_words())
}

/// True for a whole number above [`LARGEST_WHOLE`].
fn is_too_large(value: &Json) -> bool {
    value.as_number().is_some_and(|number| number.fract() == 0.0 && number > LARGEST_WHOLE)
}

fn not_yet(value: &Json, neutral: Neutral, why: &str) -> String {
    let what = match value {
        Json::Object(_) | Json::List(_) => "this section ".to_owned(),
        scalar => format!("{} ", scalar.in_words()),
    };
    format!("{what}is not supported yet: {why}; {}", neutral.remedy())
}
