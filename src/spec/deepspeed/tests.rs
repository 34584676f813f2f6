//! Files as people write them, and what they are told.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::spec::{Dataflow, Engine, Optimizer, RunSpec};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/deepspeed")
}

fn fixture(name: &str) -> String {
    fs::read_to_string(fixtures().join(name)).expect("a fixture")
}

/// What `text` says to a person: notes, or the error.
fn told(text: &str, mut request: SpecRequest) -> String {
    match DeepSpeedConfig::parse(text, "ds.json").and_then(|config| config.apply(&mut request)) {
        Ok(notes) => notes.iter().map(|note| format!("{note}\n")).collect(),
        Err(error) => error.to_string(),
    }
}

fn applied(text: &str, mut request: SpecRequest) -> SpecRequest {
    let config = DeepSpeedConfig::parse(text, "ds.json").expect("no syntax error");
    config.apply(&mut request).unwrap_or_else(|error| panic!("{error}"));
    request
}

fn resolved(text: &str) -> RunSpec {
    applied(text, SpecRequest::default()).resolve().expect("a run")
}

#[test]
fn zero1_with_fp32_accumulation_becomes_the_accumulator_dataflow() {
    let spec = resolved(&fixture("zero1_bf16_accumulator.json"));
    assert_eq!(spec.stage, 1);
    assert_eq!(spec.dtype, Dtype::Bf16);
    assert_eq!(spec.grad_accum_dtype, Dtype::Fp32);
    assert_eq!(spec.comm_dtype, Some(Dtype::Fp32));
    assert_eq!(spec.dataflow, Some(Dataflow::Accumulator));
    assert_eq!(spec.world_size, 2);
    assert_eq!(spec.gradient_accumulation_steps, 4);
    assert_eq!(spec.micro_batch_size, 4);
    assert_eq!(spec.reduce_bucket_size, 200_000_000);
}

#[test]
fn what_healthy_files_are_told() {
    for name in ["zero1_bf16_accumulator", "hugging_face_auto", "old_names"] {
        let text = fixture(&format!("{name}.json"));
        resolved(&text);
        insta::assert_snapshot!(name, told(&text, SpecRequest::default()));
    }
}

#[test]
fn comments_bare_keys_and_loose_commas_are_no_surprise() {
    let text = fixture("commented.json");
    assert_eq!(told(&text, SpecRequest::default()), "");
    let spec = resolved(&text);
    // 12 = 2 × 3 × 2 ranks.
    assert_eq!((spec.world_size, spec.gradient_accumulation_steps), (2, 3));
    assert_eq!(spec.reduce_bucket_size, 500_000_000);
    let adamw = Optimizer::Adamw { lr: 3e-4, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.01 };
    assert_eq!(spec.optimizer, adamw);
}

#[test]
fn what_broken_files_are_told() {
    let mut names: Vec<String> = fs::read_dir(fixtures().join("broken"))
        .expect("the folder of broken files")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    for file in names {
        let text = fixture(&format!("broken/{file}"));
        let mut request = SpecRequest::default();
        let error = DeepSpeedConfig::parse(&text, &file)
            .and_then(|config| config.apply(&mut request))
            .expect_err(&file);
        insta::assert_snapshot!(file.trim_end_matches(".json"), error);
    }
}

#[test]
fn zero2_with_offload_names_everything_that_is_not_there_yet() {
    let text = fixture("zero2_offload_fp16.json");
    let error = told(&text, SpecRequest::default());
    assert!(error.contains("stage 2 is not there yet"));
    insta::assert_snapshot!(error);
}

#[test]
fn unreadable_files_are_named() {
    let path = fixtures().join("no_such_file.json");
    let error = DeepSpeedConfig::read(&path).expect_err("no file").to_string();
    assert!(error.starts_with(&path.display().to_string()), "{error}");
}

#[test]
fn flags_settle_what_the_file_asks_for_in_vain() {
    let text = r#"{
        "train_batch_size": 8, "fp16": { "enabled": true },
        "zero_optimization": { "stage": 2 }, "optimizer": { "type": "Lion" }
    }"#;
    let request = SpecRequest {
        stage: Some(1),
        dtype: Some(Dtype::Bf16),
        optimizer: Some(Optimizer::EXACT_SGD),
        ..SpecRequest::default()
    };
    let request = applied(text, request);
    assert_eq!(request.stage, Some(1));
    assert_eq!(request.dtype, Some(Dtype::Bf16));
    assert_eq!(request.grad_accum_dtype, Some(Dtype::Bf16));
}

#[test]
fn another_engine_may_have_what_the_native_one_lacks() {
    let request = SpecRequest { engine: Some(Engine::DeepSpeed), ..SpecRequest::default() };
    let request = applied(&fixture("zero2_offload_fp16.json"), request);
    assert_eq!(request.stage, Some(2));
    assert_eq!(request.dtype, Some(Dtype::Fp16));
    // 8 samples in one microbatch over 2 ranks.
    assert_eq!(request.micro_batch_size, Some(4));
    assert_eq!(request.gradient_accumulation_steps, Some(1));
}

#[test]
fn narrow_accumulation_is_the_native_engines_lack_and_a_flags_choice() {
    let text = r#"{
        "train_batch_size": 8, "zero_optimization": { "stage": 1 },
        "data_types": { "grad_accum_dtype": "bf16" }
    }"#;
    insta::assert_snapshot!("narrow_accumulation", told(text, SpecRequest::default()));
    let wide = SpecRequest { grad_accum_dtype: Some(Dtype::Fp32), ..SpecRequest::default() };
    assert_eq!(applied(text, wide).grad_accum_dtype, Some(Dtype::Fp32));
    let elsewhere = SpecRequest { engine: Some(Engine::DeepSpeed), ..SpecRequest::default() };
    assert_eq!(applied(text, elsewhere).grad_accum_dtype, Some(Dtype::Bf16));
}

#[test]
fn a_stage_of_the_wrong_type_is_one_mistake_and_not_stage_0() {
    for zero in [r#"{ "stage": "one" }"#, "[1]"] {
        let text = format!(r#"{{ "train_batch_size": 8, "zero_optimization": {zero} }}"#);
        let error = told(&text, SpecRequest::default());
        assert!(error.contains(": 1 mistake\n"), "{error}");
    }
}

#[test]
fn a_refused_file_leaves_the_request_alone() {
    let mut request = SpecRequest::default();
    let config = DeepSpeedConfig::parse(&fixture("zero2_offload_fp16.json"), "ds.json");
    config.expect("no syntax error").apply(&mut request).expect_err("stage 2");
    assert_eq!(format!("{request:?}"), format!("{:?}", SpecRequest::default()));
}

#[test]
fn defaults_are_deepspeeds_where_the_file_is_silent() {
    let spec = resolved(
        r#"{ "train_batch_size": 8, "bf16": { "enabled": true }, "zero_optimization": { "stage": 1 } }"#,
    );
    assert_eq!(spec.grad_accum_dtype, Dtype::Bf16);
    assert_eq!(spec.comm_dtype, Some(Dtype::Bf16));
    assert_eq!(spec.dataflow, Some(Dataflow::IpgBucket));
    assert_eq!(spec.reduce_bucket_size, 500_000_000);
    assert_eq!((spec.micro_batch_size, spec.gradient_accumulation_steps), (4, 1));

    let spec = resolved(r#"{ "train_batch_size": 8, "zero_optimization": { "stage": 1 } }"#);
    assert_eq!(spec.dtype, Dtype::Fp32);
}

#[test]
fn accumulating_in_fp32_does_not_make_ranks_communicate_in_fp32() {
    let spec = resolved(
        r#"{ "train_batch_size": 8, "bf16": { "enabled": true },
             "data_types": { "grad_accum_dtype": "float32" }, "zero_optimization": { "stage": 1 } }"#,
    );
    assert_eq!(spec.dataflow, Some(Dataflow::Accumulator));
    assert_eq!(spec.comm_dtype, Some(Dtype::Bf16));
}

#[test]
fn adam_is_adamw_unless_it_says_otherwise() {
    let optimizer = |section: &str| {
        resolved(&format!(
            r#"{{ "train_batch_size": 8, "zero_optimization": {{ "stage": 1 }}, "optimizer": {section} }}"#
        ))
        .optimizer
    };
    let adamw =
        |weight_decay| Optimizer::Adamw { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weight_decay };
    assert_eq!(optimizer(r#"{ "type": "Adam" }"#), adamw(0.0));
    assert_eq!(optimizer(r#"{ "type": "ADAMW", "params": { "weight_decay": 0.1 } }"#), adamw(0.1));
    assert_eq!(optimizer(r#"{ "type": "AdamW", "params": { "torch_adam": true } }"#), adamw(0.01));
    // Without decay, Adam and AdamW are the same.
    assert_eq!(optimizer(r#"{ "type": "Adam", "params": { "adam_w_mode": false } }"#), adamw(0.0));
    insta::assert_snapshot!(
        "optimizers",
        [
            r#"{ "type": "Adam", "params": { "adam_w_mode": false, "weight_decay": 0.1 } }"#,
            r#"{ "type": "SGD", "params": { "momentum": 0.9 } }"#,
            r#"{ "type": "sgd" }"#,
            r#"{ "type": "RMSprop" }"#,
            r#"{ "type": "OneBitAdam" }"#,
        ]
        .map(|section| told(
            &format!(
                r#"{{ "train_batch_size": 8, "zero_optimization": {{ "stage": 1 }}, "optimizer": {section} }}"#
            ),
            SpecRequest::default()
        ))
        .join("\n")
    );
}

#[test]
fn batch_sizes_and_flags() {
    let all_three = fixture("zero1_bf16_accumulator.json");
    let with = |world_size, gradient_accumulation_steps| SpecRequest {
        world_size,
        gradient_accumulation_steps,
        ..SpecRequest::default()
    };
    // The file's own arithmetic gives the world size, unless a flag does.
    let four_ranks = all_three.replace("\"train_batch_size\": 32", "\"train_batch_size\": 64");
    assert_eq!(applied(&four_ranks, with(None, None)).world_size, Some(4));
    // --ga puts train_batch_size aside.
    let request = applied(&four_ranks, with(None, Some(3)));
    assert_eq!(request.world_size, Some(2));
    assert_eq!(request.gradient_accumulation_steps, Some(3));
    assert_eq!(request.micro_batch_size, Some(4));
    // Zero is refused where flags are.
    assert!(applied(&all_three, with(Some(0), None)).resolve().is_err());

    insta::assert_snapshot!("batch_and_world_size_flag", told(&all_three, with(Some(3), None)));
    insta::assert_snapshot!("batch_and_ga_flag", told(&four_ranks, with(None, Some(3))));
    insta::assert_snapshot!("batch_for_four_ranks", told(&four_ranks, with(None, None)));
}

#[test]
fn registered_keys_are_unique_and_stand_in_registered_sections() {
    let mut seen = BTreeSet::new();
    for key in registry::KEYS {
        assert!(seen.insert(key.path), "{} has two rows", key.path);
        if let Some((section, _)) = key.path.rsplit_once('.') {
            let section = registry::find(section).expect(section);
            assert!(section.shape.is_section(), "{}'s section checks no keys", key.path);
        }
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in any::<String>()) {
        told(&text, SpecRequest::default());
    }

    #[test]
    fn no_mutation_of_a_file_makes_the_reader_panic(
        which in 0usize..5,
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), mutation()), 1..4),
        world_size in prop::option::of(0usize..5),
        ga in prop::option::of(0usize..5),
    ) {
        let names = ["zero1_bf16_accumulator", "zero2_offload_fp16", "hugging_face_auto",
            "commented", "old_names"];
        let text = fixture(&format!("{}.json", names[which]));
        let mut tokens: Vec<&str> = text.split_inclusive([' ', '\n', ':', ',', '{', '}']).collect();
        for (from, to, put) in &cuts {
            let token = tokens[from.index(tokens.len())];
            let at = to.index(tokens.len());
            match put {
                Some(put) => tokens[at] = put,
                None => tokens.insert(at, token),
            }
        }
        let request = SpecRequest {
            world_size, gradient_accumulation_steps: ga, ..SpecRequest::default()
        };
        told(&tokens.concat(), request);
    }
}

/// Something to put in a token's place, or nothing for a token from elsewhere in the file.
fn mutation() -> impl Strategy<Value = Option<&'static str>> {
    prop::option::of(prop::sample::select(vec![
        "",
        "0,",
        "-1,",
        "1e300,",
        "1e999,",
        "9007199254740992,",
        "0.5,",
        "true,",
        "null,",
        "\"auto\",",
        "{},",
        "[],",
        "[[{\"enabled\": true}]],",
        "\"é\",",
        "/*",
        "\"",
    ]))
}
