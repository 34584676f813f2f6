//! Tests that the command in a report leads to the specification of the reported run.

use std::fs;

use proptest::prelude::*;
use proptest::sample::select;
use zprobe_lab::lattice::Lattice;
use zprobe_model::spec::{CommHook, Dataflow, Dtype, Engine, LossScale, Offload, Optimizer, Shape};
use zprobe_zoo::registry;

use super::*;

/// The specification that results when the command of `spec` is parsed again.
fn read_back(spec: &RunSpec) -> RunSpec {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("ds.json");
    let command = spec.command(&file.display().to_string()).expect("a command");
    if let Some(config) = &command.deepspeed_config {
        fs::write(&file, config.to_string()).expect("a file");
    }
    let words = shlex::split(&command.line()).expect("words of a shell");
    assert_eq!(words[2..], command.arguments);
    RunArgs::parse(&command.arguments).expect("flags").spec().expect("a specification")
}

#[test]
fn a_size_that_is_none_is_refused_with_one_that_is() {
    for size in ["x", "12 bananas", ""] {
        let arguments = ["--trace-budget".to_owned(), size.to_owned()];
        let error = RunArgs::parse(&arguments).err().expect("no size").to_string();
        assert!(error.contains("give a number of bytes, or a size like 500MB or 2GiB"), "{error}");
    }
}

#[test]
fn every_configuration_is_what_its_command_says() {
    for &engine in Engine::CHOICES {
        let lattice = Lattice::of(engine);
        for configuration in lattice.covering() {
            let arguments = configuration.arguments();
            let spec = RunArgs::parse(&arguments).expect("flags").spec();
            let Ok(spec) = spec else { continue };
            let command = spec.command("ds.json").expect("a command");
            assert_eq!(command.deepspeed_config, None, "{arguments:?}");
            let words = command.arguments;
            assert_eq!(RunArgs::parse(&words).unwrap().spec().unwrap(), spec, "{arguments:?}");
        }
    }
}

#[test]
fn every_row_of_the_zoo_is_what_its_command_says() {
    for row in registry::rows() {
        for release in &row.releases {
            let arguments: Vec<String> = row.arguments(release).map(str::to_owned).collect();
            let spec = RunArgs::parse(&arguments).expect("flags").spec().expect("a specification");
            assert_eq!(read_back(&spec), spec, "{}", row.name);
        }
    }
}

#[test]
fn every_deepspeed_file_is_what_its_command_says() {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/deepspeed");
    let mut tried = 0;
    for file in fs::read_dir(files).expect("files") {
        let file = file.expect("a file").path();
        if file.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a text");
        for engine in ["native", "deepspeed"] {
            let words = ["--engine", engine, "--deepspeed-config", &file.display().to_string()];
            let spec = RunArgs::parse(&words.map(str::to_owned)).expect("flags").spec();
            // DeepSpeed gets a file without the "auto" values, so its command cannot restore them.
            let Ok(spec) = spec else { continue };
            if engine == "deepspeed" && text.contains("\"auto\"") {
                continue;
            }
            assert_eq!(read_back(&spec), spec, "{} {engine}", file.display());
            tried += 1;
        }
    }
    assert!(tried >= 4, "{tried}");
}

#[test]
fn a_run_is_made_again_with_the_users_file_and_the_flags_that_win_over_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("ds.json");
    let config = r#"{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
        "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}"#;
    fs::write(&file, config).expect("a file");
    let file = file.display().to_string();
    for engine in ["native", "deepspeed"] {
        for flags in [&[][..], &["--stage", "2", "--ga", "2"], &["--grad-accum-dtype", "bf16"]] {
            let words = ["--engine", engine, "--deepspeed-config", &file].into_iter();
            let words: Vec<String> =
                words.chain(flags.iter().copied()).map(str::to_owned).collect();
            let args = RunArgs::parse(&words).expect("flags");
            let spec = args.spec().expect("a specification");
            let again = shlex::split(&args.again(&spec).expect("a command")).expect("words");
            assert!(again.contains(&file), "{again:?}");
            let same = RunArgs::parse(&again[2..]).expect("flags").spec().expect("a specification");
            assert_eq!(same, spec, "{again:?}");
        }
    }
}

#[test]
fn a_command_says_no_more_than_it_has_to() {
    let spec = |words: &str| {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        RunArgs::parse(&words).expect("flags").spec().expect("a specification")
    };
    let said = |words| spec(words).command("ds.json").expect("a command").line();
    for words in [
        "--engine deepspeed --stage 1 --ga 4",
        "--engine native --stage 2 --ga 3 --dtype fp16 --loss-scale 8 --inject dead-hooks",
        "--engine ddp --ga 1 --nproc-per-node 3 --shape unused-last --steps 3",
    ] {
        assert_eq!(said(words), format!("zprobe run {words}"));
    }
}

prop_compose! {
    fn requests()(
        engine in select(Engine::CHOICES),
        (stage, world, ga, steps) in (0u8..4, 1usize..5, 1usize..6, 1usize..4),
        dtype in prop::option::of(select(Dtype::ALL)),
        accum in prop::option::weighted(0.3, select(Dtype::ALL)),
        comm in prop::option::weighted(0.3, select(Dtype::ALL)),
        dataflow in prop::option::weighted(0.3, select(Dataflow::ALL)),
        bucket in prop::option::weighted(0.3, 1usize..10_000),
        flags in prop::collection::vec(prop::option::weighted(0.2, any::<bool>()), 8),
        (offload, hook) in (
            prop::option::weighted(0.3, select(Offload::ALL)),
            prop::option::weighted(0.3, select(CommHook::ALL)),
        ),
        clipping in prop::option::weighted(0.3, 0.0..1e9),
        scale in prop::option::weighted(0.3, prop_oneof![
            (0i32..10).prop_map(|power| LossScale::Static { scale: 2f64.powi(power) }),
            (0u32..20).prop_map(|initial_power| LossScale::Dynamic { initial_power }),
        ]),
        optimizer in prop::option::weighted(0.3, prop_oneof![
            Just(Optimizer::ADAMW),
            (1e-6..1.0).prop_map(|lr| Optimizer::Sgd { lr }),
            (1e-6..1.0, 0.0..0.99, 0.0..0.1).prop_map(|(lr, beta, weight_decay)| {
                Optimizer::Adamw { lr, betas: [beta, 0.99], eps: 1e-7, weight_decay }
            }),
        ]),
        shapes in prop::collection::vec(select(Shape::ALL), 0..3),
        (seed, parameters) in (
            prop::option::weighted(0.3, any::<u64>()),
            prop::option::weighted(0.2, 1usize..100_000),
        ),
    ) -> SpecRequest {
        let zero = matches!(engine, Engine::Native | Engine::DeepSpeed);
        let (native, ddp) = (engine == Engine::Native, engine == Engine::Ddp);
        SpecRequest {
            engine: Some(engine),
            stage: zero.then_some(stage),
            world_size: Some(world),
            gradient_accumulation_steps: Some(ga),
            steps: Some(steps),
            dtype,
            grad_accum_dtype: accum.filter(|_| zero),
            comm_dtype: comm.filter(|_| !ddp),
            dataflow: dataflow.filter(|_| native),
            reduce_bucket_size: bucket.filter(|_| zero),
            overlap_comm: flags[0].filter(|_| zero),
            contiguous_gradients: flags[1].filter(|_| zero),
            reduce_scatter: flags[2].filter(|_| zero),
            immediate_grad_update: flags[3].filter(|_| engine == Engine::DeepSpeed),
            find_unused_parameters: flags[4].filter(|_| ddp),
            static_graph: flags[5].filter(|_| ddp),
            gradient_as_bucket_view: flags[6].filter(|_| ddp),
            reshard_after_forward: flags[7].filter(|_| engine == Engine::Fsdp2),
            offload: offload.filter(|_| zero),
            comm_hook: hook.filter(|_| ddp),
            gradient_clipping: clipping,
            loss_scale: scale.filter(|_| zero),
            // Other optimizers come from DeepSpeed files, which the tests above cover.
            optimizer: optimizer.filter(|it| native || *it == Optimizer::ADAMW),
            shapes,
            seed,
            parameters,
            ..SpecRequest::default()
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_run_is_what_its_command_says(request in requests()) {
        let Ok(spec) = request.resolve() else { return Ok(()) };
        // A dynamic loss scale without fp16 has no effect, and DeepSpeed has no flag for it.
        let sayable = spec.dtype == Dtype::Fp16
            || !matches!(spec.loss_scale, LossScale::Dynamic { initial_power } if initial_power != 6);
        prop_assume!(sayable);
        prop_assert_eq!(read_back(&spec), spec);
    }
}
