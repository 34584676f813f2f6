//! Parses the text of a DeepSpeed file into a tree, as DeepSpeed reads the file.
//!
//! DeepSpeed reads its file with `hjson.load` (`DeepSpeedConfig.__init__` in `runtime/config.py`). Therefore
//! comments (`//`, `#`, `/* */`), keys and strings without quotes, single quotes, extra or missing commas, and an
//! object without its braces are legal.

use std::collections::HashMap;

use deser::de::{DeserializeDriver, Limits, Sink, SinkHandle, default_atom};
use deser::{Atom, Context, Error, ErrorKind, State};
use deser_hj::{Deserializer, DeserializerConfig};

use super::document::{Json, Member, meant_by, number, short};
use super::message::{Position, Problem, Spot};

/// The maximum nesting depth of a file. DeepSpeed's own settings are less than ten levels deep, and readers of the
/// trace, in which the file is nested inside other objects, accept 128 levels.
const MAX_DEPTH: usize = 64;

/// The length of a key path, in bytes, from which on the path is not extended. Paths that DeepSpeed knows are
/// shorter than 80 bytes.
const MAX_PATH: usize = 200;

/// Parses a file into its top-level members, and adds a problem for each repeated key to `repeated`.
///
/// # Errors
/// Fails with the syntax error at which parsing stops.
pub(super) fn parse(text: &str, repeated: &mut Vec<Problem>) -> Result<Vec<Member>, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut tree = Tree::new(text);
    let result = {
        let mut root = Level { tree: &mut tree, is_container: false };
        let mut driver = DeserializeDriver::from_fn(|_| SinkHandle::to(&mut root));
        driver.set_context(Context::with(Limits::builder().max_depth(MAX_DEPTH).build()));
        let config = DeserializerConfig::builder().exact_numbers(false).build();
        Deserializer::from_str_with_config(text, config).drive(&mut driver)
    };
    if let Err(error) = result {
        return Err(tree.explain(&error));
    }
    repeated.append(&mut tree.repeated);
    match tree.root {
        Some(Json::Object(members)) => Ok(members),
        _ => Err(syntax(
            Position { line: 1, column: 1 },
            "a DeepSpeed configuration is an object: put everything between { and }",
        )),
    }
}

fn syntax(at: Position, text: impl Into<String>) -> Problem {
    Problem::mistake(vec![Spot { path: String::new(), at }], text)
}

/// The state of the parser: the tree as far as it has been built.
struct Tree<'t> {
    text: &'t str,
    /// The objects and lists that are not closed yet, the innermost last.
    open: Vec<Container>,
    root: Option<Json>,
    repeated: Vec<Problem>,
    /// The position of the last key; keys come in the order of the file.
    place: deser::Position,
    /// The last string without quotes that contains a comma or a closing bracket.
    greedy: Option<Greedy>,
}

/// An object or a list that is not closed yet.
struct Container {
    /// The offset of the first byte of the object or list.
    start: usize,
    /// The path of the key that has the object or list as its value.
    path: String,
    content: Content,
}

enum Content {
    Object {
        members: Vec<Member>,
        /// The index of each key in `members`.
        known: HashMap<String, usize>,
        /// The key whose value comes next.
        next: Option<(String, Spot)>,
    },
    List(Vec<Json>),
}

/// A string that includes a comma or a bracket because it has no quotes.
struct Greedy {
    start: usize,
    text: String,
}

impl<'t> Tree<'t> {
    fn new(text: &'t str) -> Self {
        let place = deser::Position::start();
        Self { text, open: Vec::new(), root: None, repeated: Vec::new(), place, greedy: None }
    }

    fn position(&self, offset: usize) -> Position {
        position(deser::Position::of(self.text.as_bytes(), offset))
    }

    fn open(&mut self, content: Content, state: &State) {
        let start = state.input_range().map_or(0, |range| range.start);
        let path = match self.open.last() {
            Some(Container { content: Content::Object { next: Some((_, spot)), .. }, .. }) => {
                spot.path.clone()
            }
            Some(container) => container.path.clone(),
            None => String::new(),
        };
        self.open.push(Container { start, path, content });
    }

    fn close(&mut self) {
        match self.open.pop().map(|container| container.content) {
            Some(Content::Object { members, .. }) => self.put(Json::Object(members)),
            Some(Content::List(values)) => self.put(Json::List(values)),
            None => {}
        }
    }

    fn key(&mut self, key: &str, state: &State) {
        let offset = state.input_range().map_or(self.place.offset, |range| range.start);
        let passed = self.text.as_bytes().get(self.place.offset..offset).unwrap_or_default();
        self.place.advance(passed);
        let at = position(self.place);
        if let Some(Container { path, content: Content::Object { next, .. }, .. }) =
            self.open.last_mut()
        {
            let path = match path.len() {
                0 => short(key),
                // The path is not extended, because the paths of all keys inside begin with it and would grow too.
                MAX_PATH.. => path.clone(),
                _ => format!("{path}.{}", short(key)),
            };
            *next = Some((key.to_owned(), Spot { path, at }));
        }
    }

    fn put(&mut self, value: Json) {
        match self.open.last_mut().map(|container| &mut container.content) {
            None => self.root = Some(value),
            Some(Content::List(values)) => values.push(value),
            Some(Content::Object { members, known, next }) => {
                let Some((key, spot)) = next.take() else { return };
                // DeepSpeed refuses repeated keys at every level (`dict_raise_error_on_duplicate_keys`,
                // `runtime/config_utils.py`).
                if let Some(first) = known.get(&key).and_then(|&first| members.get(first)) {
                    self.repeated.push(Problem::mistake(
                        vec![spot],
                        format!(
                            "this key is already given at {}, and DeepSpeed refuses a key that is \
                             given twice; remove one of the two",
                            first.spot.at
                        ),
                    ));
                } else {
                    known.insert(key.clone(), members.len());
                    members.push(Member { spot, key, value });
                }
            }
        }
    }

    /// Puts a value that the parser returns as a string into the tree.
    fn string(&mut self, value: &str, state: &State) {
        let start = state.input_range().map_or(0, |range| range.start);
        let is_quoted = self.text.get(start..).is_some_and(|it| it.starts_with(['"', '\'']));
        if !is_quoted && value.contains([',', '}', ']']) {
            self.greedy = Some(Greedy { start, text: short(value) });
        }
        // The parser returns a number with more digits than it keeps as a string.
        let number = (!is_quoted).then(|| serde_json::from_str(value).ok()).flatten();
        self.put(number.map_or_else(|| Json::Text(value.to_owned()), Json::Number));
    }

    /// Explains an error of the parser as a problem that says what to change.
    fn explain(&self, error: &Error) -> Problem {
        let at = self.position(error.offset().unwrap_or_default());
        match (error.kind(), self.open.last()) {
            (ErrorKind::LimitExceeded, _) => {
                let text = format!(
                    "more than {MAX_DEPTH} nested objects and lists, but DeepSpeed's \
                     settings are only a few levels deep; remove some levels"
                );
                syntax(at, text)
            }
            (ErrorKind::EndOfFile, None) => syntax(
                Position { line: 1, column: 1 },
                "the file is empty; a DeepSpeed configuration is an object between { and }",
            ),
            (ErrorKind::EndOfFile, Some(container)) => {
                let (what, end) = match container.content {
                    Content::Object { .. } => ("object", '}'),
                    Content::List(_) => ("list", ']'),
                };
                let advice = match &self.greedy {
                    Some(Greedy { start, text }) if *start > container.start => format!(
                        "a string without quotes takes the rest of its line, as {text:?} at {} \
                         does; {}",
                        self.position(*start),
                        meant_by(text).unwrap_or("put it between quotes"),
                    ),
                    _ => format!("add {end}"),
                };
                let text =
                    format!("syntax error: the {what} that starts here is never closed; {advice}");
                syntax(self.position(container.start), text)
            }
            _ => syntax(at, in_words(error.message())),
        }
    }
}

/// Translates a message of the parser into a more helpful message.
fn in_words(message: &str) -> String {
    let more = match message {
        "garbage after input" => "something follows the end of the configuration; remove it",
        "expected colon" => {
            "no colon follows the key that ends here; add `: value`, and put a key that contains a space \
             or a bracket between quotes"
        }
        "expected map key" => "expected a key here; remove this text, or put it between quotes",
        "unexpected end of string" => "this string has no closing quote; add it",
        "unexpected character in string" => {
            "a string between quotes cannot continue on the next line; close it, or write \\n"
        }
        other => other,
    };
    format!("syntax error: {more}")
}

fn position(place: deser::Position) -> Position {
    Position { line: place.line, column: place.column }
}

/// The parser's sink for one value of the tree.
struct Level<'l, 't> {
    tree: &'l mut Tree<'t>,
    is_container: bool,
}

impl<'de> Sink<'de> for Level<'_, '_> {
    fn atom(&mut self, atom: Atom<'_>, state: &mut State) -> Result<(), Error> {
        if let (true, Some(key)) = (state.is_map_key(), atom.as_str()) {
            self.tree.key(key, state);
            return Ok(());
        }
        let atom = match atom {
            Atom::Implicit(inferred) => inferred.value().to_atom(),
            other => other,
        };
        let value = match atom {
            Atom::Null => Json::Null,
            Atom::Bool(value) => Json::Bool(value),
            Atom::U64(value) => Json::Number(value.into()),
            Atom::I64(value) => Json::Number(value.into()),
            // JSON can represent every finite number, and the parser yields only finite numbers.
            Atom::F64(value) => number(value).map_or(Json::Null, Json::Number),
            Atom::Str(text) | Atom::Lexical(text) => {
                self.tree.string(&text, state);
                return Ok(());
            }
            other => return default_atom(self, other, state),
        };
        self.tree.put(value);
        Ok(())
    }

    fn map(&mut self, state: &mut State) -> Result<(), Error> {
        self.is_container = true;
        let (members, known) = (Vec::new(), HashMap::new());
        self.tree.open(Content::Object { members, known, next: None }, state);
        Ok(())
    }

    fn seq(&mut self, state: &mut State) -> Result<(), Error> {
        self.is_container = true;
        self.tree.open(Content::List(Vec::new()), state);
        Ok(())
    }

    fn next_key(&mut self, state: &mut State) -> Result<SinkHandle<'_, 'de>, Error> {
        Ok(SinkHandle::arena(Level { tree: self.tree, is_container: false }, state))
    }

    fn next_value(&mut self, state: &mut State) -> Result<SinkHandle<'_, 'de>, Error> {
        self.next_key(state)
    }

    fn finish(&mut self, _: &mut State) -> Result<(), Error> {
        if self.is_container {
            self.tree.close();
        }
        Ok(())
    }
}
