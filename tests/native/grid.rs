//! Healthy runs of every kind: all are clean, and every weight is exactly 1.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use zprobe_diagnose::diagnose;
use zprobe_launch::HostSource;
use zprobe_model::spec::{Dataflow, Dtype, Offload, Point, RunSpec, Shape, SpecRequest};
use zprobe_report::Verdict;

use crate::pool::{pool, run};
use crate::support::full;

/// The number of runs in an everyday test, and the number with `ZPROBE_TEST_FULL`.
const RUNS: [usize; 2] = [40, 2400];

/// The bucket sizes in elements, one for each important case: no parameter fits, some fit, all fit.
const BUCKETS: [Option<usize>; 3] = [Some(1), None, Some(500_000_000)];

/// A number that is unrelated to those of its neighbours (SplitMix64, Steele et al. 2014).
fn scattered(number: u64) -> usize {
    let mut z = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) as usize
}

/// Takes the next digit of a number in a mixed base, as one of `values`.
fn pick<T: Copy>(number: &mut usize, values: &[T]) -> T {
    let value = values[*number % values.len()];
    *number /= values.len();
    value
}

/// The configuration with this number in the product of all settings.
fn request(mut number: usize) -> SpecRequest {
    use Dtype::{Bf16, Fp16, Fp32};
    let number = &mut number;
    let stage = pick(number, &[0, 1, 2, 3]);
    let world_size = pick(number, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let ga = pick(number, &[1, 2, 3, 4, 7, 8]);
    let (dtype, accum) =
        pick(number, &[(Bf16, Fp32), (Fp32, Fp32), (Fp16, Fp32), (Bf16, Bf16), (Fp16, Fp16)]);
    let dataflow = pick(number, &[None, Some(Dataflow::IpgBucket)]);
    let switch = [None, Some(true), Some(false)];
    let mut shapes: Vec<Shape> = Shape::ALL.to_vec();
    shapes.retain(|shape| {
        !matches!(
            shape,
            Shape::TupleOutput | Shape::DictOutput | Shape::LateNoSync | Shape::Experts
        )
    });
    SpecRequest {
        stage: Some(stage),
        world_size: Some(world_size),
        gradient_accumulation_steps: Some(ga),
        dtype: Some(dtype),
        grad_accum_dtype: Some(accum),
        dataflow,
        comm_dtype: pick(number, &[None, Some(Fp32)]),
        offload: pick(number, &[None, Some(Offload::Cpu)]),
        overlap_comm: pick(number, &switch),
        contiguous_gradients: pick(number, &switch),
        reduce_scatter: pick(number, &switch),
        reduce_bucket_size: pick(number, &BUCKETS),
        allgather_bucket_size: pick(number, &[None, Some(64)]),
        parameter_groups: pick(number, &[None, Some(2)]),
        gradient_clipping: pick(number, &[None, Some(1e9)]),
        poison_memory: pick(number, &[None, Some(true)]),
        shapes: Vec::from_iter(
            // Every other run has no shape.
            pick(number, &[false, true]).then(|| pick(number, &shapes)),
        ),
        seed: Some(*number as u64 % 1000),
        ..SpecRequest::default()
    }
}

fn runs() -> usize {
    RUNS[usize::from(full())]
}

#[test]
fn healthy_runs_are_clean_and_every_weight_is_exactly_one() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let (mut tried, mut number) = (HashSet::new(), 0);
    let mut excluded = BTreeMap::<String, usize>::new();
    let mut failures = String::new();
    while tried.len() < runs() {
        number += 1;
        let request = request(scattered(number));
        let spec = match request.resolve() {
            Ok(spec) => spec,
            Err(invalid) => {
                let reason = invalid.to_string();
                let (asked, _) = reason.split_once(':').unwrap_or((&reason, ""));
                *excluded.entry(asked.to_owned()).or_default() += 1;
                continue;
            }
        };
        if !tried.insert(words(&spec)) {
            continue;
        }
        let trace = run(HostSource::Warm(&pool), &spec);
        let report = diagnose(&trace);
        if report.verdict != Verdict::Clean {
            let _ = writeln!(failures, "{}: {:?}", words(&spec), report.findings);
            continue;
        }
        if spec.has_shape(Shape::InfinityOnOneRank) {
            continue;
        }
        for entry in report.contributions.iter().filter(|c| c.point == Point::OptimizerInput) {
            if entry.weights != entry.expected || entry.leftover.iter().flatten().any(|w| *w != 0.)
            {
                let _ = writeln!(failures, "{}: {entry:?}", words(&spec));
            }
        }
    }
    println!("{} runs; left out, because they cannot be asked for: {excluded:#?}", tried.len());
    assert!(failures.is_empty(), "{failures}");
}

/// The settings of a run, for the message of a failure.
fn words(spec: &RunSpec) -> String {
    format!(
        "stage {} W {} ga {} {} accum {} comm {:?} {:?} offload {} overlap {:?} contiguous {:?} \
         reduce_scatter {:?} bucket {} allgather bucket {:?} groups {:?} clipping {} poisoned {} shapes {:?} seed {}",
        spec.stage,
        spec.world_size,
        spec.gradient_accumulation_steps,
        spec.dtype,
        spec.grad_accum_dtype,
        spec.comm_dtype,
        spec.dataflow(),
        spec.offload,
        spec.overlap_comm(),
        spec.contiguous_gradients(),
        spec.reduce_scatter(),
        spec.reduce_bucket_size,
        spec.allgather_bucket_size(),
        spec.parameter_groups,
        spec.gradient_clipping,
        spec.poison_memory,
        spec.shapes,
        spec.seed,
    )
}
