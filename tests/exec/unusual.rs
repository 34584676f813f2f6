//! Scripts that are right, and unlike most.

use zprobe::report::Verdict;

use super::{exec, file, full, python, text};

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn what_is_unusual_is_no_finding_and_trains_to_its_end_where_it_is_observed() {
    let (python, script) = (python(), file("tests/exec/scripts/unusual.py"));
    let kinds = ["lbfgs", "loose", "unused", "sparse", "phases"];
    for kind in kinds.iter().take(if full() { kinds.len() } else { 2 }) {
        for options in [&[][..], &["--observe"]] {
            let run = exec(options, &[text(&python), text(&script), kind]);
            let report = run.report();
            assert_eq!(report.verdict, Verdict::Clean, "{kind} {options:?}: {}", run.findings());
            assert_eq!(run.code, 0, "{kind} {options:?}");
            assert!(options.is_empty() || run.stdout.starts_with("done"), "{kind}: {}", run.stderr);
        }
    }
}
