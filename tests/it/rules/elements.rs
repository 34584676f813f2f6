//! Slips in a few elements: findings name the elements, and name weights only if the weights are certain.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use zprobe_model::spec::plan::Param;
use zprobe_model::spec::{Engine, SpecRequest};
use zprobe_model::trace::Point;
use zprobe_report::{Contribution, Report};

use crate::simulator::{Cut, Place, Simulation};

fn request(world_size: usize, ga: usize) -> SpecRequest {
    SpecRequest {
        engine: Some(Engine::DeepSpeed),
        world_size: Some(world_size),
        gradient_accumulation_steps: Some(ga),
        ..SpecRequest::default()
    }
}

type Slip = fn(Place<'_>, f64, f64) -> f64;

/// The slips, each with its rule, its name, and the function that changes a gradient's weight. The function
/// gets the place, the right weight and the world size.
const SLIPS: &[(&str, &str, Slip)] = &[
    ("ZP102", "nothing arrives", |_, _, _| 0.0),
    ("ZP104", "own alone", |at, w, world| if at.source.1 == at.owner { world * w } else { 0.0 }),
    ("ZP104", "own once", |at, w, _| if at.source.1 == at.owner { w } else { 0.0 }),
    ("ZP102", "without microbatch 1", |at, w, _| if at.source.2 == 1 { 0.0 } else { w }),
    ("ZP105", "halved", |_, w, _| w / 2.0),
    ("ZP106", "left over", |at, w, _| if at.source.0 + 1 == at.step { 1.0 } else { w }),
    // The following slips have no named pattern.
    ("ZP107", "odd", |at, w, _| if at.source.1 == 0 && at.source.2 == 0 { 5.0 * w } else { -w }),
    (
        "ZP107",
        "one of them three times",
        |at, w, _| if at.source == (1, 1, 0) { 3.0 * w } else { w },
    ),
];

fn wrong(report: &Report) -> impl Iterator<Item = &Contribution> {
    let entries = report.contributions.iter();
    entries.filter(|entry| entry.point == Point::OptimizerInput && !entry.as_planned)
}

/// The settings of the random cases: a fixed seed, or a random one with `ZPROBE_TEST_FULL`. Once in some
/// thousand cases the weights of a few elements are read wrongly, because other weights explain these
/// elements as well.
fn config() -> ProptestConfig {
    let is_full = std::env::var_os("ZPROBE_TEST_FULL").is_some();
    let rng_seed = if is_full { RngSeed::Random } else { RngSeed::Fixed(1) };
    ProptestConfig { cases: 96, rng_seed, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn weights_are_printed_only_where_some_element_holds_them(
        world in 2usize..=8, ga in 2usize..=4, slip in 0..SLIPS.len(),
        cut in prop_oneof![
            Just(Cut::Flat), Just(Cut::EachParameter), Just(Cut::Replicated),
            prop::collection::vec(0.0..1.0, 7).prop_map(Cut::At),
        ],
        first in 0.0f64..1.0, len in 1usize..=14,
    ) {
        let mut simulation = Simulation::new(request(world, ga), cut);
        let (first, numel) = ((first * simulation.plan.numel() as f64) as usize, simulation.plan.numel());
        let range = first..(first + len).min(numel);
        let (_, what, slip) = SLIPS[slip];
        let (hit, scale) = (range.clone(), world as f64);
        simulation.weight = Box::new(move |at, right| {
            if hit.contains(&at.element) { slip(at, right, scale) } else { right }
        });
        let report = simulation.report();
        for entry in wrong(&report).filter(|it| it.possible.is_empty() && it.residual <= it.tolerance) {
            let is_held = |source: usize, m: usize, weight: f64| {
                let source = (entry.step, source, m);
                let at = Place { step: entry.step, owner: entry.rank, param: "", element: first, source };
                (slip(at, 1.0, scale) - weight).abs() < 1e-3
            };
            for (source, row) in entry.weights.iter().enumerate() {
                for (m, weight) in row.iter().enumerate() {
                    prop_assert!(is_held(source, m, *weight), "{what}: {entry:#?}");
                }
            }
        }
        for entry in wrong(&report) {
            for run in &entry.elements {
                let hit = |param: &&Param| param.name == run.param;
                let offset = simulation.plan.params().iter().find(hit).unwrap().offset;
                prop_assert!(
                    (offset + run.first..offset + run.end).any(|element| range.contains(&element)),
                    "{what}, {range:?}: {run:?}"
                );
            }
        }
    }
}

/// The last element of every rank's partition, in the flat order.
fn last_elements(simulation: &Simulation) -> Vec<usize> {
    let (world, numel) = (simulation.spec.world_size, simulation.plan.numel());
    let each = numel.div_ceil(world);
    (1..=world).map(|rank| (rank * each).min(numel) - 1).collect()
}

#[test]
fn the_last_element_of_each_partition_is_named_with_what_it_holds() {
    for (code, what, slip) in &SLIPS[..3] {
        let mut simulation = Simulation::new(request(4, 2), Cut::Flat);
        let last = last_elements(&simulation);
        let params = simulation.plan.params().to_vec();
        let hit = last.clone();
        simulation.weight =
            Box::new(move |at, w| if hit.contains(&at.element) { slip(at, w, 4.0) } else { w });
        let report = simulation.report();
        let [finding] = &report.findings[..] else { panic!("{what}: {:#?}", report.findings) };
        assert_eq!(finding.code, *code, "{what}: {finding:#?}");
        let text = format!("{} {}", finding.message, finding.evidence.join(" "));
        let is_named = |element: &&usize| {
            let param = params.iter().find(|param| param.range().contains(element)).unwrap();
            text.contains(&format!("{}[{}]", param.name, *element - param.offset))
        };
        // One of the elements may hold the right value by chance.
        assert!(last.iter().filter(is_named).count() >= 3, "{what}: {last:?} in {finding:#?}");
    }
}

#[test]
fn one_element_alone_is_named_and_what_it_holds_is_left_open() {
    let mut simulation = Simulation::new(request(2, 4), Cut::Replicated);
    let param = simulation.plan.params()[1].clone();
    let element = param.offset + 7;
    simulation.weight = Box::new(move |at, w| {
        if at.element == element && at.step == 1 && at.source.1 != at.owner { 0.0 } else { w }
    });
    let report = simulation.report();
    let [finding] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!(finding.code, "ZP107", "{finding:#?}");
    assert!(finding.message.contains(&format!("{}[7]", param.name)), "{finding:#?}");
    assert!(finding.evidence.iter().any(|fact| fact.starts_with("possible: ")), "{finding:#?}");
}

#[test]
fn a_parameter_that_holds_other_weights_from_some_element_on_is_named_with_these_elements() {
    let mut simulation = Simulation::new(request(2, 4), Cut::Replicated);
    let param = simulation.plan.params()[1].clone();
    let first = param.offset + 50;
    let end = param.range().end;
    simulation.weight = Box::new(move |at, w| {
        let is_lost = (first..end).contains(&at.element) && (at.source.1, at.source.2) == (1, 3);
        if is_lost { 0.0 } else { w }
    });
    let report = simulation.report();
    let [finding] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!((finding.code.as_str(), finding.microbatch), ("ZP102", Some(3)), "{finding:#?}");
    let place = format!("{}[50:{}]", param.name, param.numel());
    assert!(finding.message.contains(&place), "{finding:#?}");
}
