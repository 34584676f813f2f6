//! From text to a tree of keys that know where they stand.

use jsonc_parser::ast;
use jsonc_parser::common::Ranged;
use jsonc_parser::errors::ParseErrorKind;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast, parse_to_serde_value};
use serde_json::Value;

use super::message::{Position, Problem, Spot};

/// A value of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, whole or not.
    Number(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object.
    Object(Vec<Member>),
}

/// A key of an object, with its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    /// Full path, as written, and place.
    pub spot: Spot,
    /// Last part of the path.
    pub key: String,
    /// Its value.
    pub value: Json,
}

impl Json {
    /// The word that stands for "somebody else fills this in", used by Hugging Face's Trainer.
    const AUTO: &str = "auto";

    /// Whether the value is `"auto"`.
    pub(super) fn is_auto(&self) -> bool {
        matches!(self, Json::Text(text) if text == Json::AUTO)
    }

    /// The value as a whole number. `5e8` and `4.0` are whole numbers, as they are to pydantic.
    pub(super) fn as_whole(&self) -> Option<i64> {
        // Beyond 2^53 not every whole number is a float, so none is taken from there.
        const LIMIT: f64 = 9_007_199_254_740_992.0;
        match *self {
            Json::Number(number) if number.fract() == 0.0 && number.abs() <= LIMIT => {
                Some(number as i64)
            }
            _ => None,
        }
    }

    /// What kind of value this is, in words for a message.
    pub(super) fn in_words(&self) -> String {
        match self {
            Json::Null => "null".to_owned(),
            Json::Bool(value) => value.to_string(),
            Json::Number(value) => value.to_string(),
            Json::Text(value) => format!("{value:?}"),
            Json::List(_) => "a list".to_owned(),
            Json::Object(_) => "an object".to_owned(),
        }
    }
}

/// Finds the member with this key.
pub(super) fn member<'a>(members: &'a [Member], key: &str) -> Option<&'a Member> {
    members.iter().find(|member| member.key == key)
}

/// Parses a file into its top-level members, reporting repeated keys on the way.
///
/// DeepSpeed reads its file with `hjson.load` (`runtime/config.py`, `DeepSpeedConfig.__init__`):
/// comments, trailing or missing commas and bare keys are legal. Of hjson's further liberties,
/// `#` comments and strings without quotes are not read here; the message says what to write.
///
/// # Errors
/// The one syntax error at which parsing stops.
pub(super) fn parse(text: &str, repeated: &mut Vec<Problem>) -> Result<Vec<Member>, Problem> {
    let text = without_mark(text);
    let options = options();
    let lines = Lines::new(text);
    let parsed = parse_to_ast(text, &CollectOptions::default(), &options).map_err(|error| {
        let start = error.range().start;
        let found = text.get(start..).unwrap_or_default();
        syntax(lines.position(start), explain(error.kind(), found))
    })?;
    match parsed.value {
        Some(ast::Value::Object(object)) => {
            Ok(Reader { lines, repeated }.members("", object.properties))
        }
        Some(other) => Err(syntax(
            lines.position(other.start()),
            "a DeepSpeed configuration is an object: put everything between { and }".to_owned(),
        )),
        None => Err(syntax(
            Position { line: 1, column: 1 },
            "the file is empty; a DeepSpeed configuration is an object between { and }".to_owned(),
        )),
    }
}

/// The same text as the value that DeepSpeed itself is given; null where [`parse`] fails.
pub(super) fn content(text: &str) -> Value {
    parse_to_serde_value(without_mark(text), &options()).unwrap_or_default()
}

fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn options() -> ParseOptions {
    ParseOptions {
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_non_finite_numbers: false,
        ..ParseOptions::default()
    }
}

fn syntax(at: Position, text: String) -> Problem {
    Problem::mistake(vec![Spot { path: String::new(), at }], text)
}

/// What the parser expected, in words that say what to change.
fn explain(kind: &ParseErrorKind, found: &str) -> String {
    if found.starts_with('#') {
        return "syntax error: a comment that starts with #; zprobe reads // and /* */ comments"
            .to_owned();
    }
    match kind {
        ParseErrorKind::UnexpectedWord => {
            let word: String = found.chars().take_while(|c| !c.is_whitespace()).take(30).collect();
            let word = word.trim_end_matches([',', '}', ']']);
            let wanted = match word {
                "True" => "write true".to_owned(),
                "False" => "write false".to_owned(),
                "None" => "write null".to_owned(),
                _ => format!("put it between quotes: \"{word}\""),
            };
            format!("syntax error: {word} is not a JSON value; {wanted}")
        }
        ParseErrorKind::UnterminatedObject => {
            "syntax error: the object that starts here is never closed; add }".to_owned()
        }
        ParseErrorKind::UnterminatedArray => {
            "syntax error: the list that starts here is never closed; add ]".to_owned()
        }
        ParseErrorKind::MultipleRootJsonValues => {
            "syntax error: something follows the end of the configuration; remove it".to_owned()
        }
        other => {
            let mut said = other.to_string();
            if let Some(first) = said.get_mut(..1) {
                first.make_ascii_lowercase();
            }
            format!("syntax error: {said}")
        }
    }
}

struct Reader<'t, 'p> {
    lines: Lines<'t>,
    repeated: &'p mut Vec<Problem>,
}

impl Reader<'_, '_> {
    fn members(&mut self, parent: &str, properties: Vec<ast::ObjectProp<'_>>) -> Vec<Member> {
        let mut members: Vec<Member> = Vec::with_capacity(properties.len());
        for property in properties {
            let at = self.lines.position(property.start());
            let key = property.name.into_string();
            let path = if parent.is_empty() { key.clone() } else { format!("{parent}.{key}") };
            let value = self.value(&path, property.value);
            let spot = Spot { path, at };
            // `dict_raise_error_on_duplicate_keys` (`runtime/config_utils.py`), at every level.
            if let Some(first) = member(&members, &key) {
                self.repeated.push(Problem::mistake(
                    vec![spot],
                    format!(
                        "this key stands at {} already, and DeepSpeed refuses a key that is given \
                         twice; remove one of them",
                        first.spot.at
                    ),
                ));
            } else {
                members.push(Member { spot, key, value });
            }
        }
        members
    }

    fn value(&mut self, path: &str, value: ast::Value<'_>) -> Json {
        match value {
            ast::Value::NullKeyword(_) => Json::Null,
            ast::Value::BooleanLit(literal) => Json::Bool(literal.value),
            // What the scanner lets through as a number is one, but for an overflow to infinity,
            // which no key takes as a whole number.
            ast::Value::NumberLit(literal) => {
                Json::Number(literal.value.parse().unwrap_or(f64::NAN))
            }
            ast::Value::StringLit(literal) => Json::Text(literal.value.into_owned()),
            ast::Value::Array(array) => Json::List(
                array.elements.into_iter().map(|element| self.value(path, element)).collect(),
            ),
            ast::Value::Object(object) => Json::Object(self.members(path, object.properties)),
        }
    }
}

/// Turns byte offsets into positions.
struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn new(text: &'t str) -> Lines<'t> {
        let after_breaks = text.match_indices('\n').map(|(offset, _)| offset + 1);
        Lines { text, starts: std::iter::once(0).chain(after_breaks).collect() }
    }

    fn position(&self, offset: usize) -> Position {
        let line = self.starts.partition_point(|&start| start <= offset);
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let before = self.text.get(start..offset).unwrap_or_default();
        Position { line, column: before.chars().count() + 1 }
    }
}
