//! The page of `zprobe check --export-html`: it has every probe and the details of the bad ones, and loads nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use zprobe_diagnose::{diagnose, rules};
use zprobe_model::spec::Engine;
use zprobe_model::trace::Trace;
use zprobe_report::render::suite_html;
use zprobe_report::suite::{Case, Status, Suite, findings};

use super::check::{Place, text};

/// The arguments of a check with the fake Python.
const CHECK: [&str; 4] = ["check", "probes", "--python", "./python"];

#[test]
fn the_page_of_a_check_has_every_probe_and_opens_only_the_bad_ones() {
    let place = Place::new();
    place.probes();
    place.write(
        "probes/d-odd.toml",
        "description = '<b>Odd</b>'\nengines = ['ddp']\n[run]\nga = 1\n",
    );
    let output = place.zprobe(&[&CHECK[..], &["--export-html", "page.html"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let page = place.read("page.html");
    for probe in ["a-crash", "b-silent", "c-known", "d-odd"] {
        assert!(page.contains(&format!("ddp/{probe}")), "{probe}: {page}");
    }
    assert!(page.contains("1 of 4 probes passed, 2 crashed, 1 inconclusive"), "{page}");
    // Two crashes have the same cause, and a good probe has no details.
    assert_eq!(page.matches("<details class=\"probe\"").count(), 2);
    assert_eq!(page.matches(" open>").count(), 2);
    for again in ["again: zprobe run --engine ddp --ga 1", "again: zprobe run --engine ddp --ga 2"]
    {
        assert!(page.contains(again), "{again}: {page}");
    }
    assert!(page.contains("title=\"&#60;b&#62;Odd") && !page.contains("<b>Odd"), "{page}");
    assert!(page.contains("The slowest: ddp/"), "{page}");
}

#[test]
fn the_page_on_standard_output_is_alone_there() {
    let place = Place::new();
    place.probes();
    let output = place.zprobe(&[&CHECK[..], &["--export-html", "-"]].concat());
    let (page, report) = (text(&output.stdout), text(&output.stderr));
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"), "{page}");
    assert!(report.contains("1 of 3 probes passed"), "{report}");
    // The policy allows one style and one script, by their hashes, and no request.
    assert!(
        page.contains("content=\"default-src &#39;none&#39;; style-src &#39;sha256-"),
        "{page}"
    );
    assert_eq!((page.matches("<script").count(), page.matches(" src=").count()), (1, 0));
}

#[test]
fn a_failed_probe_has_its_matrix_and_the_page_of_its_rule() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces/boundary-leak");
    let report = diagnose(&Trace::read(&dir).unwrap());
    let failed = Case {
        probe: "leak".to_owned(),
        engine: Engine::Native,
        description: "A leak".to_owned(),
        file: None,
        command: "zprobe run --ga 4".to_owned(),
        expected: "clean".to_owned(),
        got: zprobe_zoo::got(&report),
        status: Status::of(report.verdict),
        reason: None,
        findings: findings(&report),
        versions: Default::default(),
        seconds: 0.25,
        run_dir: None,
    };
    let doc = |code: &str| rules::find(code).map(|rule| rule.doc);
    let suite = Suite::new(vec![failed], vec![], "zprobe.toml".to_owned(), doc);
    let page = suite_html(&suite, |_| Ok(Some(report.clone()))).unwrap();
    assert!(page.contains("id=\"matrix-A\"") && page.contains("href=\"#matrix-A\""), "{page}");
    assert!(page.contains("class=\"p4\"") && page.contains("id=\"rule-ZP101\""), "{page}");
    let without = suite_html(&suite, |_| Ok(None)).unwrap();
    assert!(!without.contains("matrix-A"), "{without}");
}
