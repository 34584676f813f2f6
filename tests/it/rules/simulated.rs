//! The diagnosis of simulated engines. A correct engine is always clean, for every cut of the model and all
//! shapes; a single slip is found at its place.

use proptest::prelude::*;
use zprobe_diagnose::diagnose;
use zprobe_model::spec::plan::Param;
use zprobe_model::spec::{Engine, Observation, Shape, SpecRequest};
use zprobe_model::trace::{Event, LayoutName, Point};
use zprobe_report::{Report, Verdict};

use super::scenarios::crash;
use crate::simulator::{self, Cut, Place, Simulation};

/// The request for a run of a real engine with the coded model.
fn request(world_size: usize, ga: usize, shapes: &[Shape]) -> SpecRequest {
    SpecRequest {
        engine: Some(Engine::DeepSpeed),
        world_size: Some(world_size),
        gradient_accumulation_steps: Some(ga),
        shapes: shapes.to_vec(),
        ..SpecRequest::default()
    }
}

fn cuts() -> impl Strategy<Value = Cut> {
    prop_oneof![
        Just(Cut::Replicated),
        Just(Cut::Flat),
        Just(Cut::EachParameter),
        prop::collection::vec(0.0..1.0, 4).prop_map(Cut::At),
    ]
}

/// Shapes that leave parameters unused, in any combination.
fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    prop::sample::subsequence(
        vec![
            Shape::UnusedFirst,
            Shape::UnusedLast,
            Shape::UnusedAlways,
            Shape::UnusedAlternating,
            Shape::UnusedOnOddRanks,
            Shape::SkippedBlock,
            Shape::DetachedBlock,
            Shape::FrozenAlternating,
            Shape::Frozen,
            Shape::Tied,
            Shape::SeveralBackwards,
            Shape::Unmanaged,
        ],
        0..=12,
    )
}

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.code.as_str()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_correct_engine_is_clean_however_it_cuts_and_whatever_the_shapes(
        world in 1usize..=5, ga in 1usize..=5, steps in 1usize..=6, cut in cuts(), shapes in shapes(),
    ) {
        let request = SpecRequest { steps: Some(steps), ..request(world, ga, &shapes) };
        let report = Simulation::new(request, cut).report();
        prop_assert_eq!(report.verdict, Verdict::Clean, "{:?}", report);
        prop_assert!(report.contributions.iter().all(|entry| entry.as_planned));
    }

    #[test]
    fn a_single_wrong_element_is_found_with_its_parameter(
        world in 1usize..=4, ga in 1usize..=4, cut in cuts(), place in 0.0f64..1.0,
    ) {
        let mut simulation = Simulation::new(request(world, ga, &[]), cut);
        let wrong = (place * simulation.plan.numel() as f64) as usize;
        simulation.weight = Box::new(move |at, right| {
            if at.element == wrong && (at.source.1, at.source.2) == (0, 0) { -right } else { right }
        });
        let hit = |param: &&Param| param.range().contains(&wrong);
        let name = simulation.plan.params().iter().find(hit).unwrap().name.clone();
        let report = simulation.report();
        prop_assert!(!report.findings.is_empty(), "element {} of {}", wrong, name);
        let evidence = report.findings[0].evidence.join(" ");
        prop_assert!(evidence.contains(&name), "{name}: {:#?}", report.findings);
    }
}

/// The parameter with the slips: every cut leaves long pieces of it.
const PARAM: &str = "embed.weight";

type Slip = fn(Place<'_>, f64) -> f64;

/// Slips in one parameter: the name, the change of the weight, the rule that names the slip, and the
/// microbatch that the rule names.
const SLIPS: &[(&str, Slip, &str, Option<usize>)] = &[
    ("dropped", |at, w| if at.source.2 == 1 { 0.0 } else { w }, "ZP102", Some(1)),
    (
        "one rank's dropped",
        |at, w| if (at.source.1, at.source.2) == (1, 0) { 0.0 } else { w },
        "ZP102",
        Some(0),
    ),
    ("doubled", |at, w| if at.source.2 == 2 { 2.0 * w } else { w }, "ZP103", Some(2)),
    ("halved", |_, w| w / 2.0, "ZP105", None),
    ("not averaged", |at, w| if at.source.1 == at.owner { 2.0 * w } else { 0.0 }, "ZP104", None),
    (
        "averaged at the first microbatch alone",
        |at, w| match (at.source.2 == 0, at.source.1 == at.owner) {
            (true, _) => w,
            (false, true) => 2.0 * w,
            (false, false) => 0.0,
        },
        "ZP104",
        None,
    ),
    (
        "averaged but for one",
        |at, w| match (at.source.2 == 1, at.source.1 == at.owner) {
            (false, _) => w,
            (true, true) => 2.0 * w,
            (true, false) => 0.0,
        },
        "ZP104",
        Some(1),
    ),
    (
        "leaked",
        |at, w| match (at.source.2 == 2, at.source.1 == at.owner) {
            (false, _) => w,
            (true, true) => 2.0 * w,
            (true, false) => 0.0,
        },
        "ZP101",
        Some(2),
    ),
    ("stale", |at, w| if at.source.0 + 1 == at.step { 1.0 } else { w }, "ZP106", None),
];

#[test]
fn a_slip_in_one_parameter_is_named_with_parameter_and_microbatch() {
    for cut in [Cut::Replicated, Cut::Flat, Cut::EachParameter, Cut::At(vec![0.3])] {
        for (what, slip, code, microbatch) in SLIPS {
            let mut simulation = Simulation::new(request(2, 3, &[Shape::UnusedFirst]), cut.clone());
            simulation.weight =
                Box::new(move |at, right| if at.param == PARAM { slip(at, right) } else { right });
            let report = simulation.report();
            let [finding] = &report.findings[..] else {
                panic!("{what}, {cut:?}: {:#?}", report.findings);
            };
            assert_eq!(finding.code, *code, "{what}, {cut:?}: {finding:#?}");
            assert_eq!(finding.param.as_deref(), Some(PARAM), "{what}, {cut:?}");
            assert_eq!(finding.microbatch, *microbatch, "{what}, {cut:?}");
        }
    }
}

#[test]
fn a_slip_on_one_rank_is_named_with_the_rank() {
    let cut = Cut::At(vec![0.3]);
    for (what, slip, code, _) in SLIPS {
        let mut simulation = Simulation::new(request(2, 3, &[]), cut.clone());
        simulation.weight =
            Box::new(move |at, right| if at.owner == 1 { slip(at, right) } else { right });
        let report = simulation.report();
        assert_eq!(codes(&report), [*code], "{what}");
        assert_eq!(report.findings[0].rank, Some(1), "{what}");
    }
}

#[test]
fn a_slip_is_found_beside_what_is_not_used_in_each_special_parameter() {
    for shape in [Shape::UnusedFirst, Shape::UnusedLast, Shape::UnusedAlternating] {
        for cut in [Cut::Replicated, Cut::Flat, Cut::EachParameter] {
            let param = shape.param().unwrap();
            let mut simulation = Simulation::new(request(2, 4, &[shape]), cut);
            simulation.weight = Box::new(move |at, right| {
                if at.param == param && at.source.1 == 1 && at.source.2 == 2 { 0.0 } else { right }
            });
            let report = simulation.report();
            assert_eq!(codes(&report), ["ZP102"], "{shape}");
            let finding = &report.findings[0];
            assert_eq!((finding.param.as_deref(), finding.microbatch), (Some(param), Some(2)));
            assert!(finding.message.contains("microbatch 2 of rank 1"), "{}", finding.message);
        }
    }
}

#[test]
fn a_gradient_lost_in_a_parameter_that_even_ranks_alone_use_is_named_by_its_rank() {
    for cut in [Cut::Replicated, Cut::Flat, Cut::EachParameter] {
        let param = Shape::UnusedOnOddRanks.param().unwrap();
        let mut simulation = Simulation::new(request(5, 1, &[Shape::UnusedOnOddRanks]), cut);
        simulation.weight =
            Box::new(
                move |at, right| {
                    if at.param == param && at.source.1 == 2 { 0.0 } else { right }
                },
            );
        let report = simulation.report();
        assert_eq!(codes(&report), ["ZP102"]);
        let finding = &report.findings[0];
        assert_eq!(finding.param.as_deref(), Some(param));
        assert!(finding.message.contains("rank 2"), "{}", finding.message);
    }
}

#[test]
fn the_gradient_of_the_step_before_is_found_in_a_parameter_that_is_not_used_again() {
    for cut in [Cut::Replicated, Cut::Flat, Cut::EachParameter] {
        let shapes = [Shape::UnusedAlternating];
        let mut simulation = Simulation::new(request(2, 4, &shapes), cut);
        let param = Shape::UnusedAlternating.param().unwrap();
        simulation.weight = Box::new(move |at, right| {
            let again = at.param == param && at.step == 1 && at.source.0 == 0;
            if again { 1.0 } else { right }
        });
        let report = simulation.report();
        assert_eq!(codes(&report), ["ZP106"]);
        let finding = &report.findings[0];
        assert_eq!((finding.step, finding.param.as_deref()), (Some(1), Some(param)));
    }
}

#[test]
fn a_gradient_in_a_parameter_that_no_microbatch_uses_is_no_clean_run() {
    for shape in [Shape::UnusedAlways, Shape::UnusedFirst] {
        let mut simulation = Simulation::new(request(2, 4, &[shape]), Cut::Flat);
        let param = shape.param().unwrap();
        simulation.weight = Box::new(move |at, right| {
            let own = at.param == param && (at.source.0, at.source.2) == (at.step, 0);
            if own { 1.0 } else { right }
        });
        let report = simulation.report();
        assert_eq!(codes(&report), ["ZP107"], "{shape}");
        assert_eq!(report.findings[0].param.as_deref(), Some(param));
    }
}

#[test]
fn contributions_of_a_clean_run_are_one_entry_and_one_more_for_each_special_parameter() {
    let shapes = [Shape::UnusedFirst, Shape::UnusedAlternating];
    let report = Simulation::new(request(2, 3, &shapes), Cut::Replicated).report();
    let input: Vec<_> = report
        .contributions
        .iter()
        .filter(|entry| (entry.point.name(), entry.step, entry.rank) == ("optimizer-input", 1, 0))
        .collect();
    let names = |index: usize| input[index].params.clone().unwrap_or_default().join(", ");
    assert_eq!([names(0), names(1), names(2)], ["", "embed.weight", "layers.0.attn.weight"]);
    assert_eq!(input[0].expected, vec![vec![1.0; 3]; 2]);
    assert_eq!(input[1].weights, vec![vec![0.0; 3]; 2]);
    assert_eq!(input[2].weights, vec![vec![0.0, 1.0, 1.0]; 2]);
}

/// The report on a run in which only the outcome is observed.
fn outcome(simulation: &Simulation) -> Report {
    let mut trace = simulation.trace();
    trace.records.retain(|record| match &record.event {
        Event::Buffer { point, .. } => *point == Point::Parameters,
        Event::Layout { layout, .. } => *layout == LayoutName::Full,
        Event::GraphWalked { .. } | Event::HooksFired { .. } | Event::GradientNorm { .. } => false,
        _ => true,
    });
    diagnose(&trace)
}

#[test]
fn parameters_alone_say_whether_every_gradient_arrived() {
    let request = || SpecRequest {
        observe: Some(Observation::Outcome),
        ..request(2, 3, &[Shape::UnusedLast])
    };
    for cut in [Cut::Replicated, Cut::Flat, Cut::EachParameter] {
        let mut simulation = Simulation::new(request(), cut);
        let report = outcome(&simulation);
        assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));

        simulation.weight = Box::new(|at, right| if at.source.2 == 1 { 0.0 } else { right });
        assert_eq!(codes(&outcome(&simulation)), ["ZP102"]);
    }
}

#[test]
fn a_rank_that_is_due_nothing_need_not_step() {
    // Rank 0 holds only the parameter that is not used in step 1.
    let mut simulation = Simulation::new(request(2, 2, &[Shape::UnusedAlternating]), Cut::Flat);
    let param = Shape::UnusedAlternating.param().unwrap();
    let alone = simulation.plan.params().iter().position(|known| known.name == param).unwrap();
    simulation.cut = Cut::Alone(alone);
    let mut trace = simulation.trace();
    trace.records.retain(|record| {
        let input = matches!(&record.event, Event::Buffer { point, step: Some(1), .. }
            if *point == Point::OptimizerInput);
        record.rank != Some(0) || !input
    });
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));
}

#[test]
fn a_step_that_a_rank_failed_in_was_not_taken_by_its_optimizer() {
    // The weights of rank 0 are recorded all the same: a rank reads its weights before it passes the
    // exception on.
    let mut trace = Simulation::new(request(2, 2, &[]), Cut::Flat).trace();
    let consumed = |event: &Event| {
        matches!(event, Event::Buffer { point: Point::OptimizerInput, step: Some(1), .. })
    };
    trace.records.retain(|record| !consumed(&record.event));
    for rank in 0..2 {
        let before = |event: &Event| {
            matches!(event, Event::Buffer { point: Point::Parameters, step: Some(1), .. })
        };
        crash(&mut trace, rank, before, "AssertionError: ");
    }
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Crashed, vec!["ZP901"]));
}

#[test]
fn a_frozen_parameter_that_changes_is_found() {
    let simulation = Simulation::new(request(2, 2, &[Shape::Frozen]), Cut::Flat);
    let name = Shape::Frozen.param().unwrap();
    let frozen = simulation.plan.params().iter().find(|param| param.name == name).unwrap();
    let mut trace = simulation.trace();
    for record in trace.records.iter_mut().filter(|record| record.rank == Some(1)) {
        if let Event::Buffer { point: Point::Parameters, step: Some(1), payload, .. } =
            &mut record.event
        {
            let mut bytes = payload.bytes().unwrap();
            bytes[payload.dtype.size() * frozen.offset] ^= 1;
            *payload = simulator::payload(payload.dtype, &bytes);
        }
    }
    let report = diagnose(&trace);
    assert_eq!(codes(&report), ["ZP603"]);
    let finding = &report.findings[0];
    assert_eq!((finding.step, finding.rank), (Some(1), Some(1)));
    assert_eq!(finding.param.as_deref(), Some(name));
    assert_eq!(finding.consequences[0].code, "ZP601");
}

#[test]
fn a_rank_that_keeps_its_own_last_microbatch_alone_has_lost_the_others_and_not_averaged_it() {
    for world_size in [2, 3, 4] {
        let mut simulation = Simulation::new(request(world_size, 4, &[]), Cut::Flat);
        let replicas = world_size as f64;
        simulation.weight = Box::new(move |at, right| {
            let is_own = at.source.1 == at.owner && at.source.2 == 3;
            if is_own { replicas * right } else { 0.0 }
        });
        let report = simulation.report();
        assert_eq!(codes(&report), ["ZP102", "ZP104"], "{world_size} ranks");
        assert!(report.findings[1].message.contains("microbatch 3"), "{:?}", report.findings[1]);
    }
}

#[test]
fn gradients_that_are_lost_and_others_in_their_place_are_two_findings() {
    let mut simulation = Simulation::new(request(2, 4, &[]), Cut::Flat);
    simulation.weight = Box::new(|at, right| if at.source.2 == 3 { 2.0 * right } else { 0.0 });
    let report = simulation.report();
    assert_eq!(codes(&report), ["ZP102", "ZP103"]);
    assert_eq!(report.findings[1].microbatch, Some(3));
}

#[test]
fn gradients_of_ones_own_replica_alone_are_not_averaged_over_the_replicas() {
    for (weight, text) in [(2.0, "weight 2,"), (4.0, "weight 4,"), (1.0, "weight 1,")] {
        let replicated =
            SpecRequest { engine: Some(Engine::Fsdp2), replicas: Some(2), ..request(4, 3, &[]) };
        let mut simulation = Simulation::new(replicated, Cut::Replicated);
        let is_own = |at: &Place<'_>| at.owner / 2 == at.source.1 / 2 && at.source.0 == at.step;
        simulation.weight = Box::new(move |at, _| if is_own(&at) { weight } else { 0.0 });
        let report = simulation.report();
        assert_eq!(codes(&report), ["ZP104"], "{:#?}", report.findings);
        assert!(report.findings[0].message.contains(text), "{}", report.findings[0].message);
    }
}

#[test]
fn microbatches_that_are_not_averaged_over_the_replicas_are_named() {
    let replicated =
        SpecRequest { engine: Some(Engine::Fsdp2), replicas: Some(2), ..request(4, 3, &[]) };
    let mut simulation = Simulation::new(replicated, Cut::Replicated);
    simulation.weight = Box::new(|at, right| match at.source {
        (step, rank, microbatch) if step == at.step && microbatch < 2 => {
            if at.owner / 2 == rank / 2 { 2.0 * right } else { 0.0 }
        }
        _ => right,
    });
    let report = simulation.report();
    assert_eq!(codes(&report), ["ZP104"], "{:#?}", report.findings);
    let message = &report.findings[0].message;
    assert!(message.starts_with("gradients of microbatches 0 and 1 were"), "{message}");
}
