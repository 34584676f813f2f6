//! A comparison as text: first the differences, then the numbers.

mod page;
mod plot;

use self::page::ComparisonPage;
use super::{ComparedStep, Comparison, SettingDifference};
use zprobe_model::visible::{self, Visible};
use zprobe_report::Form;
use zprobe_report::words::{amount, two_digits};

/// Number of buffers whose weights are shown.
const SHOWN: usize = 6;

/// Renders a comparison in one of [`Form::OF_A_TABLE`].
///
/// # Errors
/// When JSON cannot be written, which does not happen with a [`Comparison`].
pub fn render(comparison: &Comparison, form: Form) -> serde_json::Result<String> {
    let mut page = match form {
        Form::Json => return visible::json(comparison),
        Form::Markdown => ComparisonPage::markdown(),
        _ => ComparisonPage::plain(),
    };
    let comparison = &*Visible::of(comparison)?;
    head(&mut page, comparison);
    for (title, rows) in [
        ("Settings that differ", &comparison.settings),
        ("Versions that differ", &comparison.versions),
    ] {
        if !rows.is_empty() {
            page.title(title);
            page.table(&["", "A", "B"], &differences(rows));
        }
    }
    weights(&mut page, comparison);
    steps(&mut page, comparison);
    norms(&mut page, comparison);
    Ok(page.text())
}

fn head(page: &mut ComparisonPage, comparison: &Comparison) {
    let Comparison { names, verdicts, findings, .. } = comparison;
    page.headline(&headline(comparison));
    page.line(&format!("A: {}: {}", names.a, verdicts.a));
    page.line(&format!("B: {}: {}", names.b, verdicts.b));
    for (what, codes) in [
        ("findings of both", &findings.both),
        ("findings of A only", &findings.only_a),
        ("findings of B only", &findings.only_b),
    ] {
        if !codes.is_empty() {
            page.line(&format!("{what}: {}", codes.join(", ")));
        }
    }
}

fn headline(comparison: &Comparison) -> String {
    match (comparison.same, comparison.must_be_equal()) {
        (true, true) => "SAME  settings, software and every number are equal".to_owned(),
        (true, false) => {
            let what = if comparison.weights_compared {
                "verdict, findings and weights"
            } else {
                "verdict and findings"
            };
            format!("SAME  {what}; gaps between numbers are not judged")
        }
        (false, true) => {
            "DIFFERENT  although settings and software are the same: see zprobe explain ZP905"
                .to_owned()
        }
        (false, false) => {
            let mut what = Vec::new();
            let findings = &comparison.findings;
            if comparison.verdicts.a != comparison.verdicts.b {
                what.push("the verdict".to_owned());
            }
            let apart = findings.only_a.len() + findings.only_b.len();
            if apart > 0 {
                what.push(amount(apart, "finding"));
            }
            if !comparison.weights.is_empty() {
                what.push(format!("weights of {}", amount(comparison.weights.len(), "buffer")));
            }
            format!("DIFFERENT  in {}", what.join(", "))
        }
    }
}

fn differences(rows: &[SettingDifference]) -> Vec<Vec<String>> {
    let cell = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    rows.iter().map(|row| vec![row.name.clone(), cell(&row.a), cell(&row.b)]).collect()
}

fn weights(page: &mut ComparisonPage, comparison: &Comparison) {
    if !comparison.weights_compared {
        page.title("Contribution weights");
        page.line("not compared: the runs do not have the same ranks and microbatches");
        return;
    }
    if comparison.weights.is_empty() {
        return;
    }
    page.title("Contribution weights that differ (1 is right)");
    for entry in comparison.weights.iter().take(SHOWN) {
        let words = entry.words();
        let microbatch = entry.microbatch.map_or(String::new(), |m| format!(", microbatch {m}"));
        let params =
            entry.params.as_ref().map_or(String::new(), |it| format!(", {}", it.join(", ")));
        let (point, step, rank) = (entry.point.describe(), entry.step, entry.rank);
        page.line(&format!("{point}, step {step}{microbatch}, rank {rank}{params}"));
        page.code(&format!("A {}\nB {}", words.a, words.b));
    }
    if comparison.weights.len() > SHOWN {
        let more = comparison.weights.len() - SHOWN;
        page.line(&format!("and {more} more; --output-format json lists all"));
    }
}

/// Writes loss and gradient norm of each step as a table, the largest gaps, and the curves.
fn steps(page: &mut ComparisonPage, comparison: &Comparison) {
    let steps = &comparison.steps;
    let Some(last) = steps.last() else { return };
    page.title("Loss and norm of the gradient, per step");
    let with_parameters = steps.iter().any(|step| step.parameters.is_some());
    let mut head = vec!["step", "A loss", "B loss", "gap", "A norm", "B norm", "gap in %"];
    if with_parameters {
        head.push("parameter gap");
    }
    let value = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.6}"));
    let gap = |gap: Option<f64>| gap.map_or("-".to_owned(), number);
    let row = |step: &ComparedStep| {
        let mut row = vec![
            step.step.to_string(),
            value(step.loss.a),
            value(step.loss.b),
            gap(step.loss_gap()),
            value(step.gradient_norm.a),
            value(step.gradient_norm.b),
            gap(step.norm_gap_percent()),
        ];
        if with_parameters {
            row.push(gap(step.parameters.and_then(|gap| gap.relative)));
        }
        row
    };
    page.table(&head, &steps.iter().map(row).collect::<Vec<_>>());
    if let Some(gap) = last.loss_gap() {
        page.line(&format!("final loss gap: {} (step {})", number(gap), last.step));
    }
    let norm_gaps = steps.iter().filter_map(|step| Some((step.norm_gap_percent()?, step.step)));
    if let Some((gap, step)) = norm_gaps.max_by(|one, other| one.0.total_cmp(&other.0)) {
        page.line(&format!("largest norm gap: {} % (step {step})", number(gap)));
    }
    let curve = |of: fn(&ComparedStep) -> Option<f64>| steps.iter().map(of).collect::<Vec<_>>();
    for (title, a, b) in [
        ("loss", curve(|step| step.loss.a), curve(|step| step.loss.b)),
        (
            "norm of the gradient",
            curve(|step| step.gradient_norm.a),
            curve(|step| step.gradient_norm.b),
        ),
    ] {
        if let Some(plot) = plot::plot(title, &a, &b) {
            page.code(&plot);
        }
    }
}

fn norms(page: &mut ComparisonPage, comparison: &Comparison) {
    if comparison.norms.is_empty() {
        return;
    }
    page.title("Norms of buffers, at the same moment on the same rank");
    for gap in &comparison.norms {
        let apart = match gap.differing {
            0 => String::new(),
            _ => format!(", by at most {} % of A's", number(100.0 * gap.largest)),
        };
        let point = gap.point.describe();
        page.line(&format!("{point}: {} of {} differ{apart}", gap.differing, gap.compared));
    }
}

/// A number with two digits; a small one in scientific notation.
fn number(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        1e-3.. => two_digits(number),
        _ => format!("{number:.1e}"),
    }
}
