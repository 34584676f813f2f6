//! DeepSpeed files: real ones with one thing changed, and texts that are hardly DeepSpeed files.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::{OF_A_RUN, Question, run};
use crate::chaos::Case;
use crate::workspace;

/// Names of valid DeepSpeed files in fixtures/deepspeed.
const BASES: &[&str] = &[
    "no_zero_section.json",
    "zero1_bf16_accumulator.json",
    "zero2_offload_fp16.json",
    "zero3_fp16_old_offload.json",
];

/// Keys that DeepSpeed has, and some that it does not have.
const KEYS: &[&str] = &[
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_optimization",
    "zero_optimization.stage",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.overlap_comm",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_optimizer.device",
    "bf16",
    "bf16.enabled",
    "fp16",
    "fp16.enabled",
    "fp16.loss_scale",
    "fp16.initial_scale_power",
    "optimizer",
    "optimizer.type",
    "optimizer.params.lr",
    "data_types.grad_accum_dtype",
    "communication_data_type",
    "zero_optimisation",
    "zero_optimization.stages",
    "ключ",
    "a.b.c.d",
    "__proto__",
];

/// The call of `zprobe run` on a valid DeepSpeed file in which one key was changed, added or removed.
pub fn file(case: &mut Case) -> Result<Question> {
    let path = workspace::root().join("fixtures/deepspeed").join(*case.one_of(BASES));
    let text = fs::read_to_string(&path).with_context(|| format!("no file {}", path.display()))?;
    let mut document: Value = serde_json::from_str(&text).context("the file is no plain JSON")?;
    let key = *case.one_of(KEYS);
    let value = strange(case);
    let changed = put(&mut document, key, value);
    let text = if case.rng.bool() { document.to_string() } else { format!("{document:#}") };
    // A message may name the section if the section itself is wrong.
    let section = key.split('.').next().unwrap_or(key);
    ask(case, text.as_bytes(), changed.then(|| section.to_owned()))
}

/// The call of `zprobe run` on a text with too little or too much of a DeepSpeed file.
pub fn text(case: &mut Case) -> Result<Question> {
    let depth = *case.one_of(&[100, 1000, 100_000]);
    let text = match case.rng.u8(..14) {
        0 => Vec::new(),
        1 => b"\xff\xfe{\x00}\x00".to_vec(),
        2 => b"\xef\xbb\xbf{}".to_vec(),
        3 => "[".repeat(depth).into_bytes(),
        4 => format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth)).into_bytes(),
        5 => format!(r#"{{"train_batch_size": {}}}"#, "9".repeat(depth)).into_bytes(),
        6 => format!(r#"{{"{}": 1}}"#, "k".repeat(10 * depth)).into_bytes(),
        7 => format!(r#"{{"optimizer": {{"type": "{}"}}}}"#, "v".repeat(10 * depth)).into_bytes(),
        8 => b"{train_batch_size: 8\n # a comment\n zero_optimization: {stage: 1}}".to_vec(),
        9 => b"{'train_batch_size': 8, /* open".to_vec(),
        10 => (0..case.rng.usize(..400)).map(|_| case.rng.u8(..)).collect(),
        11 => (0..depth / 10).flat_map(|n| format!("{{\"key{n}\": [").into_bytes()).collect(),
        12 => {
            let keys: Vec<String> = (0..depth / 10).map(|n| format!("\"key {n}\": {n}")).collect();
            format!("{{{}}}", keys.join(",\n")).into_bytes()
        }
        _ => format!("{}{{}}", "/* no end */ ".repeat(depth)).into_bytes(),
    };
    ask(case, &text, None)
}

fn ask(case: &mut Case, text: &[u8], named: Option<String>) -> Result<Question> {
    fs::write(case.dir.join("ds.json"), text).context("cannot write a DeepSpeed file")?;
    let engine = if case.rng.u8(..4) == 0 { "deepspeed" } else { "native" };
    let call = run(case)?.args(["--engine", engine, "--deepspeed-config", "ds.json"]);
    Ok(Question { call, named, codes: OF_A_RUN })
}

/// Puts a value at a dotted key, and replaces anything in between that is no object; `None` removes the key.
/// Returns true if the key existed and the document has changed.
fn put(document: &mut Value, key: &str, value: Option<Value>) -> bool {
    let before = document.clone();
    let mut parts: Vec<&str> = key.split('.').collect();
    let last = parts.pop().unwrap_or(key);
    let mut place = &mut *document;
    for part in parts {
        if !place[part].is_object() {
            place[part] = Value::Object(Map::new());
        }
        place = &mut place[part];
    }
    match (value, place.as_object_mut()) {
        (Some(value), _) => place[last] = value,
        (None, Some(fields)) => drop(fields.remove(last)),
        (None, None) => {}
    }
    // Other keys may contradict a key that was added.
    *document != before && before.pointer(&format!("/{}", key.replace('.', "/"))).is_some()
}

/// A value that few keys take; `None` for no value at all.
fn strange(case: &mut Case) -> Option<Value> {
    Some(match case.rng.u8(..20) {
        0 => return None,
        1 => Value::Null,
        2 => json!(true),
        3 => json!(-1),
        4 => json!(0),
        5 => json!(1.5),
        6 => json!(1e308),
        7 => json!(u64::MAX),
        8 => json!("auto"),
        9 => json!(""),
        10 => json!("x".repeat(1 << 20)),
        11 => json!([]),
        12 => json!({}),
        13 => json!([{"enabled": [true]}]),
        14 => json!({"enabled": "yes"}),
        15 => json!("\u{1b}]0;title\u{7}\u{202e}"),
        16 => json!((0..20).map(|_| case.rng.char(..)).collect::<String>()),
        17 => json!(case.rng.u64(..)),
        18 => json!(vec![0; 10_000]),
        _ => json!("fp16"),
    })
}
