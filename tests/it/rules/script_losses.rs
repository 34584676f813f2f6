//! Scripts whose losses have other weights than a mean: the findings about terms, and the line about the loss.

use zprobe_diagnose::diagnose;
use zprobe_model::trace::{ConstantKind, Event, LossWeighed, TermOf, Trace};
use zprobe_report::{Report, Verdict};

use super::scenarios::{edit, recorded};

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.code.as_str()).collect()
}

/// The report on a correct script's trace in which `change` has changed each loss of each rank.
fn with_losses(change: impl Fn(usize, &mut LossWeighed)) -> Report {
    diagnose(&changed(recorded("script-clean"), change))
}

/// The trace in which `change` has changed each loss of each rank.
fn changed(mut trace: Trace, change: impl Fn(usize, &mut LossWeighed)) -> Trace {
    for rank in 0..2 {
        edit(&mut trace, rank, |event| {
            if let Event::LossWeighed(loss) = event {
                change(rank, loss);
            }
        });
    }
    trace
}

/// Multiplies all weights of the only term of a loss.
fn scale(loss: &mut LossWeighed, factor: f64) {
    let term = &mut loss.terms[0];
    term.least *= factor;
    term.most *= factor;
    term.total *= factor;
    term.runs.iter_mut().for_each(|(_, weight)| *weight *= factor);
}

/// Multiplies or divides the only term of a loss at another line of the script.
fn apply(loss: &mut LossWeighed, factor: f64, divides: bool, line: &str) {
    scale(loss, if divides { 1.0 / factor } else { factor });
    let mut constant = loss.terms[0].constants[0].clone();
    (constant.factor, constant.divides) = (factor, divides);
    (constant.kind, constant.at) =
        (ConstantKind::Int, Some(format!("examples/train/ddp.py:{line}")));
    loss.terms[0].constants.insert(0, constant);
}

/// The report on a correct script's trace with a second term in each loss. The second term is divided like
/// the first, and is summed over padding or not.
fn beside_a_term(sees_padding: bool) -> Report {
    with_losses(|_, loss| {
        let mut beside = loss.terms[0].clone();
        (beside.of, beside.name) = (TermOf::Elements, "Pow".to_owned());
        if sees_padding {
            beside.elements = beside.shape.iter().product();
            beside.total = beside.least * beside.elements as f64;
            beside.runs = vec![(beside.elements, beside.least)];
        }
        loss.terms.push(beside);
    })
}

#[test]
fn a_term_without_the_mask_of_the_other_is_found() {
    let report = beside_a_term(true);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Findings, vec!["ZP115"]));
    let message = &report.findings[0].message;
    assert!(message.contains("has no mask"), "{message}");
    let report = beside_a_term(false);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));
}

/// The report on a correct script's trace in whose last step the loss of microbatch 1 weighs twice as much:
/// by a divisor, or by a weight that the script applies.
fn heavy_in_one_step(divides: bool) -> Report {
    with_losses(|_, loss| {
        if (loss.step, loss.microbatch) == (2, 1) {
            scale(loss, 2.0);
            let mut constants = loss.terms[0].constants.iter_mut();
            let constant = constants.find(|it| it.divides == divides).expect("a constant");
            constant.factor *= if divides { 0.5 } else { 2.0 };
        }
    })
}

#[test]
fn a_microbatch_that_weighs_more_in_one_step_is_found_if_it_is_divided_by_less() {
    let report = heavy_in_one_step(true);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Findings, vec!["ZP113"]));
    let [found] = &report.findings[..] else { unreachable!() };
    assert!(found.message.starts_with("in step 2 the loss of microbatch 1"), "{}", found.message);
    let report = heavy_in_one_step(false);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));
}

/// A fact that a report states about the loss.
fn fact<'a>(report: &'a Report, name: &str) -> &'a str {
    &report.run.engine_facts[name]
}

#[test]
fn constants_of_different_lines_are_listed_apart() {
    let cases: [(&[(usize, usize)], &str); 4] = [
        (&[(0, 0), (1, 0)], "microbatch 0 of every rank"),
        (&[(0, 0), (0, 1)], "rank 0"),
        (&[(1, 1)], "microbatch 1 of rank 1"),
        (&[(0, 0), (1, 1)], "some microbatches"),
    ];
    for (having, which) in cases {
        let report = with_losses(|rank, loss| {
            if having.contains(&(rank, loss.microbatch)) {
                apply(loss, 2.0, false, "85");
            }
        });
        let contract = fact(&report, "contract");
        let expected = format!(
            "× 2 (examples/train/ddp.py:79); ÷ 116 (examples/train/ddp.py:79); × 2 (examples/train/ddp.py:85) for {which}; "
        );
        assert!(contract.contains(&expected), "{contract}");
        // The microbatches with the additional multiplication are the odd ones.
        let found = report.findings.iter().find(|it| it.code.as_str() == "ZP113");
        let message = format!("the loss of {which} has 2 times the weight of the others");
        assert!(found.is_none_or(|it| it.message == message), "{found:#?}");
        assert_eq!(found.is_some(), which != "some microbatches");
    }
}

#[test]
fn a_rank_that_weighs_more_is_no_missing_division_and_no_mask() {
    for times in [2.0, 3.0] {
        let report = with_losses(|rank, loss| {
            let term = &mut loss.terms[0];
            (term.elements, term.shape) = (29, vec![29]);
            term.total = 29.0 * term.least;
            scale(loss, if rank == 1 { times } else { 1.0 });
        });
        assert_eq!(codes(&report), ["ZP113"]);
        assert!(report.findings[0].consequences.is_empty(), "{:#?}", report.findings);
        let judged = fact(&report, "judged");
        assert!(judged.contains(" times a mean: microbatches have different weights)"), "{judged}");
    }
}

#[test]
fn a_number_that_is_both_steps_and_ranks_is_named_as_both() {
    let twice = with_losses(|_, loss| apply(loss, 2.0, true, "85"));
    let mut trace = recorded("script-clean");
    trace.records.retain(|it| !matches!(it.event, Event::ScriptRemarked(_)));
    let never = diagnose(&changed(trace, |_, loss| apply(loss, 2.0, false, "85")));
    for (report, what) in [
        (twice, "divided twice by the accumulation steps or by"),
        (never, "not divided by their number (2 each)"),
    ] {
        assert_eq!(codes(&report), ["ZP111"]);
        let found = &report.findings[0];
        assert!(found.message.contains(what), "{}", found.message);
        let both = "2 is both the accumulation steps and the number of ranks";
        assert!(found.evidence.iter().any(|it| it.starts_with(both)), "{:#?}", found.evidence);
    }
    // The engine averages over the ranks, so that only the division by the steps can be missing.
    let steps = with_losses(|_, loss| apply(loss, 2.0, false, "85"));
    assert!(steps.findings[0].message.contains("never divided by the accumulation steps (2)"));
    // No other code divides by 2, so that only the engine's division can be repeated.
    let ranks = with_losses(|_, loss| {
        scale(loss, 0.5);
        loss.terms[0].constants.retain(|it| it.divides);
    });
    assert!(ranks.findings[0].message.contains("divided by the number of ranks (2) twice"));
}

#[test]
fn a_report_describes_the_loss_of_one_step() {
    let report = with_losses(|_, loss| scale(loss, [1.0, 0.7, 0.9][loss.step]));
    assert_eq!(report.verdict, Verdict::Clean);
    let (contract, judged) = (fact(&report, "contract"), fact(&report, "judged"));
    assert!(contract.starts_with("loss: in step 1, sum over "), "{contract}");
    assert!(contract.contains("together 0.7: "), "{contract}");
    assert!(judged.contains("(0.7 times a mean, for an unknown reason)"), "{judged}");
}

#[test]
fn the_scale_of_a_step_with_unequal_microbatches_has_a_reason() {
    let trace = changed(recorded("script-unequal-microbatches"), |_, loss| scale(loss, 0.7));
    let report = diagnose(&trace);
    assert_eq!(codes(&report), ["ZP108"]);
    let judged = fact(&report, "judged");
    assert!(
        judged.contains(" times a mean: ranks took different numbers of microbatches)"),
        "{judged}"
    );
}

#[test]
fn old_gradients_of_the_first_step_have_their_weight_in_the_next_step() {
    let report = diagnose(&recorded("script-never-cleared"));
    assert_eq!(codes(&report), ["ZP106"]);
    let found = &report.findings[0];
    assert_eq!(found.step, Some(1));
    let first = "weights in the optimizer's input of step 1 on rank 0: [[1, 1], [1, 1]]";
    assert_eq!(found.evidence[0], first);
    for entry in &report.contributions {
        assert_eq!(
            (&entry.weights, &entry.leftover),
            (&vec![vec![1.0; 2]; 2], &vec![vec![1.0; 2]; 2])
        );
        assert!(entry.residual <= entry.tolerance && !entry.as_planned, "{entry:#?}");
    }
}

/// Makes the only term of a loss the mean over 29 elements, divided by the accumulation steps.
fn average(loss: &mut LossWeighed) {
    let term = &mut loss.terms[0];
    (term.of, term.name, term.kind) = (TermOf::Elements, "mse".to_owned(), "mean".to_owned());
    (term.elements, term.shape, term.weighted) = (29, vec![29], false);
    (term.least, term.most, term.total) = (1.0 / 29.0, 1.0 / 29.0, 1.0);
    term.runs.clear();
    term.constants.truncate(1);
    term.constants[0].factor = 1.0;
    apply(loss, 2.0, true, "79");
}

#[test]
fn microbatches_of_two_tasks_are_right_if_they_are_divided_alike() {
    let by_turns = |divisor: f64| {
        with_losses(|_, loss| {
            average(loss);
            if loss.microbatch == 1 {
                loss.terms[0].name = "abs".to_owned();
                apply(loss, divisor, true, "80");
            }
        })
    };
    let report = by_turns(1.0);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));
    assert_eq!(by_turns(2.0).verdict, Verdict::Findings);
}

#[test]
fn a_mix_of_losses_of_one_kind_is_right_if_the_mix_weighs_the_same() {
    let mixed = |second: f64| {
        with_losses(|rank, loss| {
            average(loss);
            let share = [0.3, 0.6][loss.microbatch];
            loss.terms.push(loss.terms[0].clone());
            scale(loss, share);
            loss.terms.swap(0, 1);
            scale(loss, if rank == 0 { second * (1.0 - share) } else { 1.0 - share });
        })
    };
    let report = mixed(1.0);
    assert_eq!(
        (report.verdict, codes(&report)),
        (Verdict::Clean, vec![]),
        "{:#?}",
        report.findings
    );
    assert_eq!(mixed(2.0).verdict, Verdict::Findings);
}

#[test]
fn a_sum_that_lacks_the_division_of_the_other_term_is_found() {
    let beside_a_sum = |is_divided: bool, sign: f64| {
        with_losses(|_, loss| {
            average(loss);
            let mut sum = loss.terms[0].clone();
            (sum.name, sum.kind) = ("mul".to_owned(), "sum".to_owned());
            (sum.elements, sum.shape, sum.terms) = (8, vec![4], 2);
            (sum.least, sum.most, sum.total) = (0.01, 0.01, 0.08);
            let coefficient = &mut sum.constants[0];
            (coefficient.factor, coefficient.divides) = (sign * 0.01, false);
            coefficient.kind = ConstantKind::Float;
            sum.constants.truncate(1);
            loss.terms.insert(0, sum);
            if is_divided {
                apply(loss, 2.0, true, "79");
            }
        })
    };
    for sign in [1.0, -1.0] {
        let report = beside_a_sum(true, sign);
        assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));
        let report = beside_a_sum(false, sign);
        assert_eq!(codes(&report), ["ZP112"]);
        let message = &report.findings[0].message;
        assert!(message.contains("has 2 times the weight"), "{message}");
    }
}

#[test]
fn an_average_of_two_terms_of_one_kind_is_no_sum_of_them() {
    // Two steps and two ranks: a division by 2 may be that of a sum by the steps, a multiplication by 0.5 is an average.
    let two_means = |divides_by_steps: bool, (factor, divides): (f64, bool)| {
        with_losses(|_, loss| {
            average(loss);
            if !divides_by_steps {
                scale(loss, 2.0);
                loss.terms[0].constants[0].factor = 1.0;
            }
            apply(loss, factor, divides, "78");
            let term = &mut loss.terms[0];
            (term.terms, term.elements, term.total) = (2, 2 * term.elements, 2.0 * term.total);
            term.constants[0].written = true;
            term.constants[0].kind = if divides { ConstantKind::Int } else { ConstantKind::Float };
        })
    };
    assert_eq!(codes(&two_means(true, (0.5, false))), [""; 0]);
    assert_eq!(codes(&two_means(false, (0.5, false))), ["ZP111"]);
    assert_eq!(codes(&two_means(false, (2.0, true))), [""; 0]);
}

#[test]
fn a_number_of_elements_is_a_count_in_any_kind_of_number() {
    // The trace's loss is divided by its tokens, and multiplied by the ranks.
    let with_kind = |kind: ConstantKind, has_ranks: bool| {
        with_losses(|_, loss| {
            let constants = &mut loss.terms[0].constants;
            for count in constants.iter_mut().filter(|it| it.divides && it.factor > 8.0) {
                count.kind = kind;
            }
            constants.retain(|it| has_ranks || it.divides);
            if !has_ranks {
                scale(loss, 0.5);
            }
        })
    };
    assert_eq!(codes(&with_kind(ConstantKind::Float, true)), [""; 0]);
    assert_eq!(codes(&with_kind(ConstantKind::Float, false)), ["ZP111"]);
}

#[test]
fn a_window_with_more_microbatches_than_its_loss_is_divided_by_is_found() {
    let with_last_window = |microbatches: usize, written: bool| {
        let mut trace = changed(recorded("script-clean"), |_, loss| {
            average(loss);
            loss.terms[0].constants[0].written = written;
        });
        for rank in 0..2 {
            edit(&mut trace, rank, |event| {
                if let Event::StepEnded { step: 2, microbatches: taken, .. } = event {
                    *taken = microbatches;
                }
            });
        }
        diagnose(&trace)
    };
    let report = with_last_window(3, false);
    assert_eq!(codes(&report), ["ZP111"]);
    let message = &report.findings[0].message;
    assert!(message.starts_with("the window of step 2 has 3 microbatches"), "{message}");
    assert_eq!(codes(&with_last_window(2, false)), [""; 0]);
    // A number that the line contains in digits is no number of microbatches.
    assert_eq!(codes(&with_last_window(3, true)), [""; 0]);
}

#[test]
fn a_long_window_with_several_divisors_weighs_as_much_as_its_losses() {
    // The window has two microbatches of a short window, and all three of a full one.
    let mut trace = changed(recorded("script-divided-twice"), |_, loss| {
        average(loss);
        let divisor = if loss.step == 2 && loss.microbatch < 2 { 2.0 } else { 3.0 };
        let constants = &mut loss.terms[0].constants;
        constants.truncate(1);
        constants[0].factor = divisor;
    });
    for rank in 0..2 {
        edit(&mut trace, rank, |event| {
            if let Event::StepEnded { step: 2, microbatches, .. } = event {
                *microbatches = 5;
            }
        });
    }
    let report = diagnose(&trace);
    let messages: Vec<&str> = report.findings.iter().map(|it| it.message.as_str()).collect();
    let whole = "the window of step 2 has 5 microbatches, but its loss is divided by 2 or 3: the window has 2 times";
    assert!(messages.iter().any(|it| it.starts_with(whole)), "{messages:?}");
}

/// The report on a correct script whose loss is the sum over 4 samples of 8 elements, divided by the samples and by
/// `steps`.
fn mean_of_sums(steps: f64) -> Report {
    with_losses(|_, loss| {
        average(loss);
        let term = &mut loss.terms[0];
        (term.kind, term.shape, term.elements) = ("sum".to_owned(), vec![4, 8], 32);
        (term.least, term.most, term.total) = (1.0, 1.0, 32.0);
        term.constants.truncate(1);
        term.constants[0].factor = 1.0;
        apply(loss, 4.0, true, "79");
        apply(loss, steps, true, "79");
    })
}

#[test]
fn a_mean_of_sums_that_is_not_divided_by_the_steps_is_found() {
    assert_eq!(codes(&mean_of_sums(2.0)), [""; 0]);
    let report = mean_of_sums(1.0);
    assert_eq!(codes(&report), ["ZP111"]);
    let message = &report.findings[0].message;
    assert!(message.starts_with("the loss has 2 times the weight of a mean"), "{message}");
}

/// The report on a correct script whose loss is a sum of 20 rows of 4 elements on rank 0, and of 28 rows on rank 1, in
/// each microbatch. `divisor` divides the sum, and DDP averages.
fn boxes(divisor: f64) -> Report {
    with_losses(|rank, loss| {
        average(loss);
        let term = &mut loss.terms[0];
        let elements = if rank == 0 { 80 } else { 112 };
        (term.kind, term.shape, term.elements) = ("sum".to_owned(), vec![30, 4], elements);
        (term.least, term.most, term.total) = (1.0, 1.0, elements as f64);
        term.constants.truncate(1);
        term.constants[0].factor = 1.0;
        apply(loss, divisor, true, "79");
        loss.terms[0].constants[0].kind = ConstantKind::Float;
    })
}

#[test]
fn a_count_of_all_ranks_is_one_division_too_many_where_ranks_are_averaged() {
    let report = boxes(96.0);
    assert_eq!(codes(&report), ["ZP111"]);
    let message = &report.findings[0].message;
    assert!(message.contains("divided by the number of ranks (2) twice"), "{message}");
    // The count is divided by the number of ranks, or is another number.
    assert_eq!(codes(&boxes(48.0)), [""; 0]);
    assert_eq!(codes(&boxes(97.0)), [""; 0]);
}

#[test]
fn a_last_microbatch_without_a_loss_on_some_ranks_is_a_dummy() {
    let zeroed = |ranks: std::ops::Range<usize>, microbatches: std::ops::RangeInclusive<usize>| {
        with_losses(|rank, loss| {
            if ranks.contains(&rank) && microbatches.contains(&loss.microbatch) {
                (loss.zeroed, loss.terms) = (true, Vec::new());
            }
        })
    };
    let is_finding = |report: &Report| report.findings.iter().any(|it| it.code.as_str() == "ZP113");
    assert!(!is_finding(&zeroed(1..2, 1..=1)));
    assert!(is_finding(&zeroed(0..2, 1..=1)), "no rank has the microbatch");
    assert!(is_finding(&zeroed(1..2, 0..=0)), "a microbatch with a loss comes later");
    assert!(is_finding(&zeroed(1..2, 0..=1)), "the rank has no loss at all");
}
