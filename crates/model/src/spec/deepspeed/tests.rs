//! Tests with DeepSpeed files as people write them, and of the messages about these files.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::spec::{Dataflow, Dtype, Engine, LossScale, Model, Offload, Optimizer, RunSpec};

const HEALTHY: [&str; 8] = [
    "commented",
    "hash_comment",
    "hugging_face_auto",
    "no_zero_section",
    "old_names",
    "zero1_bf16_accumulator",
    "zero2_offload_fp16",
    "zero3_fp16_old_offload",
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/deepspeed")
}

fn fixture(name: &str) -> String {
    fs::read_to_string(fixtures().join(name)).expect("a fixture")
}

/// The messages about the file `text`: notes, or the error.
fn told(text: &str, mut request: SpecRequest) -> String {
    match DeepSpeedConfig::parse(text, "ds.json").and_then(|config| config.apply(&mut request)) {
        Ok(notes) => notes.join("\n"),
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
    assert_eq!(spec.dataflow(), Some(Dataflow::Accumulator));
    assert_eq!(spec.world_size, 2);
    assert_eq!(spec.gradient_accumulation_steps, 4);
    assert_eq!(spec.micro_batch_size, 4);
    assert_eq!(spec.allgather_bucket_size(), Some(200_000_000));
    assert_eq!(
        [spec.overlap_comm(), spec.contiguous_gradients(), spec.reduce_scatter()],
        [None; 3]
    );
}

#[test]
fn stage_2_with_fp16_offload_and_overlap_is_run_as_it_stands() {
    let spec = resolved(&fixture("zero2_offload_fp16.json"));
    assert_eq!((spec.stage, spec.dataflow()), (2, Some(Dataflow::IpgBucket)));
    assert_eq!((spec.dtype, spec.grad_accum_dtype), (Dtype::Fp16, Dtype::Fp16));
    assert_eq!(spec.comm_dtype, Some(Dtype::Fp16));
    assert_eq!(spec.offload, Offload::Cpu);
    assert_eq!(spec.overlap_comm(), Some(true));
    assert_eq!((spec.contiguous_gradients(), spec.reduce_scatter()), (Some(true), Some(true)));
    assert_eq!(spec.gradient_clipping, 0.0);
    // Two codes of 1 add up to 2, and 2^15 times 2 is more than fp16 holds.
    assert_eq!(spec.loss_scale, LossScale::Dynamic { initial_power: 14 });
}

#[test]
fn stage_3_offloads_under_the_old_name_and_overlaps_by_default() {
    let spec = resolved(&fixture("zero3_fp16_old_offload.json"));
    assert_eq!((spec.stage, spec.offload), (3, Offload::Cpu));
    assert_eq!(spec.overlap_comm(), Some(true));
    assert_eq!((spec.contiguous_gradients(), spec.reduce_scatter()), (Some(false), Some(false)));
    assert_eq!(spec.allgather_bucket_size(), Some(200_000_000));
    assert_eq!(spec.gradient_clipping, 1.0);
}

#[test]
fn stage_0_has_no_buckets_that_a_file_could_be_about() {
    let text = r#"{
        "train_batch_size": 8, "gradient_clipping": 0.5, "bf16": { "enabled": true },
        "zero_optimization": {
            "stage": 0, "overlap_comm": true, "contiguous_gradients": false,
            "offload_optimizer": { "device": "cpu" }
        }
    }"#;
    let spec = resolved(text);
    assert_eq!((spec.stage, spec.offload, spec.gradient_clipping), (0, Offload::None, 0.5));
    assert_eq!((spec.overlap_comm(), spec.contiguous_gradients()), (Some(false), Some(true)));
    insta::assert_snapshot!("stage_0_ignores", told(text, SpecRequest::default()));
    // In the stage that a flag asks for, the section takes effect.
    let staged = SpecRequest { stage: Some(3), ..SpecRequest::default() };
    let request = applied(text, staged);
    assert_eq!((request.offload, request.overlap_comm), (Some(Offload::Cpu), Some(true)));
    assert_eq!(request.contiguous_gradients, Some(false));
}

#[test]
fn what_the_accumulator_ignores_of_a_file_it_refuses_as_a_flag() {
    let text = fixture("zero1_bf16_accumulator.json");
    let overlapping = SpecRequest { overlap_comm: Some(true), ..SpecRequest::default() };
    let error = applied(&text, overlapping.clone()).resolve().expect_err("a flag");
    assert!(error.to_string().starts_with("--overlap-comm: "), "{error}");
    // With buckets, the file's settings apply, except for those that flags set.
    let bucketed = SpecRequest {
        dataflow: Some(Dataflow::IpgBucket),
        overlap_comm: Some(false),
        ..SpecRequest::default()
    };
    let spec = applied(&text, bucketed).resolve().expect("a run");
    assert_eq!((spec.overlap_comm(), spec.reduce_scatter()), (Some(false), Some(true)));
    // The file's settings also apply with offload, which BF16_Optimizer does not support.
    let offloaded = SpecRequest { offload: Some(Offload::Cpu), ..SpecRequest::default() };
    let spec = applied(&text, offloaded).resolve().expect("a run");
    assert_eq!((spec.dataflow(), spec.overlap_comm()), (Some(Dataflow::IpgBucket), Some(true)));
}

#[test]
fn offload_copies_to_a_contiguous_buffer_up_to_stage_2() {
    let file = |stage| {
        format!(
            r#"{{ "train_batch_size": 8, "zero_optimization": {{ "stage": {stage},
                "contiguous_gradients": false, "offload_optimizer": {{ "device": "cpu" }} }} }}"#
        )
    };
    assert_eq!(resolved(&file(1)).contiguous_gradients(), Some(true));
    assert_eq!(resolved(&file(2)).contiguous_gradients(), Some(true));
    assert_eq!(resolved(&file(3)).contiguous_gradients(), Some(false));
    insta::assert_snapshot!("offload_is_contiguous", told(&file(1), SpecRequest::default()));
}

#[test]
fn loss_scales() {
    let file = |fp16: &str| {
        format!(
            r#"{{ "train_batch_size": 8, "zero_optimization": {{ "stage": 1 }},
                "fp16": {{ "enabled": true{fp16} }} }}"#
        )
    };
    let scale = |fp16: &str| resolved(&file(fp16)).loss_scale;
    assert_eq!(scale(r#", "loss_scale": 128"#), LossScale::Static { scale: 128.0 });
    let low = file(r#", "loss_scale": 0, "initial_scale_power": 3"#);
    assert_eq!(resolved(&low).loss_scale, LossScale::Dynamic { initial_power: 3 });
    assert!(!told(&low, SpecRequest::default()).contains("scale"));
    // A flag overrides the file's loss scale, so there is no note about it.
    let chosen = SpecRequest { loss_scale: Some(LossScale::DEFAULT), ..SpecRequest::default() };
    assert_eq!(applied(&file(""), chosen.clone()).loss_scale, Some(LossScale::DEFAULT));
    assert!(!told(&file(""), chosen).contains("scale"));
    // The dense model's gradients are not known to overflow.
    let dense = SpecRequest { model: Some(Model::Mlp), ..SpecRequest::default() };
    let request = applied(&file(""), dense);
    assert_eq!(request.loss_scale, Some(LossScale::Dynamic { initial_power: 16 }));
    // Without fp16 there is no loss scale.
    let bf16 = SpecRequest { dtype: Some(Dtype::Bf16), ..SpecRequest::default() };
    assert_eq!(applied(&file(""), bf16).loss_scale, None);
}

#[test]
fn fp16_accumulates_and_communicates_in_what_the_file_says() {
    let file = |dtypes: &str| {
        format!(
            r#"{{ "train_batch_size": 8, "zero_optimization": {{ "stage": 2 }},
                "fp16": {{ "enabled": true, "loss_scale": 8 }}, {dtypes} }}"#
        )
    };
    let spec = resolved(&file(
        r#""data_types": { "grad_accum_dtype": "fp16" }, "communication_data_type": "fp32""#,
    ));
    assert_eq!((spec.grad_accum_dtype, spec.comm_dtype), (Dtype::Fp16, Some(Dtype::Fp32)));
    let spec = resolved(&file(
        r#""data_types": { "grad_accum_dtype": "fp32" }, "communication_data_type": "fp16""#,
    ));
    assert_eq!((spec.grad_accum_dtype, spec.comm_dtype), (Dtype::Fp32, Some(Dtype::Fp16)));
}

#[test]
fn what_healthy_files_are_told() {
    for name in HEALTHY {
        let text = fixture(&format!("{name}.json"));
        resolved(&text);
        insta::assert_snapshot!(name, told(&text, SpecRequest::default()));
    }
}

#[test]
fn comments_bare_keys_and_loose_commas_are_no_surprise() {
    let text = fixture("commented.json");
    let spec = resolved(&text);
    // The batch size of 12 is 2 samples × 3 microbatches × 2 ranks.
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
fn the_installed_engine_judges_keys_that_zprobe_does_not_know() {
    let text = r#"{
        "train_batch_size": 8, "house_rules": { "mode": "auto", "depth": [1] },
        "zero_optimization": { "stage": "auto", "reduce_buckt_size": 7, "of_ours": true },
        "zero_optimization.stage": 2, "bf16": { "enabled": true },
        "optimizer": { "type": "AdamW", "params": { "warp": 9, "momentun": 0.5 } }
    }"#;
    let asked = |engine| SpecRequest { engine, stage: Some(1), ..SpecRequest::default() };
    let told = |engine| told(text, asked(engine));
    insta::assert_snapshot!("unknown_keys_native", told(None));
    insta::assert_snapshot!("unknown_keys_deepspeed", told(Some(Engine::DeepSpeed)));
    assert_eq!(told(Some(Engine::Ddp)), told(None), "DDP does not read the file");
    let spec = applied(text, asked(Some(Engine::DeepSpeed))).resolve().expect("a run");
    let config = spec.deepspeed_config().expect("a configuration");
    // DeepSpeed gets no "auto" that its calling framework would fill in; it gets any other "auto".
    let expected = serde_json::json!({"mode": "auto", "depth": [1]});
    assert_eq!(config["house_rules"], expected);
    assert_eq!(config["zero_optimization.stage"], 2);
    let expected = serde_json::json!({"stage": 1, "reduce_buckt_size": 7, "of_ours": true});
    assert_eq!(config["zero_optimization"], expected);
}

#[test]
fn a_file_says_what_pythons_hjson_reads_in_it() {
    // The second text of each pair is the output of `hjson.loads` of hjson 3.1.0 for the first.
    let read = [
        ("# head\n{ a: 1 # one\n  b: 2 // two\n /* three */ c: 3 }", r#"{"a": 1, "b": 2, "c": 3}"#),
        (
            "train_batch_size: 8\nzero_optimization: { stage: 2 }\n",
            r#"{"train_batch_size": 8, "zero_optimization": {"stage": 2}}"#,
        ),
        (r#"{'a': 'it"s', "b": "q\u00e9\n",}"#, r#"{"a": "it\"s", "b": "qé\n"}"#),
        (
            "{ type: AdamW\n  lr: 1e-3\n betas: [0.9, 0.95,]\n n: 5e8, f: 1.0, big: 1e12 }",
            r#"{"type": "AdamW", "lr": 0.001, "betas": [0.9, 0.95], "n": 500000000, "f": 1, "big": 1e12}"#,
        ),
        (
            "{ a: x, y }\n b: true, c: null\n d: nullx\n}",
            r#"{"a": "x, y }", "b": true, "c": null, "d": "nullx"}"#,
        ),
        ("{ a:\n  '''\n  two\n  lines\n  '''\n}", r#"{"a": "two\nlines"}"#),
        (
            "\u{feff}{ \"n\": 18446744073709551615, \"m\": -9007199254740993 }",
            r#"{"n": 18446744073709551615, "m": -9007199254740993}"#,
        ),
    ];
    for (text, expected) in read {
        let expected: Value = serde_json::from_str(expected).expect("JSON");
        let content = hjson::parse(text.trim_start_matches('\u{feff}')).expect("a file").content;
        assert_eq!(content, expected, "{text}");
    }
}

#[test]
fn what_is_wrong_is_told_in_a_few_lines_however_large_the_file() {
    let long = "x".repeat(300_000);
    let many: String = (0..4_000).map(|key| format!("\"k{key}\": 1,")).collect();
    let deep = |open: &str, close: &str| {
        format!("{{\"a\": {}1{}}}", open.repeat(50_000), close.repeat(50_000))
    };
    let nested = "{\"a\": ".repeat(60) + &format!("{{ {many} }}") + &"}".repeat(60);
    for text in [
        format!("{{\"train_batch_size\": \"{long}\"}}"),
        format!("{{\"{long}\": 1}}"),
        format!("{{\"communication_data_type\": \"{long}\", \"bf16\": {{\"{long}\": 1}}}}"),
        format!("{{ {many} }}"),
        format!("{{ {many} {many} }}"),
        format!("{{ a: {long}"),
        long.clone(),
        format!("{{ optimizer: {{ type: \"{long}\" }}, train_batch_size: 8 }}"),
        format!("{{ optimizer: {{ type: Adam\n params: {{ {many} }} }} }}"),
        nested,
        deep("[", "]"),
        deep("{\"a\":", "}"),
        "[".repeat(200_000),
    ] {
        for engine in [Engine::Native, Engine::DeepSpeed] {
            let request = SpecRequest { engine: Some(engine), ..SpecRequest::default() };
            let said = told(&text, request);
            assert!(!said.is_empty() && said.len() < 20_000, "{} bytes: {said:.300}", said.len());
        }
    }
}

#[test]
fn a_file_that_is_no_configuration_is_not_read_to_its_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ds.json");
    fs::write(&path, " ".repeat(10 << 20)).expect("a file");
    let error = DeepSpeedConfig::read(&path).expect_err("10 MB").to_string();
    assert!(error.ends_with("is this another file?"), "{error}");
}

#[test]
fn flags_settle_what_the_file_asks_for_in_vain() {
    let text = r#"{
        "train_batch_size": 8, "fp16": { "enabled": true, "initial_scale_power": -1 },
        "data_types": { "grad_accum_dtype": "int8" }, "optimizer": { "type": "Lion" },
        "zero_optimization": {
            "stage": 2, "offload_optimizer": { "device": "nvme" },
            "reduce_bucket_size": 0, "allgather_bucket_size": 0
        }
    }"#;
    let error = told(text, SpecRequest::default());
    assert_eq!(error.lines().count(), 4, "{error}");
    let request = SpecRequest {
        grad_accum_dtype: Some(Dtype::Fp32),
        offload: Some(Offload::Cpu),
        reduce_bucket_size: Some(64),
        allgather_bucket_size: Some(64),
        loss_scale: Some(LossScale::DEFAULT),
        optimizer: Some(Optimizer::EXACT_SGD),
        ..SpecRequest::default()
    };
    let spec = applied(text, request).resolve().expect("a run");
    assert_eq!((spec.stage, spec.dtype), (2, Dtype::Fp16));
    assert_eq!((spec.offload, spec.reduce_bucket_size), (Offload::Cpu, 64));
    assert_eq!(spec.allgather_bucket_size(), Some(64));
}

#[test]
fn another_engine_may_have_what_the_native_one_lacks() {
    let request = SpecRequest {
        engine: Some(Engine::DeepSpeed),
        // No engine runs the optimizer of the file.
        optimizer: Some(Optimizer::EXACT_SGD),
        ..SpecRequest::default()
    };
    let request = applied(&fixture("broken/not_there_yet.json"), request);
    assert_eq!(request.stage, Some(3));
    // The batch of 32 samples is one microbatch on each of 2 ranks.
    assert_eq!(request.micro_batch_size, Some(16));
    assert_eq!(request.gradient_accumulation_steps, Some(1));
    // All other settings of the file are left to DeepSpeed.
    assert_eq!((request.overlap_comm, request.allgather_bucket_size), (None, None));
    for engine in [Engine::Ddp, Engine::Fsdp2] {
        let request = SpecRequest { engine: Some(engine), ..SpecRequest::default() };
        let request = applied(&fixture("zero2_offload_fp16.json"), request);
        assert_eq!((request.stage, request.dataflow, request.offload), (Some(2), None, None));
        assert_eq!((request.overlap_comm, request.loss_scale), (None, None));
    }
}

#[test]
fn a_stage_of_the_wrong_type_is_one_mistake_and_not_stage_0() {
    for zero in [r#"{ "stage": "one" }"#, "[1]"] {
        let text = format!(
            r#"{{ "train_batch_size": 8, "bf16": {{ "enabled": true }},
                "data_types": {{ "grad_accum_dtype": "fp32" }}, "zero_optimization": {zero} }}"#
        );
        let error = told(&text, SpecRequest::default());
        assert_eq!(error.lines().count(), 2, "{error}");
    }
}

#[test]
fn a_refused_file_leaves_the_request_alone() {
    let mut request = SpecRequest::default();
    let config = DeepSpeedConfig::parse(&fixture("broken/not_there_yet.json"), "ds.json");
    config.expect("no syntax error").apply(&mut request).expect_err("offload to nvme");
    assert_eq!(format!("{request:?}"), format!("{:?}", SpecRequest::default()));
}

#[test]
fn defaults_are_deepspeeds_where_the_file_is_silent() {
    let spec = resolved(
        r#"{ "train_batch_size": 8, "bf16": { "enabled": true }, "zero_optimization": { "stage": 1 } }"#,
    );
    assert_eq!(spec.grad_accum_dtype, Dtype::Bf16);
    assert_eq!(spec.comm_dtype, Some(Dtype::Bf16));
    assert_eq!(spec.dataflow(), Some(Dataflow::IpgBucket));
    assert_eq!(spec.reduce_bucket_size, 500_000_000);
    assert_eq!((spec.micro_batch_size, spec.gradient_accumulation_steps), (4, 1));

    let spec = resolved(r#"{ "train_batch_size": 8, "zero_optimization": { "stage": 1 } }"#);
    assert_eq!(spec.dtype, Dtype::Fp32);
}

#[test]
fn an_optimizer_that_zprobe_replaces_is_refused_under_every_engine() {
    for engine in [Engine::Native, Engine::DeepSpeed, Engine::Ddp] {
        for kind in ["Lion", "Lamb", "OneBitAdam", "RMSprop"] {
            let text = format!(
                r#"{{ "train_batch_size": 8, "zero_optimization": {{ "stage": 0 }},
                      "optimizer": {{ "type": "{kind}" }} }}"#
            );
            let request = SpecRequest { engine: Some(engine), ..SpecRequest::default() };
            let error = told(&text, request.clone());
            assert!(
                error.contains("optimizer.type") && error.contains("pass --optimizer"),
                "{error}"
            );
            assert!(!error.contains("no optimizer section"), "{error}");
            let optimizer = Some(Optimizer::EXACT_SGD);
            let request = applied(&text, SpecRequest { optimizer, ..request });
            assert_eq!(request.optimizer, optimizer);
        }
    }
}

#[test]
fn features_that_no_script_exercises_are_refused_unless_they_are_off() {
    let file = |section: &str| {
        let text =
            format!(r#"{{ "train_batch_size": 8, "bf16": {{ "enabled": true }}, {section} }}"#);
        let request = SpecRequest { engine: Some(Engine::DeepSpeed), ..SpecRequest::default() };
        applied(&text, request).resolve()
    };
    for (on, off) in [
        (
            r#""zero_optimization": { "zenflow": {} }"#,
            r#""zero_optimization": { "zenflow": null }"#,
        ),
        (
            r#""zero_optimization": { "offload_optimizer": { "device": "cpu", "super_offload": true } }"#,
            r#""zero_optimization": { "offload_optimizer": { "device": "cpu", "super_offload": false } }"#,
        ),
        (r#""compile": { "deepcompile": true }"#, r#""compile": { "deepcompile": false }"#),
        (
            r#""tensor_parallel": { "autotp_size": 2 }"#,
            r#""tensor_parallel": { "autotp_size": 1 }"#,
        ),
    ] {
        let refusal = file(on).expect_err("a refusal").to_string();
        assert!(refusal.contains("to check the other settings"), "{refusal}");
        file(off).expect("a file without the feature");
    }
}

#[test]
fn muon_is_that_of_deepspeed_with_its_settings() {
    let text = r#"{ "train_batch_size": 8, "zero_optimization": { "stage": 2 },
                    "optimizer": { "type": "muon", "params": { "muon_lr": 0.02, "lr": "auto" } } }"#;
    let under = |engine| SpecRequest { engine: Some(engine), ..SpecRequest::default() };
    let spec = applied(text, under(Engine::DeepSpeed)).resolve().expect("a run");
    assert_eq!(spec.optimizer, Optimizer::Muon);
    let section =
        serde_json::json!({"type": "muon", "params": {"muon_lr": 0.02, "torch_adam": true}});
    assert_eq!(spec.deepspeed_config().expect("a configuration")["optimizer"], section);
    assert!(told(text, under(Engine::Native)).contains("optimizer.type"));

    let muon = |engine| SpecRequest { optimizer: Some(Optimizer::Muon), ..under(engine) };
    let refused = |request: SpecRequest| request.resolve().expect_err("a refusal").to_string();
    assert!(refused(muon(Engine::Ddp)).contains("--engine deepspeed"));
    let stage3 = SpecRequest { stage: Some(3), ..muon(Engine::DeepSpeed) };
    assert!(refused(stage3.clone()).contains("--reduce-scatter false"));
    SpecRequest { reduce_scatter: Some(false), ..stage3 }.resolve().expect("a run");
}

#[test]
fn accumulating_in_fp32_does_not_make_ranks_communicate_in_fp32() {
    let spec = resolved(
        r#"{ "train_batch_size": 8, "bf16": { "enabled": true },
             "data_types": { "grad_accum_dtype": "float32" }, "zero_optimization": { "stage": 1 } }"#,
    );
    assert_eq!(spec.dataflow(), Some(Dataflow::Accumulator));
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
    // The world size follows from the file's batch sizes, unless a flag gives it.
    let four_ranks = all_three.replace("\"train_batch_size\": 32", "\"train_batch_size\": 64");
    assert_eq!(applied(&four_ranks, with(None, None)).world_size, Some(4));
    // --ga overrides train_batch_size.
    let request = applied(&four_ranks, with(None, Some(3)));
    assert_eq!(request.world_size, Some(2));
    assert_eq!(request.gradient_accumulation_steps, Some(3));
    assert_eq!(request.micro_batch_size, Some(4));
    // A flag with the value 0 is refused when the request is resolved.
    assert!(applied(&all_three, with(Some(0), None)).resolve().is_err());

    insta::assert_snapshot!("batch_and_world_size_flag", told(&all_three, with(Some(3), None)));
    insta::assert_snapshot!("batch_and_ga_flag", told(&four_ranks, with(None, Some(3))));
    insta::assert_snapshot!("batch_for_four_ranks", told(&four_ranks, with(None, None)));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in any::<String>()) {
        told(&text, SpecRequest::default());
    }

    #[test]
    fn no_mutation_of_a_file_makes_the_reader_panic(
        which in 0..HEALTHY.len(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), mutation()), 1..4),
        world_size in prop::option::of(0usize..5),
        ga in prop::option::of(0usize..5),
    ) {
        let text = fixture(&format!("{}.json", HEALTHY[which]));
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

/// A text that replaces a token; `None` to insert a token from elsewhere in the file.
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
