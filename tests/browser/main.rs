//! Tests of the HTML report in a real browser.
//!
//! The tests need Chromium, and are ignored by default: `cargo test --test browser -- --ignored` runs them.
//! `ZPROBE_TEST_CHROMIUM` names the program if it is not on `PATH` as `chromium`. Each opened page must run
//! without a message on the console and without a network request.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod devtools;
mod many_ranks;
mod page;
mod perfetto;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use zprobe_diagnose::{diagnose, rules};
use zprobe_model::trace::{Event, Trace};
use zprobe_report::Report;
use zprobe_report::render::{html, suite_html};
use zprobe_report::suite::Suite;

use page::{Browser, Page, Scheme};

/// The widths of a desktop's window and of a telephone, in pixels.
const WIDE: u32 = 1280;
const NARROW: u32 = 360;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces")
}

fn fixture(name: &str) -> (Report, Trace) {
    let trace = Trace::read(&traces().join(name)).unwrap();
    (diagnose(&trace), trace)
}

fn page_of((report, trace): &(Report, Trace)) -> String {
    html(report, trace, &|code| Some(rules::find(code)?.doc)).unwrap()
}

fn open<'a>(browser: &'a Browser, name: &str) -> Page<'a> {
    browser.open(&page_of(&fixture(name)))
}

/// The text and colour of the cell of a source rank and a column, in the first matrix of the page.
const CELL: &str = "(row, column) => {
    const matrix = document.querySelector('figure.matrix');
    const heads = [...matrix.querySelectorAll('thead th')].map(head => head.innerText);
    const rows = [...matrix.querySelectorAll('tbody tr')];
    const cells = rows.find(r => r.cells[0].innerText === row).cells;
    const cell = cells[heads.indexOf(column)];
    return [cell.innerText, getComputedStyle(cell).backgroundColor];
}";

#[test]
#[ignore = "needs Chromium"]
fn the_weights_of_a_leak_are_shown_in_colours_that_differ_in_light_and_dark() {
    let browser = Browser::start();
    let page = open(&browser, "boundary-leak");
    assert_eq!(page.eval("document.querySelector('.answer strong').innerText"), "FINDINGS");
    let mut seen = Vec::new();
    for scheme in [Scheme::Light, Scheme::Dark] {
        page.prefer(scheme);
        let cell = |row: &str, column: &str| -> (String, String) {
            let value = page.eval(&format!("({CELL})({row:?}, {column:?})"));
            serde_json::from_value(value).unwrap()
        };
        let (twice, lost, right) =
            (cell("rank 0", "m1"), cell("rank 1", "m1"), cell("rank 0", "m0"));
        assert_eq!([&twice.0, &lost.0, &right.0], ["2", "0", "1"]);
        assert!(twice.1 != lost.1 && lost.1 != right.1 && right.1 != twice.1);
        seen.push(page.eval("getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(seen[0], seen[1], "dark is not light");
}

#[test]
#[ignore = "needs Chromium"]
fn a_link_of_a_finding_leads_to_its_matrix_and_marks_the_microbatch() {
    let browser = Browser::start();
    let page = open(&browser, "boundary-leak");
    let link = "document.querySelector('.finding a[data-microbatch]')";
    assert_eq!(page.eval(&format!("{link}.hash")), "#matrix-A");
    page.eval(&format!("{link}.click()"));
    let place = "document.getElementById('matrix-A')";
    assert_eq!(page.eval(&format!("{place}.classList.contains('lit')")), true);
    assert_eq!(page.eval(&format!("document.activeElement === {place}")), true);
    let seen = format!(
        "(() => {{ const box = {place}.getBoundingClientRect();
            return box.top >= 0 && box.bottom <= innerHeight; }})()"
    );
    assert_eq!(page.eval(&seen), true);
    let marked = "[...document.querySelectorAll('.lit-column')].map(cell => cell.innerText)";
    assert_eq!(page.eval(marked), json!(["m1", "2", "0"]));
    // A link to an element opens the section of that element.
    page.eval(
        "(history.replaceState(null, '', '#norm-3'),
            dispatchEvent(new HashChangeEvent('hashchange')))",
    );
    assert_eq!(page.eval("document.querySelector('#norm-3').classList.contains('lit')"), true);
    assert_eq!(page.eval("document.querySelectorAll('.lit').length"), 1);
}

#[test]
#[ignore = "needs Chromium"]
fn every_recorded_run_is_legible_and_fits_the_window() {
    let browser = Browser::start();
    for entry in std::fs::read_dir(traces()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let page = open(&browser, &name);
        for (width, scheme) in [(WIDE, Scheme::Light), (NARROW, Scheme::Dark)] {
            page.resize(width);
            page.prefer(scheme);
            page.assert_fits(&name);
            page.assert_legible(&name);
        }
        let anchors = "[...document.querySelectorAll('a[href^=\"#\"]')]
            .filter(link => !document.getElementById(link.hash.slice(1))).map(link => link.hash)";
        assert_eq!(page.eval(anchors), json!([]), "{name}: links that lead nowhere");
        let ids = "(() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
            return ids.filter((id, at) => ids.indexOf(id) !== at); })()";
        assert_eq!(page.eval(ids), json!([]), "{name}: names that are not unique");
    }
}

#[test]
#[ignore = "needs Chromium"]
fn what_ranks_and_engines_say_stays_text() {
    const HOSTILE: &str = "</script></title></style><img src=x onerror=\"window.hacked=1\">'\"&<b>";
    let (_, mut trace) = fixture("dead-hooks");
    for record in &mut trace.records {
        match &mut record.event {
            Event::Model { params } => params[0].name = HOSTILE.to_owned(),
            Event::OptimizerChosen { class, inner } => {
                (*class, *inner) = (HOSTILE.to_owned(), HOSTILE.to_owned());
            }
            Event::RankReady { versions, .. } => {
                versions.insert(HOSTILE.to_owned(), HOSTILE.to_owned());
            }
            _ => {}
        }
    }
    let mut report = diagnose(&trace);
    report.run.engine_facts.insert(HOSTILE.to_owned(), HOSTILE.to_owned());
    report.not_exercised.push(HOSTILE.to_owned());
    report.findings[0].message = HOSTILE.to_owned();
    report.findings[0].evidence.push(HOSTILE.to_owned());
    report.findings[0].param = Some(HOSTILE.to_owned());
    report.ranks[0].failure = Some(HOSTILE.to_owned());
    report.ranks[1].stderr = Some(format!("\u{1b}[31m{HOSTILE}"));
    let browser = Browser::start();
    let page = browser.open(&page_of(&(report, trace)));
    assert_eq!(page.eval("document.querySelectorAll('img, [onerror]').length"), 0);
    assert_eq!(page.eval("document.querySelectorAll('script').length"), 1);
    assert_eq!(page.eval("window.hacked === undefined"), true);
    for place in [
        ".message",
        ".reason",
        ".evidence",
        ".hooks code",
        "#run",
        "#power",
        ".failure",
        "pre",
        ".setting",
    ] {
        let text = page.eval(&format!("document.querySelector({place:?}).innerText"));
        assert!(text.as_str().unwrap().contains(HOSTILE), "{place}: {text}");
    }
    assert!(
        !page.eval("document.querySelector('pre').innerText").as_str().unwrap().contains('\u{1b}')
    );
}

#[test]
#[ignore = "needs Chromium"]
fn a_script_or_style_that_got_in_would_not_run() {
    let browser = Browser::start();
    let text = page_of(&fixture("clean-accumulator"));
    let injected =
        "<p id=injected style=\"color: rgb(1, 2, 3)\">x</p><script>window.hacked=1</script>";
    let page = browser.open_with_errors(&text.replace("</main>", &format!("{injected}</main>")));
    assert_eq!(page.eval("window.hacked === undefined"), true);
    let colour = page.eval("getComputedStyle(document.getElementById('injected')).color");
    assert_ne!(colour, "rgb(1, 2, 3)");
}

#[test]
#[ignore = "needs Chromium"]
fn the_timeline_zooms_by_keyboard_and_names_what_is_under_the_pointer() {
    let browser = Browser::start();
    let page = open(&browser, "rank-hangs");
    let wide = || -> f64 {
        page.eval("document.querySelector('.spans').viewBox.baseVal.width").as_f64().unwrap()
    };
    let whole = wide();
    page.eval("document.querySelector('.lanes').focus()");
    page.press("+");
    page.press("+");
    assert!((wide() - whole / 4.0).abs() < 1.0, "{} of {whole}", wide());
    page.press("0");
    assert!((wide() - whole).abs() < 1.0);
    // Rank 0 waits in its collective until the rank is ended, near the end of its lane.
    let point = "(() => {
        const spans = document.querySelector('.spans');
        spans.scrollIntoView({ block: 'center' });
        const box = spans.getBoundingClientRect();
        const y = box.top + 0.4 * box.height;
        const said = [];
        for (let x = box.left + 1; x < box.right; x += 2) {
            const pointer = new PointerEvent('pointermove', { bubbles: true, clientX: x, clientY: y });
            document.elementFromPoint(x, y).dispatchEvent(pointer);
            said.push(document.querySelector('.readout').innerText);
        }
        return said.join('\\n');
    })()";
    let said = page.eval(point);
    let said: Vec<&str> = said.as_str().unwrap().lines().collect();
    let wait = |text: &&&str| text.starts_with("rank 0: in a collective: all-reduce, from ");
    assert!(said.iter().any(|text| wait(&text)), "{said:?}");
}

#[test]
#[ignore = "needs Chromium"]
fn a_crash_shows_first_what_every_rank_did_last() {
    let browser = Browser::start();
    let page = open(&browser, "rank-dies");
    assert_eq!(page.eval("document.querySelector('.answer strong').innerText"), "CRASHED");
    let order = "[...document.querySelectorAll('section')].map(section => section.id)";
    let sections: Vec<String> = serde_json::from_value(page.eval(order)).unwrap();
    assert_eq!(sections[..2], ["findings", "ranks"]);
    let links = "[...document.querySelectorAll('.finding a.to')].map(link => link.hash)";
    let links: Vec<String> = serde_json::from_value(page.eval(links)).unwrap();
    assert!(
        links.contains(&"#rank-1".to_owned()) && links.contains(&"#timeline".to_owned()),
        "{links:?}"
    );
}

#[test]
#[ignore = "needs Chromium"]
fn on_paper_everything_is_open_and_nothing_is_for_clicking() {
    let browser = Browser::start();
    let page = open(&browser, "clean-ipg-bucket");
    let closed = "document.querySelectorAll('details:not([open])').length";
    assert_ne!(page.eval(closed), 0);
    page.eval("dispatchEvent(new Event('beforeprint'))");
    assert_eq!(page.eval(closed), 0);
    page.print();
    let shown = "[...document.querySelectorAll('nav, .tools')]
        .filter(box => getComputedStyle(box).display !== 'none').length";
    assert_eq!(page.eval(shown), 0);
}

#[test]
#[ignore = "needs Chromium"]
fn five_hundred_and_twelve_ranks_are_one_small_page() {
    let text = page_of(&many_ranks::leak(512, 4));
    assert!(text.len() < 3 << 20, "{} bytes", text.len());
    let browser = Browser::start();
    let page = browser.open(&text);
    for width in [WIDE, NARROW] {
        page.resize(width);
        page.assert_fits("512 ranks");
        page.assert_legible("512 ranks");
    }
    let matrix = "[...document.querySelectorAll('#matrix-A tbody tr')]
        .map(row => [...row.cells].map(cell => cell.innerText))";
    assert_eq!(
        page.eval(matrix),
        json!([
            ["the rank itself", "0", "1", "1", "1", "512"],
            ["every other rank", "0", "1", "1", "1", "0"],
        ])
    );
    let holders = page.eval("document.querySelector('.journey .held').parentElement.innerText");
    assert!(holders.as_str().unwrap().ends_with("all 512 ranks"), "{holders}");
    let elements = page.eval("document.querySelectorAll('*').length");
    assert!(elements.as_u64().unwrap() < 5000, "{elements} elements");
    assert_eq!(page.eval("document.querySelectorAll('#ranks tbody tr').length"), json!(1));
}

#[test]
#[ignore = "needs Chromium"]
fn a_page_can_be_read_without_its_script() {
    let browser = Browser::start();
    let text = page_of(&fixture("boundary-leak"));
    let start = text.find("<script>").unwrap();
    let end = text.find("</script>").unwrap();
    let page = browser.open(&format!("{}{}", &text[..start], &text[end + "</script>".len()..]));
    let value: Value = page.eval(&format!("({CELL})('rank 0', 'm1')[0]"));
    assert_eq!(value, "2");
    assert_eq!(page.eval("getComputedStyle(document.querySelector('.tools')).display"), "none");
}

#[test]
#[ignore = "needs Chromium"]
fn the_page_of_a_suite_is_legible_and_a_link_opens_the_details_of_its_probe() {
    let browser = Browser::start();
    let (report, _) = fixture("boundary-leak");
    let doc = |code: &str| rules::find(code).map(|rule| rule.doc);
    let command = "zprobe run --ga 4".to_owned();
    let suite = Suite::of_run(&report, command, "zprobe.toml".to_owned(), doc);
    let page = browser.open(&suite_html(&suite, |_| Ok(Some(report.clone()))).unwrap());
    for (width, scheme) in [(WIDE, Scheme::Light), (NARROW, Scheme::Dark)] {
        page.resize(width);
        page.prefer(scheme);
        page.assert_fits("suite");
        page.assert_legible("suite");
    }
    assert_eq!(page.eval(&format!("({CELL})('rank 0', 'm1')[0]")), "2");
    page.eval("document.querySelector('details.probe').open = false");
    page.eval("document.querySelector('#probes tbody a').click()");
    assert_eq!(page.eval("document.querySelector('#probe-0').open"), true);
}
