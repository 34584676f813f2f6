//! The results of the campaigns, as a table for the terminal and for the documentation.

use std::fmt::Write as _;

use super::runner::Results;

/// The results as Markdown: a row for each campaign, then the skipped cases, then the cases that zprobe did
/// not survive.
pub fn table(results: &[Results]) -> String {
    let mut text = String::from(
        "| campaign | what is done | tried | survived | skipped | seconds |\n\
         |---|---|--:|--:|--:|--:|\n",
    );
    for result in results {
        let skipped: usize = result.skipped.values().sum();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {skipped} | {:.0} |",
            result.name,
            result.faults,
            result.tried - skipped,
            result.tried - skipped - result.failures.len(),
            result.took.as_secs_f64(),
        );
    }
    for result in results {
        for (reason, count) in &result.skipped {
            let _ = write!(text, "\n- skipped, {count} of {}: {reason}", result.name);
        }
        for failure in &result.failures {
            let _ = write!(text, "\n- not survived: {failure}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_cannot_be_made_here_is_neither_tried_nor_survived() {
        let results = Results {
            name: "signals",
            faults: "signals",
            tried: 10,
            skipped: BTreeMap::from([("not root".to_owned(), 3)]),
            failures: vec!["it hung".to_owned()],
            took: Duration::from_secs(7),
        };
        let text = table(&[results]);
        assert!(text.contains("\n| signals | signals | 7 | 6 | 3 | 7 |\n"), "{text}");
        assert!(text.ends_with("\n- skipped, 3 of signals: not root\n- not survived: it hung"));
    }
}
