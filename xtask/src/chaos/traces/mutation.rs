//! Damage to a trace: to its bytes, to its lines, and to single fields of its records.

use anyhow::{Context as _, Result};
use fastrand::Rng;
use serde_json::{Map, Value, json};

use crate::chaos::fixtures::{self, Fixture};

/// A trace that is being damaged.
struct Draft {
    lines: Vec<Vec<u8>>,
    rng: Rng,
}

/// A way of damaging a trace.
type Mutation = fn(&mut Draft) -> Result<()>;

/// All ways of damage. Some stand several times, because they leave a text that is still much like a trace:
/// only such texts reach the code after the reader.
const MUTATIONS: &[Mutation] = &[
    Draft::flip_bits,
    Draft::drop_line,
    Draft::drop_buffer,
    Draft::drop_several,
    Draft::repeat_line,
    Draft::swap_lines,
    Draft::cut_off,
    Draft::lose_bytes,
    Draft::insert_junk,
    Draft::mix_with_another,
    Draft::damage_payload,
    Draft::damage_payload,
    Draft::change_field,
    Draft::change_field,
    Draft::nudge_a_number,
    Draft::nudge_a_number,
    Draft::nudge_a_number,
    Draft::nudge_a_number,
    Draft::exchange_contents,
    Draft::exchange_contents,
    Draft::exchange_contents,
    Draft::change_sender,
    Draft::remove_field,
    Draft::add_field,
    Draft::nest_deeply,
    Draft::write_a_number_that_is_none,
];

/// Numbers that break programs.
const NUMBERS: &[f64] = &[
    -1.0,
    0.0,
    -0.0,
    0.5,
    1.0,
    2.0,
    3.0,
    7.0,
    255.0,
    65535.0,
    65536.0,
    4_294_967_295.0,
    1e15,
    9.3e18,
    1e19,
    1e308,
    -1e308,
    5e-324,
];

/// Integers that break programs.
const INTEGERS: &[u64] =
    &[1, 2, 3, 4, 63, 64, 1 << 16, 1 << 32, 1 << 40, 1 << 53, 1 << 63, u64::MAX];

/// Texts that break programs.
const TEXTS: &[&str] = &[
    "",
    "\0",
    "\u{1b}]52;c;aGVsbG8=\u{7}",
    "\u{202e}gnp.exe",
    "../../../../etc/passwd",
    "</script><script>alert(1)</script>",
    "::error::injected",
    "%s%s%s%n",
    "\u{10ffff}\u{feff}\u{2028}",
    "NaN",
    "1.11.111.1111+local",
    "optimizer-input",
    "partition",
];

/// The trace with one to three kinds of damage.
pub fn mutate(fixture: &Fixture, rng: &mut Rng) -> Result<Vec<u8>> {
    let lines = fixture.lines.iter().map(|line| line.clone().into_bytes()).collect();
    let mut draft = Draft { lines, rng: rng.fork() };
    for _ in 0..draft.rng.usize(1..=3) {
        let mutation = MUTATIONS[draft.rng.usize(..MUTATIONS.len())];
        mutation(&mut draft)?;
    }
    let mut text = draft.lines.join(&b'\n');
    // Some traces end within a line, as if writing had been cut off.
    if draft.rng.u8(..20) > 0 {
        text.push(b'\n');
    }
    Ok(text)
}

impl Draft {
    fn flip_bits(&mut self) -> Result<()> {
        for _ in 0..self.rng.usize(1..=8) {
            let line = self.any();
            let length = self.lines[line].len();
            if length > 0 {
                let (byte, bit) = (self.rng.usize(..length), self.rng.u8(..8));
                self.lines[line][byte] ^= 1 << bit;
            }
        }
        Ok(())
    }

    fn drop_line(&mut self) -> Result<()> {
        let line = self.any();
        self.lines.remove(line);
        self.never_empty();
        Ok(())
    }

    fn drop_buffer(&mut self) -> Result<()> {
        let buffers = self.lines_with(r#""type":"buffer""#);
        if !buffers.is_empty() {
            let line = buffers[self.rng.usize(..buffers.len())];
            self.lines.remove(line);
            self.never_empty();
        }
        Ok(())
    }

    fn drop_several(&mut self) -> Result<()> {
        let first = self.any();
        let last = (first + self.rng.usize(1..=40)).min(self.lines.len());
        self.lines.drain(first..last);
        self.never_empty();
        Ok(())
    }

    fn repeat_line(&mut self) -> Result<()> {
        let (from, to) = (self.any(), self.any());
        let line = self.lines[from].clone();
        self.lines.insert(to, line);
        Ok(())
    }

    fn swap_lines(&mut self) -> Result<()> {
        let (one, other) = (self.any(), self.any());
        self.lines.swap(one, other);
        Ok(())
    }

    fn cut_off(&mut self) -> Result<()> {
        let line = self.any();
        let length = self.rng.usize(..=self.lines[line].len());
        self.lines[line].truncate(length);
        self.lines.truncate(line + 1);
        Ok(())
    }

    fn lose_bytes(&mut self) -> Result<()> {
        let line = self.any();
        let first = self.rng.usize(..=self.lines[line].len());
        let last = (first + self.rng.usize(1..=64)).min(self.lines[line].len());
        self.lines[line].drain(first..last);
        Ok(())
    }

    fn insert_junk(&mut self) -> Result<()> {
        let junk = match self.rng.u8(..6) {
            0 => Vec::new(),
            1 => b"\xef\xbb\xbf".to_vec(),
            2 => (0..200).map(|_| self.rng.u8(..)).filter(|byte| *byte != b'\n').collect(),
            3 => b"{}\r".to_vec(),
            4 => vec![b'x'; 1 << 20],
            _ => b"null".to_vec(),
        };
        let line = self.any();
        self.lines.insert(line, junk);
        Ok(())
    }

    fn mix_with_another(&mut self) -> Result<()> {
        let all = fixtures::all()?;
        let other = &all[self.rng.usize(..all.len())];
        for _ in 0..self.rng.usize(1..=5) {
            let from = self.rng.usize(..other.lines.len());
            let to = self.any();
            self.lines[to] = other.lines[from].clone().into_bytes();
        }
        Ok(())
    }

    fn damage_payload(&mut self) -> Result<()> {
        let buffers = self.lines_with(r#""type":"buffer""#);
        if buffers.is_empty() {
            return Ok(());
        }
        let line = buffers[self.rng.usize(..buffers.len())];
        let Ok(mut record) = serde_json::from_slice::<Value>(&self.lines[line]) else {
            return Ok(());
        };
        let payload = &mut record["event"]["payload"];
        let data = payload["data"].as_str().unwrap_or_default().to_owned();
        let half = &data[..data.len() / 8 * 4];
        match self.rng.u8(..7) {
            0 => payload["data"] = json!(half),
            1 => {
                payload["data"] = json!(half);
                let elements = payload["numel"].as_u64().unwrap_or(0) / 2;
                payload["numel"] = json!(elements);
            }
            2 => payload["data"] = json!(data.replacen('A', "*", 1)),
            3 => payload["data"] = json!(data.replace('A', "f")),
            // The bytes are infinities and NaN of every dtype.
            4 => payload["data"] = json!("gH+AfwB8AH7/f/9/".repeat(data.len() / 16)),
            5 => payload["dtype"] = json!(["bf16", "fp16", "fp32"][self.rng.usize(..3)]),
            _ => payload["digest"] = json!(TEXTS[self.rng.usize(..TEXTS.len())]),
        }
        self.lines[line] = record.to_string().into_bytes();
        Ok(())
    }

    fn change_field(&mut self) -> Result<()> {
        self.at_a_field(|rng, value| {
            let other_kind = rng.u8(..5) == 0;
            *value = match value {
                Value::Number(_) if !other_kind => number(rng),
                Value::String(_) if !other_kind => json!(text(rng)),
                Value::Bool(flag) if !other_kind => json!(!*flag),
                Value::Array(items) if !other_kind => altered(rng, items),
                _ => anything(rng),
            };
        })
    }

    /// Changes a number to another plausible one.
    fn nudge_a_number(&mut self) -> Result<()> {
        self.at_a_field(|rng, value| {
            if let Some(number) = value.as_u64() {
                let near = [
                    0,
                    number.saturating_add(1),
                    number.saturating_sub(1),
                    number.saturating_mul(2),
                    number / 2,
                ];
                *value = json!(near[rng.usize(..near.len())]);
            } else if let Some(number) = value.as_f64() {
                *value = json!([-number, number * 2.0, number + 1.0, 0.0][rng.usize(..4)]);
            }
        })
    }

    /// Exchanges the contents of two records of the same kind.
    fn exchange_contents(&mut self) -> Result<()> {
        let Some((one, mut record)) = self.record()? else { return Ok(()) };
        let kind = format!(r#""type":"{}""#, record["event"]["type"].as_str().unwrap_or_default());
        let others = self.lines_with(&kind);
        if others.is_empty() {
            return Ok(());
        }
        let other = others[self.rng.usize(..others.len())];
        let Ok(mut second) = serde_json::from_slice::<Value>(&self.lines[other]) else {
            return Ok(());
        };
        let place = ["/event", "/event/payload", "/event/segments", "/event/params", "/rank"];
        let place = place[self.rng.usize(..place.len())];
        if let (Some(a), Some(b)) = (record.pointer_mut(place), second.pointer_mut(place)) {
            std::mem::swap(a, b);
        }
        self.lines[one] = record.to_string().into_bytes();
        self.lines[other] = second.to_string().into_bytes();
        Ok(())
    }

    fn change_sender(&mut self) -> Result<()> {
        let Some((line, mut record)) = self.record()? else { return Ok(()) };
        record["rank"] = [json!(0), json!(1), json!(2), json!(1 << 20), Value::Null]
            [self.rng.usize(..5)]
        .clone();
        self.lines[line] = record.to_string().into_bytes();
        Ok(())
    }

    fn remove_field(&mut self) -> Result<()> {
        self.at_an_object(|rng, fields| {
            let names: Vec<String> = fields.keys().cloned().collect();
            if !names.is_empty() {
                fields.remove(&names[rng.usize(..names.len())]);
            }
        })
    }

    fn add_field(&mut self) -> Result<()> {
        self.at_an_object(|rng, fields| {
            let name = text(rng);
            fields.insert(name, anything(rng));
        })
    }

    fn nest_deeply(&mut self) -> Result<()> {
        let depth = [10, 120, 1000, 100_000][self.rng.usize(..4)];
        let (open, close) = [("[", "]"), (r#"{"a":"#, "}")][self.rng.usize(..2)];
        let inside = if open == "[" { "" } else { "0" };
        let nested = open.repeat(depth) + inside + &close.repeat(depth);
        self.with_raw_value(&nested)
    }

    fn write_a_number_that_is_none(&mut self) -> Result<()> {
        let texts = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1E+", "0x10", "01", "1_0"];
        let long = "9".repeat(400);
        let mut texts = texts.to_vec();
        texts.push(&long);
        let text = texts[self.rng.usize(..texts.len())];
        self.with_raw_value(text)
    }

    /// Replaces a field's value by a text that need not be JSON.
    fn with_raw_value(&mut self, text: &str) -> Result<()> {
        const PLACE: &str = "@@place@@";
        self.at_a_field(|_, value| *value = json!(PLACE))?;
        let place = format!("\"{PLACE}\"");
        for line in &mut self.lines {
            if let Some(at) = line.windows(place.len()).position(|it| it == place.as_bytes()) {
                line.splice(at..at + place.len(), text.bytes());
            }
        }
        Ok(())
    }

    /// Changes a value somewhere inside a record. The kind of the record is drawn first, so that rare kinds
    /// are drawn as often as others.
    fn at_a_field(&mut self, change: impl FnOnce(&mut Rng, &mut Value)) -> Result<()> {
        let Some((line, mut record)) = self.record()? else { return Ok(()) };
        let mut value = &mut record;
        loop {
            let stop = self.rng.u8(..4) == 0;
            let inner = match &*value {
                Value::Object(fields) => fields.len(),
                Value::Array(items) => items.len(),
                _ => 0,
            };
            if inner == 0 || (stop && value.get("v").is_none()) {
                break;
            }
            let at = self.rng.usize(..inner);
            value = match value {
                Value::Object(fields) => fields.values_mut().nth(at).context("no such field")?,
                Value::Array(items) => &mut items[at],
                _ => break,
            };
        }
        change(&mut self.rng, value);
        self.lines[line] = record.to_string().into_bytes();
        Ok(())
    }

    /// Changes an object: the event, the specification in the event, or the record itself.
    fn at_an_object(
        &mut self,
        change: impl FnOnce(&mut Rng, &mut Map<String, Value>),
    ) -> Result<()> {
        let Some((line, mut record)) = self.record()? else { return Ok(()) };
        let places = ["/event", "/event/spec", "/event/payload", "/event/spec/optimizer", ""];
        let drawn = places[self.rng.usize(..places.len())];
        let place = if record.pointer(drawn).is_some() { drawn } else { "/event" };
        if let Some(Value::Object(fields)) = record.pointer_mut(place) {
            change(&mut self.rng, fields);
        }
        self.lines[line] = record.to_string().into_bytes();
        Ok(())
    }

    /// A record of a kind that is drawn first, with the number of its line; `None` if the line is no longer a
    /// record.
    fn record(&mut self) -> Result<Option<(usize, Value)>> {
        let kind = |line: &[u8]| {
            let text = String::from_utf8_lossy(line);
            Some(text.split_once(r#""type":""#)?.1.split_once('"')?.0.to_owned())
        };
        let mut kinds: Vec<String> = self.lines.iter().filter_map(|line| kind(line)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.is_empty() {
            return Ok(None);
        }
        let drawn = Some(&kinds[self.rng.usize(..kinds.len())]);
        let lines = self.lines.iter().enumerate();
        let lines = lines.filter(|(_, line)| kind(line).as_ref() == drawn).map(|(at, _)| at);
        let lines: Vec<usize> = lines.collect();
        let line = lines[self.rng.usize(..lines.len())];
        Ok(serde_json::from_slice(&self.lines[line]).ok().map(|record| (line, record)))
    }

    fn lines_with(&self, part: &str) -> Vec<usize> {
        let has = |line: &Vec<u8>| String::from_utf8_lossy(line).contains(part);
        (0..self.lines.len()).filter(|at| has(&self.lines[*at])).collect()
    }

    /// The number of a random line.
    fn any(&mut self) -> usize {
        self.rng.usize(..self.lines.len())
    }

    /// Makes sure that the trace has at least one line, if only an empty one.
    fn never_empty(&mut self) {
        if self.lines.is_empty() {
            self.lines.push(Vec::new());
        }
    }
}

fn number(rng: &mut Rng) -> Value {
    if rng.bool() {
        json!(INTEGERS[rng.usize(..INTEGERS.len())])
    } else {
        json!(NUMBERS[rng.usize(..NUMBERS.len())])
    }
}

fn text(rng: &mut Rng) -> String {
    match rng.u8(..8) {
        0 => "long ".repeat(1 << 16),
        1 => (0..20).map(|_| rng.char(..)).collect(),
        _ => TEXTS[rng.usize(..TEXTS.len())].to_owned(),
    }
}

fn anything(rng: &mut Rng) -> Value {
    match rng.u8(..6) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 => number(rng),
        3 => json!(text(rng)),
        4 => json!([]),
        _ => json!({"type": text(rng)}),
    }
}

/// A copy of a list that is shorter, longer or in another order.
fn altered(rng: &mut Rng, items: &[Value]) -> Value {
    let mut items = items.to_vec();
    match rng.u8(..5) {
        0 => items.clear(),
        1 => drop(items.pop()),
        2 => items.extend(items.clone()),
        3 => items.reverse(),
        _ => items.push(anything(rng)),
    }
    Value::Array(items)
}
