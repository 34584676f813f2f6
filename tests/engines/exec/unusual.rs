//! Correct scripts that are unlike most scripts.

use zprobe_model::trace::Point;
use zprobe_report::{Report, Verdict};

use super::{Run, exec, file, full, python, text};

/// The options of both modes: codes, and the script's own gradients.
type Modes = [&'static [&'static str]; 2];

const MODES: Modes = [&[], &["--observe"]];

/// The options of both modes for a script of two steps.
const TWO_STEPS: Modes = [&[], &["--observe=2"]];

/// The modes in which the kind at index `at` of a list is tried: both modes, or in an everyday test one of
/// them in turn.
fn in_turn(modes: &Modes, at: usize) -> &[&'static [&'static str]] {
    if full() { modes } else { &modes[at % 2..][..1] }
}

/// Runs `unusual.py` with a kind of training.
fn unusual(options: &[&str], kind: &str) -> Run {
    let (python, script) = (python(), file("tests/engines/exec/scripts/unusual.py"));
    exec(options, &[text(&python), text(&script), kind])
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn what_is_unusual_is_no_finding_and_trains_to_its_end_where_it_is_observed() {
    let kinds = ["lbfgs", "two_in_one", "loose", "unused", "shared", "sparse", "phases"];
    for (at, kind) in kinds.iter().enumerate().take(if full() { kinds.len() } else { 2 }) {
        for options in in_turn(&MODES, at) {
            let run = unusual(options, kind);
            let report = run.report();
            assert_eq!(report.verdict, Verdict::Clean, "{kind} {options:?}: {}", run.findings());
            assert_eq!(run.code, 0, "{kind} {options:?}");
            assert!(options.is_empty() || run.stdout.starts_with("done"), "{kind}: {}", run.stderr);
        }
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_loss_of_cached_features_counts_once_and_an_output_that_nothing_uses_is_a_remark() {
    for options in MODES {
        let run = unusual(options, "cached");
        let report = run.report();
        assert_eq!(report.verdict, Verdict::Clean, "{options:?}: {}", run.findings());
        let contract = &report.run.engine_facts["contract"];
        assert!(contract.contains("of all microbatches, in each microbatch"), "{contract}");
        assert!(contract.contains("together 1:"), "{contract}");
        let is_told =
            |it: &String| it.contains("pooler (Linear) runs in forward, but nothing uses");
        assert!(report.remarks.iter().any(is_told), "{options:?}: {:?}", report.remarks);
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_backward_that_ends_at_inputs_is_no_microbatch() {
    for options in MODES {
        let run = unusual(options, "cached_gradients");
        let Report { verdict, run: about, .. } = run.report();
        assert_eq!(*verdict, Verdict::Clean, "{options:?}: {}", run.findings());
        assert_eq!(about.spec.gradient_accumulation_steps, 2, "{options:?}");
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn the_common_factor_of_a_model_of_a_few_elements_is_no_finding() {
    let run = unusual(&[], "few");
    assert_eq!(run.report().verdict, Verdict::Clean, "{}", run.findings());
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_search_for_the_loss_scale_is_a_remark_and_no_finding() {
    for options in MODES {
        let run = unusual(options, "scaled");
        let Report { verdict, remarks, run: about, .. } = run.report();
        assert_eq!(*verdict, Verdict::Clean, "{options:?}: {}", run.findings());
        assert_eq!(about.spec.gradient_accumulation_steps, 2, "{options:?}");
        // Codes do not overflow, so only the script's own gradients cause the remark.
        let skipped = remarks.iter().any(|it| it.contains("before steps 0 and 1"));
        assert_eq!(skipped, !options.is_empty(), "{options:?}: {remarks:?}");
    }
}

/// The number of gradients that reached the optimizer, as the first line of the report prints it.
fn arrived(run: &Run) -> &str {
    let line = run.stdout.lines().find(|line| line.starts_with("clean:")).expect("a verdict");
    line.split_whitespace().nth(2).expect("a number")
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn gradients_that_are_cleared_on_purpose_are_a_remark_and_no_finding() {
    let kinds = [
        ("sharpness", "the parameters changed", "2"),
        ("adversarial", "a gradient of an input", "2"),
        ("attacked", "a gradient of an input", "2"),
        ("skipped", "no optimizer stepped", "4"),
    ];
    for (at, (kind, remark, gradients)) in kinds.into_iter().enumerate() {
        for options in in_turn(&TWO_STEPS, at) {
            let run = unusual(options, kind);
            let Report { verdict, remarks, .. } = run.report();
            assert_eq!(*verdict, Verdict::Clean, "{kind} {options:?}: {}", run.findings());
            assert!(
                remarks.iter().any(|it| it.contains(remark)),
                "{kind} {options:?}: {remarks:?}"
            );
            assert_eq!(arrived(&run), gradients, "{kind} {options:?}");
        }
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn gradients_that_are_cleared_between_microbatches_are_lost() {
    let kinds = ["cleared", "cleared_under_a_checkpoint", "cleared_under_normalised_weights"];
    for (at, kind) in kinds.into_iter().enumerate() {
        for options in in_turn(&TWO_STEPS, at) {
            let run = unusual(options, kind);
            let findings = &run.report().findings;
            let [finding] = &findings[..] else { panic!("{kind}: {}", run.findings()) };
            assert_eq!(finding.code.as_str(), "ZP102", "{kind} {options:?}: {}", run.findings());
        }
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn gradients_that_are_cleared_again_and_again_leave_no_conclusion() {
    let run = unusual(&[], "cleared_as_a_habit");
    assert_eq!(run.report().verdict, Verdict::Inconclusive, "{}", run.findings());
    let unseen = &run.report().not_exercised;
    assert!(unseen.iter().any(|it| it.contains("cleared repeatedly before")), "{unseen:?}");
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn gradients_that_are_orthogonalised_before_the_step_leave_no_conclusion() {
    for options in MODES {
        let run = unusual(options, "orthogonalised");
        let Report { verdict, not_exercised, .. } = run.report();
        assert_eq!(*verdict, Verdict::Inconclusive, "{options:?}: {}", run.findings());
        assert!(
            not_exercised.iter().any(|it| it.contains("Muon's orthogonalisation")),
            "{options:?}: {not_exercised:?}"
        );
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn gradients_that_are_orthogonalised_in_each_microbatch_are_named() {
    let run = unusual(&[], "orthogonalised_in_each");
    let codes: Vec<_> = run.report().findings.iter().map(|it| it.code.as_str()).collect();
    assert!(codes.contains(&"ZP114"), "{}", run.findings());
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn gradients_that_a_kernel_adds_to_main_grad_are_judged() {
    for options in MODES {
        let run = unusual(options, "fused_gradients");
        assert_eq!(run.report().verdict, Verdict::Clean, "{options:?}: {}", run.findings());
        let contributions = run.report().contributions.iter();
        let consumed = contributions.filter(|it| it.point == Point::OptimizerInput);
        let weights: Vec<_> = consumed.flat_map(|it| it.weights.iter().flatten()).collect();
        assert!(weights.iter().all(|it| (**it - 1.0).abs() < 1e-3), "{options:?}: {weights:?}");
        assert!(!weights.is_empty(), "{options:?}");
        let run = unusual(options, "fused_gradients_that_are_never_cleared");
        let codes: Vec<_> = run.report().findings.iter().map(|it| it.code.as_str()).collect();
        assert_eq!(codes, ["ZP106"], "{options:?}: {}", run.findings());
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn gradients_out_of_sight_are_the_reason_for_no_answer() {
    for options in MODES {
        let run = unusual(options, "compiled_backward");
        assert!(run.report.is_none(), "{options:?}: {}", run.findings());
        assert!(run.stderr.contains("compiled autograd"), "{options:?}: {}", run.stderr);
        assert_eq!(run.code, 4, "{options:?}");
        assert!(options.is_empty() || run.stdout.starts_with("done"), "{}", run.stderr);
    }
}
