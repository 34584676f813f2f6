//! Tests that `docs/protocol.md` agrees with the types that it describes.

use schemars::schema_for;
use zprobe_model::trace::contract;
use zprobe_model::trace::{Event, Record, Violation};

const PROTOCOL: &str = include_str!("../../docs/protocol.md");

#[test]
fn every_event_is_in_the_document() {
    let schema = serde_json::to_value(schema_for!(Event)).unwrap();
    let variants = schema["oneOf"].as_array().unwrap();
    assert!(variants.len() > 20);
    for variant in variants {
        let name = variant["properties"]["type"]["const"].as_str().unwrap();
        assert!(PROTOCOL.contains(&format!("| `{name}` |")), "{name} is missing");
    }
}

#[test]
fn every_violation_and_variable_is_in_the_document() {
    for violation in Violation::ALL {
        assert!(PROTOCOL.contains(&format!("| `{violation}` |")), "{violation} is missing");
    }
    let variables = [
        contract::RUN,
        contract::SPEC,
        contract::EVENT_FDS,
        contract::HOST_FD,
        contract::STORE_FD,
        contract::RUN_DIR,
        contract::POOL_FD,
    ];
    for variable in variables {
        assert!(PROTOCOL.contains(&format!("| `{variable}` |")), "{variable} is missing");
    }
}

#[test]
fn the_examples_are_records() {
    let mut examples = 0;
    for block in PROTOCOL.split("```json\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            serde_json::from_str::<Record>(line).unwrap_or_else(|err| panic!("{err}: {line}"));
            examples += 1;
        }
    }
    assert!(examples >= 3);
}

#[test]
fn the_example_program_is_the_fixture() {
    let program = include_str!("../../fixtures/ranks/minimal.py");
    assert!(PROTOCOL.contains(program), "copy fixtures/ranks/minimal.py into docs/protocol.md");
}
