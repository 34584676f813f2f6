//! Parses the text of a DeepSpeed file as DeepSpeed reads it, and remembers the places of the keys.
//!
//! DeepSpeed reads its file with `hjson.load` (`DeepSpeedConfig.__init__` in `runtime/config.py`). Therefore
//! comments (`//`, `#`, `/* */`), keys and strings without quotes, single quotes, extra or missing commas, and an
//! object without its braces are legal.

use std::collections::BTreeMap;

use deser::de::{DeserializeDriver, Limits, Sink, SinkHandle, default_atom};
use deser::{Atom, Context, Error, ErrorKind, State};
use deser_hj::{Deserializer, DeserializerConfig};
use serde_json::{Map, Value};

use super::number;

/// The maximum nesting depth of a file. DeepSpeed's own settings are less than ten levels deep, and readers of the
/// trace, in which the file is nested inside other objects, accept 128 levels.
const MAX_DEPTH: usize = 64;

/// The number of levels of keys that have a path of their own. Messages name deeper keys by the path of a key above.
const NAMED_LEVELS: usize = 3;

/// A parsed DeepSpeed file.
#[derive(Clone, Debug)]
pub(super) struct Parsed {
    /// The whole content of the file, an object.
    pub content: Value,
    /// The offset in the text of each key, by its path, as in `/zero_optimization/stage`.
    pub places: BTreeMap<String, usize>,
    /// The paths of the keys that are given more than once. Their place is that of the last repetition.
    pub repeated: Vec<String>,
}

/// Parses the text of a file.
///
/// # Errors
/// Fails with the offset of the syntax error at which parsing stops, and its description.
pub(super) fn parse(text: &str) -> Result<Parsed, (usize, String)> {
    let parsed = Parsed { content: Value::Null, places: BTreeMap::new(), repeated: Vec::new() };
    let mut tree = Tree { text, open: Vec::new(), greedy: None, parsed };
    let result = {
        let mut root = Level { tree: &mut tree, is_container: false };
        let mut driver = DeserializeDriver::from_fn(|_| SinkHandle::to(&mut root));
        driver.set_context(Context::with(Limits::builder().max_depth(MAX_DEPTH).build()));
        let config = DeserializerConfig::builder().exact_numbers(false).build();
        Deserializer::from_str_with_config(text, config).drive(&mut driver)
    };
    match result {
        Err(error) => Err(tree.explain(&error)),
        Ok(()) if tree.parsed.content.is_object() => Ok(tree.parsed),
        Ok(()) => Err((
            0,
            "a DeepSpeed configuration is an object: put everything between { and }".into(),
        )),
    }
}

/// The path of the key `key` inside of the object at `parent`.
pub(super) fn path(parent: &str, key: &str) -> String {
    format!("{parent}/{}", short(key))
}

/// The text, or its beginning if the text is too long for a message.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The advice about a Python literal in place of one of JSON; `None` for other texts.
pub(super) fn python_literal(text: &str) -> Option<&'static str> {
    // A string without quotes extends to the end of the line.
    match text.trim_end_matches([',', '}', ']', ' ']) {
        "True" => Some("write true"),
        "False" => Some("write false"),
        "None" => Some("write null"),
        _ => None,
    }
}

/// The state of the parser.
struct Tree<'t> {
    text: &'t str,
    /// The objects and lists that are not closed yet, the innermost last.
    open: Vec<Open>,
    /// The last string without quotes that contains a comma or a closing bracket, with its offset.
    greedy: Option<(usize, String)>,
    parsed: Parsed,
}

/// An object or a list that is not closed yet.
struct Open {
    start: usize,
    path: String,
    value: Value,
    /// The key of the next value.
    key: String,
}

impl Tree<'_> {
    fn open(&mut self, value: Value, state: &State) {
        let path = match self.open.last() {
            Some(above) if self.open.len() <= NAMED_LEVELS && above.value.is_object() => {
                path(&above.path, &above.key)
            }
            Some(above) => above.path.clone(),
            None => String::new(),
        };
        self.open.push(Open { start: start(state), path, value, key: String::new() });
    }

    fn key(&mut self, key: &str, start: usize) {
        let is_named = self.open.len() <= NAMED_LEVELS;
        let Some(Open { path: above, value: Value::Object(members), key: next, .. }) =
            self.open.last_mut()
        else {
            return;
        };
        // DeepSpeed refuses repeated keys at every level (`dict_raise_error_on_duplicate_keys`,
        // `runtime/config_utils.py`).
        let is_repeated = members.contains_key(key);
        if is_repeated || is_named {
            let path = path(above, key);
            self.parsed.places.insert(path.clone(), start);
            self.parsed.repeated.extend(is_repeated.then_some(path));
        }
        key.clone_into(next);
    }

    fn put(&mut self, value: Value) {
        match self.open.last_mut() {
            Some(Open { value: Value::Object(members), key, .. }) => {
                members.insert(std::mem::take(key), value);
            }
            Some(Open { value: Value::Array(values), .. }) => values.push(value),
            _ => self.parsed.content = value,
        }
    }

    /// Puts a value that the parser returns as a string into the tree.
    fn string(&mut self, value: &str, start: usize) {
        let is_quoted = self.text.get(start..).is_some_and(|it| it.starts_with(['"', '\'']));
        if !is_quoted && value.contains([',', '}', ']']) {
            self.greedy = Some((start, short(value)));
        }
        // The parser returns a number with more digits than it keeps as a string.
        let number = (!is_quoted).then(|| serde_json::from_str(value).ok()).flatten();
        self.put(number.map_or_else(|| value.into(), Value::Number));
    }

    /// Explains an error of the parser: its offset, and what to change.
    fn explain(&self, error: &Error) -> (usize, String) {
        let at = error.offset().unwrap_or_default();
        match (error.kind(), self.open.last()) {
            (ErrorKind::LimitExceeded, _) => {
                (at, format!("more than {MAX_DEPTH} nested objects and lists; remove some levels"))
            }
            (ErrorKind::EndOfFile, None) => (
                0,
                "the file is empty; a DeepSpeed configuration is an object between { and }".into(),
            ),
            (ErrorKind::EndOfFile, Some(Open { start, value, .. })) => {
                let advice = match &self.greedy {
                    Some((place, text)) if place > start => format!(
                        "a string without quotes takes the rest of its line, as {text:?} does; {}",
                        python_literal(text).unwrap_or("put it between quotes"),
                    ),
                    _ => format!("add {}", if value.is_object() { '}' } else { ']' }),
                };
                (
                    *start,
                    format!("syntax error: the bracket that starts here is never closed; {advice}"),
                )
            }
            _ => (at, format!("syntax error: {}", error.message())),
        }
    }
}

/// The offset of the first byte of the current value.
fn start(state: &State) -> usize {
    state.input_range().map_or(0, |range| range.start)
}

/// The parser's sink for one value of the tree.
struct Level<'l, 't> {
    tree: &'l mut Tree<'t>,
    is_container: bool,
}

impl<'de> Sink<'de> for Level<'_, '_> {
    fn atom(&mut self, atom: Atom<'_>, state: &mut State) -> Result<(), Error> {
        if let (true, Some(key)) = (state.is_map_key(), atom.as_str()) {
            self.tree.key(key, start(state));
            return Ok(());
        }
        let atom = match atom {
            Atom::Implicit(inferred) => inferred.value().to_atom(),
            other => other,
        };
        let value = match atom {
            Atom::Null => Value::Null,
            Atom::Bool(value) => value.into(),
            Atom::U64(value) => value.into(),
            Atom::I64(value) => value.into(),
            // JSON can represent every finite number, and the parser yields only finite numbers.
            Atom::F64(value) => number(value).into(),
            Atom::Str(text) | Atom::Lexical(text) => {
                self.tree.string(&text, start(state));
                return Ok(());
            }
            other => return default_atom(self, other, state),
        };
        self.tree.put(value);
        Ok(())
    }

    fn map(&mut self, state: &mut State) -> Result<(), Error> {
        self.is_container = true;
        self.tree.open(Map::new().into(), state);
        Ok(())
    }

    fn seq(&mut self, state: &mut State) -> Result<(), Error> {
        self.is_container = true;
        self.tree.open(Value::Array(Vec::new()), state);
        Ok(())
    }

    fn next_key(&mut self, state: &mut State) -> Result<SinkHandle<'_, 'de>, Error> {
        Ok(SinkHandle::arena(Level { tree: self.tree, is_container: false }, state))
    }

    fn next_value(&mut self, state: &mut State) -> Result<SinkHandle<'_, 'de>, Error> {
        self.next_key(state)
    }

    fn finish(&mut self, _: &mut State) -> Result<(), Error> {
        if self.is_container
            && let Some(Open { value, .. }) = self.tree.open.pop()
        {
            self.tree.put(value);
        }
        Ok(())
    }
}
