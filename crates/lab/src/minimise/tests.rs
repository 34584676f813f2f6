use std::collections::HashSet;
use std::convert::Infallible;

use proptest::prelude::*;

use super::reductions::{NUMBERS, left_out, smaller};
use super::search::*;
use zprobe_model::spec::{Dtype, Offload, RunSpec, Shape, SpecRequest};
use zprobe_report::Trial;

fn resolve(request: &SpecRequest) -> Option<RunSpec> {
    request.clone().resolve().ok()
}

/// Searches for the smallest configuration in which `happens` is true, and records every tried configuration.
fn search(
    start: &SpecRequest,
    limit: usize,
    happens: impl Fn(&RunSpec) -> bool,
) -> (Smallest, Vec<RunSpec>) {
    let mut asked = Vec::new();
    let smallest = minimise(start.clone(), &resolve, limit, &mut |change, spec| {
        asked.push(spec.clone());
        let kept = happens(spec);
        Ok::<_, Infallible>(Trial { change: change.to_owned(), said: kept.to_string(), kept })
    });
    (smallest.unwrap_or_else(|never| match never {}), asked)
}

fn large() -> SpecRequest {
    SpecRequest {
        world_size: Some(4),
        gradient_accumulation_steps: Some(8),
        steps: Some(3),
        stage: Some(2),
        offload: Some(Offload::Cpu),
        overlap_comm: Some(true),
        gradient_clipping: Some(1.0),
        dtype: Some(Dtype::Fp32),
        shapes: vec![Shape::Tied, Shape::UnusedFirst, Shape::Frozen],
        seed: Some(7),
        ..SpecRequest::default()
    }
}

#[test]
fn what_has_nothing_to_do_with_it_goes_and_what_has_stays() {
    let happens = |spec: &RunSpec| {
        spec.world_size >= 2
            && spec.gradient_accumulation_steps >= 2
            && spec.offload == Offload::Cpu
            && spec.has_shape(Shape::UnusedFirst)
    };
    let (smallest, _) = search(&large(), 100, happens);
    assert!(smallest.complete);
    let typed = "--ga 2 --offload cpu --shape unused-first --steps 1";
    assert_eq!(smallest.request.arguments().join(" "), typed);
}

#[test]
fn what_happens_in_every_configuration_takes_few_questions() {
    let (smallest, asked) = search(&large(), 100, |_| true);
    let typed = "--ga 1 --nproc-per-node 1 --steps 1";
    assert_eq!((smallest.request.arguments().join(" "), asked.len()), (typed.to_owned(), 4));
}

#[test]
fn a_search_whose_questions_are_used_up_says_so_and_keeps_what_it_has() {
    let happens = |spec: &RunSpec| spec.offload == Offload::Cpu;
    let (smallest, asked) = search(&large(), 3, happens);
    assert_eq!((smallest.complete, asked.len()), (false, 3));
    assert!(happens(&resolve(&smallest.request).expect("a valid request")));
}

proptest! {
    #[test]
    fn it_still_happens_in_the_smallest_and_in_nothing_that_is_smaller_by_one_reduction(
        ranks in 1..5usize, ga in 1..9usize, steps in 1..4usize,
        wants in proptest::collection::vec(any::<bool>(), 6),
    ) {
        let happens = |spec: &RunSpec| {
            spec.world_size >= ranks && spec.gradient_accumulation_steps >= ga
                && spec.steps >= steps.min(3)
                && (!wants[0] || spec.offload == Offload::Cpu)
                && (!wants[1] || spec.overlap_comm() == Some(true))
                && (!wants[2] || spec.gradient_clipping > 0.0)
                && (!wants[3] || spec.dtype == Dtype::Fp32)
                && (!wants[4] || spec.has_shape(Shape::Tied))
                && (!wants[5] || spec.stage == 2)
        };
        prop_assume!(happens(&resolve(&large()).expect("a valid request")));
        let (smallest, asked) = search(&large(), 1000, happens);
        let spec = resolve(&smallest.request).expect("a valid request");
        prop_assert!(smallest.complete);
        prop_assert!(happens(&spec));
        let numbers = (0..NUMBERS.len()).flat_map(|axis| smaller(axis, &spec));
        for reduction in left_out(&smallest.request).into_iter().chain(numbers) {
            let mut request = smallest.request.clone();
            reduction.apply(&mut request);
            let Some(other) = resolve(&request) else { continue };
            prop_assert!(other == spec || !happens(&other), "{}", reduction.description());
        }
        let questions: HashSet<String> =
            asked.iter().map(|spec| serde_json::to_string(spec).expect("JSON")).collect();
        prop_assert_eq!(questions.len(), asked.len());
    }
}
