//! After several steps, every engine's weights are those of a plain single-process step.
//!
//! The reference takes a run's specification, its first parameters and its local gradients, and nothing else
//! of the trace. Runs of codes with SGD have to agree bit for bit. All other runs have to agree within a
//! rigorous bound on the roundings of the run's dtypes, carried through every step.

mod grid;
mod interval;
mod plain;
mod recorded;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use half::{bf16, f16};
use zprobe_launch::{HostSource, Pool};
use zprobe_model::spec::{Device, Dtype, Engine, Fault, Model, Plan, SpecRequest};
use zprobe_model::trace::Trace;

use self::interval::Interval;
use self::plain::{Plain, averaged};
use self::recorded::Recorded;
use self::table::Table;
use crate::pool::{pool, run};
use crate::support::full;

/// The agreement of weights with the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Agreement {
    /// The number of compared elements: of every rank and step, in master weights and parameters.
    pub elements: usize,
    /// The number of compared elements that have to be equal bit for bit.
    pub exact: usize,
    /// The number of compared elements that disagree with the reference.
    pub wrong: usize,
    /// The largest distance of an fp32 weight from the reference, as a share of the weight's bound.
    pub share: f64,
}

/// Compares all weights that a run left with the reference.
fn compare(trace: &Trace) -> (Agreement, Recorded) {
    let (spec, recorded) = (&trace.spec, Recorded::of(trace));
    let plan = Plan::new(spec);
    let mut plain = Plain::new(spec.optimizer, &recorded.initial);
    let mut agreement = Agreement::default();
    for step in 0..spec.steps {
        plain.step(&averaged(spec, &plan, &recorded, step));
        let mut seen = vec![0; spec.world_size];
        for weights in recorded.weights.iter().filter(|weights| weights.step == step) {
            seen[weights.rank] += 1;
            for &(element, value) in &weights.values {
                agreement.add(plain.weights()[element], weights.dtype, value);
            }
        }
        assert!(seen.iter().all(|&buffers| buffers > 0), "step {step}: every rank has weights");
    }
    (agreement, recorded)
}

impl Agreement {
    fn add(&mut self, expected: Interval, dtype: Dtype, value: f64) {
        let ends = [expected.low, expected.high].map(|end| nearest(dtype, end));
        let right = if expected.is_exact() {
            value.to_bits() == ends[0].to_bits()
        } else {
            (ends[0]..=ends[1]).contains(&value)
        };
        self.elements += 1;
        self.exact += usize::from(expected.is_exact());
        self.wrong += usize::from(!right);
        if !expected.is_exact() && dtype == Dtype::Fp32 {
            let (center, radius) =
                ((expected.low + expected.high) / 2.0, (expected.high - expected.low) / 2.0);
            self.share = self.share.max((value - center).abs() / radius);
        }
    }

    /// The sum of two agreements.
    fn and(self, other: Self) -> Self {
        Self {
            elements: self.elements + other.elements,
            exact: self.exact + other.exact,
            wrong: self.wrong + other.wrong,
            share: self.share.max(other.share),
        }
    }
}

/// The number in a dtype that is nearest to fp32 master weights. `from_f64` of the crate half is not used,
/// because it drops the last 32 bits and so takes a number just above the middle for the middle.
fn nearest(dtype: Dtype, value: f64) -> f64 {
    let master = value as f32;
    match dtype {
        Dtype::Bf16 => bf16::from_f32(master).to_f64(),
        Dtype::Fp16 => f16::from_f32(master).to_f64(),
        Dtype::Fp32 => f64::from(master),
    }
}

/// Runs the native grid, or a representative part of it in everyday tests.
fn native(table: &mut Table) {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let specs = grid::native();
    let every = if full() { 1 } else { specs.len() / grid::EVERYDAY };
    for spec in specs.iter().step_by(every) {
        table.add(&run(HostSource::Warm(&pool), spec));
    }
}

#[test]
fn the_native_engine_ends_where_a_single_process_does() {
    let mut table = Table::default();
    native(&mut table);
    println!("{table}");
    table.assert_right();
}

#[test]
#[ignore = "needs ZPROBE_TEST_PYTHON"]
fn every_engine_ends_where_a_single_process_does() {
    let python: PathBuf = std::env::var_os("ZPROBE_TEST_PYTHON")
        .expect("ZPROBE_TEST_PYTHON names an interpreter that has torch and DeepSpeed")
        .into();
    let mut table = Table::default();
    native(&mut table);
    for engine in [Engine::DeepSpeed, Engine::Ddp, Engine::Fsdp2] {
        let dir = tempfile::tempdir().unwrap();
        let program =
            zprobe_launch::adapters::pool_program(&python, dir.path(), engine, Device::Cpu)
                .unwrap();
        let pool = Pool::start(&program, dir.path(), Duration::from_secs(600)).unwrap();
        for spec in grid::real(engine, full()) {
            table.add(&run(HostSource::Warm(&pool), &spec));
        }
    }
    println!("{table}");
    table.assert_right();
    if full() {
        table.compare_with_page();
    }
}

#[test]
fn a_reference_that_cannot_disagree_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    for model in [Model::Coded, Model::Mlp] {
        for dtype in [Dtype::Bf16, Dtype::Fp32] {
            for (inject, wrong) in [(None, false), (Some(Fault::MicrobatchDropped), true)] {
                let request = SpecRequest {
                    model: Some(model),
                    dtype: Some(dtype),
                    inject,
                    ..SpecRequest::default()
                };
                let trace = run(HostSource::Warm(&pool), &request.resolve().unwrap());
                let (agreement, _) = compare(&trace);
                assert_eq!(agreement.wrong > 0, wrong, "{model} {dtype} {inject:?} {agreement:?}");
            }
        }
    }
}
