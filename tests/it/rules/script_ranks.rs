//! Scripts whose ranks hold other parameters or other values than each other, optimizers with a changing rate, and
//! gradients that the script changes before the step.

use zprobe_diagnose::diagnose;
use zprobe_model::spec::Dtype;
use zprobe_model::trace::{Event, InVain, Payload, Point, Record, Trace};
use zprobe_report::document::headline;
use zprobe_report::{Report, Verdict};

use super::scenarios::{edit, recorded};
use crate::simulator;

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.code.as_str()).collect()
}

#[test]
fn ranks_with_other_parameters_are_inconclusive() {
    let mut trace = recorded("script-clean");
    edit(&mut trace, 1, |event| {
        if let Event::Model { params } = event {
            params.remove(0);
        }
    });
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Inconclusive, vec![]));
}

#[test]
fn ranks_that_begin_with_other_values_may_train_on_the_same_samples() {
    let mut trace = recorded("script-same-samples");
    assert_eq!(codes(&diagnose(&trace)), ["ZP116"]);
    edit(&mut trace, 1, |event| {
        if let Event::ParametersDigested { step: None, digests, .. } = event {
            digests[0] = digests[0].map(|digest| digest + 1.0);
        }
    });
    assert!(!codes(&diagnose(&trace)).contains(&"ZP116"));
}

#[test]
fn parameters_that_a_script_multiplies_by_the_ranks_differ_from_the_update() {
    let with_factor = |factor| {
        let mut trace = recorded("script-clean");
        for rank in 0..2 {
            edit(&mut trace, rank, |event| {
                if matches!(event, Event::LossWeighed(it) if it.step == 1 && it.microbatch == 0) {
                    *event = Event::ParametersMultiplied { step: 0, factor };
                }
            });
        }
        diagnose(&trace)
    };
    let report = with_factor(1.98);
    assert_eq!(codes(&report), ["ZP603"]);
    assert!(report.findings[0].message.contains("multiplied all parameters by 2"));
    assert!(with_factor(0.5).findings[0].message.contains("divided all parameters by 2"));
    assert!(codes(&with_factor(1.5)).is_empty());
}

#[test]
fn a_division_by_a_count_after_clipping_is_found() {
    let with_divisors = |divisors: [f64; 2]| {
        let mut trace = recorded("script-clipped-in-vain");
        let is_call = |it: &Record| matches!(it.event, Event::ClippedInVain(_));
        let call = trace.records.iter().find(|it| is_call(it)).expect("a call").clone();
        trace.records.retain(|it| !is_call(it));
        let at = trace.records.iter().position(|it| it.event.moment().0 == Some(2));
        for (step, divisor) in (1..).zip(divisors) {
            let mut call = call.clone();
            if let Event::ClippedInVain(call) = &mut call.event {
                (call.step, call.how, call.factor) =
                    (step, InVain::BeforeScaling, Some(1.0 / divisor));
            }
            trace.records.insert(at.expect("a record of step 2"), call);
        }
        diagnose(&trace)
    };
    let is_found = |divisors| codes(&with_divisors(divisors)).contains(&"ZP607");
    // These are numbers of tokens, which differ between steps, and the number of ranks.
    assert!(is_found([345.0, 347.0]) && is_found([2.0, 2.0]));
    // A loss scale may differ between steps, too.
    let report = with_divisors([65536.0, 32768.0]);
    let has = |words| report.findings.iter().any(|it| it.message.contains(words));
    assert!(has("the loss scale was still in them") && !has("a sum of gradients"));
    // A factor of the script's own may be the same in each step, or no whole number.
    assert!(!is_found([10.0, 10.0]) && !is_found([345.1, 347.3]));
}

#[test]
fn parameters_that_no_step_changes_differ_from_the_update() {
    let with_steps = |unmoved: &[(usize, usize)]| {
        let mut trace = recorded("script-clean");
        for (step, param) in unmoved {
            let is_of_rank = |it: &Record| it.rank == Some(0) && it.event.moment().0 == Some(2);
            let at = trace.records.iter().position(is_of_rank).expect("a record of step 2");
            let event = Event::ParametersUnmoved { step: *step, params: vec![*param] };
            let record = Record { rank: Some(0), event, ..trace.records[at].clone() };
            trace.records.insert(at, record);
        }
        diagnose(&trace)
    };
    let report = with_steps(&[(0, 1), (1, 1)]);
    assert_eq!(codes(&report), ["ZP603"]);
    assert!(report.findings[0].message.starts_with("no step changed "));
    // A step that changes the parameter shows that the optimizer does not leave it out.
    assert!(codes(&with_steps(&[(1, 1)])).is_empty());
    assert!(codes(&with_steps(&[(0, 1), (1, 2)])).is_empty());
}

#[test]
fn a_rank_that_gets_the_update_of_another_rank_need_not_step() {
    let mut trace = recorded("script-optimizer-idle");
    assert_eq!(codes(&diagnose(&trace)), ["ZP606"]);
    edit(&mut trace, 1, |event| {
        if let Event::ScriptRemarked(remarks) = event {
            remarks.receives = true;
        }
    });
    assert!(!codes(&diagnose(&trace)).contains(&"ZP606"));
}

#[test]
fn steps_with_more_microbatches_than_the_first_are_not_read_from_samples() {
    let mut trace = recorded("script-observed");
    for rank in 0..2 {
        edit(&mut trace, rank, |event| match event {
            Event::StepEnded { step: 3, microbatches, .. } => *microbatches = 3,
            Event::Buffer { point: Point::OptimizerInput, step: Some(3), payload, .. } => {
                let values = payload.values().expect("recorded values");
                let bytes = values.iter().flat_map(|it| (*it as f32 + 1.0).to_le_bytes());
                *payload = simulator::payload(Dtype::Fp32, &bytes.collect::<Vec<u8>>());
            }
            _ => {}
        });
    }
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));
    let said = "microbatches after the first 2 of a step";
    assert!(report.not_exercised.iter().any(|it| it.starts_with(said)));
    assert!(headline(&report).ends_with("; 1 step not read, or skipped"));
}

/// A correct script's trace whose optimizers were to have the rate 1, and have these rates in the steps.
fn with_rates(rates: [f64; 3]) -> Trace {
    let mut trace = recorded("script-clean");
    for rank in 0..2 {
        edit(&mut trace, rank, |event| {
            if let Event::OptimizerStepped(stepped) = event {
                stepped.asked.insert("lr".to_owned(), vec![1.0]);
                for group in &mut stepped.groups {
                    group.insert("lr".to_owned(), vec![rates[stepped.step]]);
                    group.remove("initial_lr");
                }
            }
        });
    }
    trace
}

#[test]
fn a_rate_that_changes_from_step_to_step_is_no_wrong_setting() {
    let report = diagnose(&with_rates([0.25; 3]));
    assert_eq!(codes(&report), ["ZP608"]);
    let message = &report.findings[0].message;
    assert!(
        message.ends_with("has lr 0.25, but 1 was requested in its configuration"),
        "{message}"
    );
    assert_eq!(codes(&diagnose(&with_rates([0.0, 0.25, 0.5]))), [""; 0]);
}

/// The report of a correct script whose optimizers consume other elements than the backwards left: element `i` is
/// increased by `noise(rank, i)`.
fn with_noise(noise: impl Fn(usize, usize) -> f32) -> Report {
    let mut trace = recorded("script-clean");
    for rank in 0..2 {
        edit(&mut trace, rank, |event| {
            if let Event::Buffer { point: Point::OptimizerInput, payload, .. } = event {
                let values = payload.values().expect("whole elements");
                let noisy = values.iter().enumerate().map(|(i, it)| *it as f32 + noise(rank, i));
                let noisy: Vec<f32> = noisy.collect();
                let norm = noisy.iter().map(|it| f64::from(*it).powi(2)).sum::<f64>().sqrt();
                let bytes: Vec<u8> = noisy.iter().flat_map(|it| it.to_le_bytes()).collect();
                *payload = Payload::new(payload.dtype, &bytes, norm);
            }
        });
    }
    diagnose(&trace)
}

#[test]
fn noise_that_is_the_same_on_all_ranks_is_on_purpose() {
    let of_place = |i: usize| (i % 7) as f32 * 1e4;
    let report = with_noise(|_, i| of_place(i));
    assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));
    let remark = "in the same way on all ranks, as noise or gradient centralisation does";
    assert!(report.remarks.iter().any(|it| it.contains(remark)), "{:?}", report.remarks);

    assert_eq!(codes(&with_noise(|rank, i| of_place(i + rank))), ["ZP605"]);
    assert_eq!(codes(&with_noise(|_, i| if i < 4 { 1e6 } else { 0.0 })), ["ZP605"]);
}
