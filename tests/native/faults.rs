//! Every fault in every configuration: a fault that changes anything is named; otherwise there is no finding.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use zprobe_diagnose::diagnose;
use zprobe_launch::{HostSource, Pool};
use zprobe_model::spec::fault::{Expected, Place};
use zprobe_model::spec::{Dataflow, Dtype, Fault, Offload, Point, RunSpec, Shape, SpecRequest};
use zprobe_model::trace::{Event, Trace};
use zprobe_report::Finding;

use crate::pool::{pool, run};
use crate::repeat::RACES;
use crate::support::full;

/// The page with the matrix. `ZPROBE_BLESS=1 ZPROBE_TEST_FULL=1` writes the matrix anew.
const PAGE: &str = "docs/faults.md";
const BEGIN: &str = "<!-- the matrix: begin -->";
const END: &str = "<!-- the matrix: end -->";

/// The result that each fault of the matrix must lead to.
pub fn expected() -> Vec<Expected> {
    let faults = Fault::ALL.iter().filter(|fault| !RACES.contains(fault));
    faults.map(|fault| fault.expected()).collect()
}

/// A request with the settings that some faults need to take effect.
fn with_place(fault: Fault, request: SpecRequest) -> SpecRequest {
    if fault == Fault::ReducedInBf16 {
        return SpecRequest { comm_dtype: Some(Dtype::Fp32), ..request };
    }
    let shape = |shape| SpecRequest { shapes: vec![shape], ..request.clone() };
    let settings = [
        request.clone(),
        SpecRequest { overlap_comm: Some(true), ..request.clone() },
        SpecRequest { offload: Some(Offload::Cpu), ..request.clone() },
        SpecRequest { gradient_clipping: Some(1.0), ..request.clone() },
        SpecRequest { poison_memory: Some(true), ..request.clone() },
        shape(Shape::UnusedLast),
        shape(Shape::Tied),
        shape(Shape::InfinityOnOneRank),
    ];
    let has_place = |setting: &SpecRequest| {
        SpecRequest { inject: Some(fault), ..setting.clone() }.resolve().is_ok()
    };
    settings.into_iter().find(has_place).unwrap_or(request)
}

/// The configurations, by their names in the matrix; the first few are run every day.
fn configurations() -> Vec<(&'static str, SpecRequest)> {
    let ipg = |stage: u8| SpecRequest {
        stage: Some(stage),
        dataflow: Some(Dataflow::IpgBucket),
        world_size: Some(2),
        gradient_accumulation_steps: Some(3),
        ..SpecRequest::default()
    };
    let accumulator = |stage| SpecRequest { dataflow: Some(Dataflow::Accumulator), ..ipg(stage) };
    let ranks = |world_size| Some(world_size);
    let fp16 = Some(Dtype::Fp16);
    vec![
        ("accumulator", SpecRequest { world_size: ranks(3), ..accumulator(1) }),
        ("stage 1", ipg(1)),
        ("stage 2, fp16", SpecRequest { dtype: fp16, world_size: ranks(3), ..ipg(2) }),
        ("stage 3", ipg(3)),
        ("1 rank", SpecRequest { world_size: ranks(1), ..ipg(1) }),
        ("stage 0, accumulator", accumulator(0)),
        ("stage 0", ipg(0)),
        ("stage 2", ipg(2)),
        ("3 ranks", SpecRequest { world_size: ranks(3), ..ipg(1) }),
        ("stage 3, 3 ranks", SpecRequest { world_size: ranks(3), ..ipg(3) }),
        ("ga 1", SpecRequest { gradient_accumulation_steps: Some(1), ..ipg(1) }),
        ("stage 2, ga 1", SpecRequest { gradient_accumulation_steps: Some(1), ..ipg(2) }),
        ("fp32", SpecRequest { dtype: Some(Dtype::Fp32), ..ipg(1) }),
        ("fp16", SpecRequest { dtype: fp16, ..ipg(1) }),
        ("overlap", SpecRequest { overlap_comm: Some(true), ..ipg(1) }),
        ("offload", SpecRequest { offload: Some(Offload::Cpu), ..ipg(1) }),
        ("all-reduce", SpecRequest { reduce_scatter: Some(false), ..ipg(1) }),
        ("1 bucket", SpecRequest { reduce_bucket_size: Some(1 << 30), ..ipg(1) }),
        (
            "4 ranks, ga 7",
            SpecRequest { world_size: ranks(4), gradient_accumulation_steps: Some(7), ..ipg(1) },
        ),
    ]
}

/// The number of configurations that are run every day; they come first in [`configurations`]. Each fault is
/// tried in them until it is named.
const EVERYDAY: usize = 4;

/// The index of the configuration with a single rank, in which every fault is tried every day.
const SINGLE: usize = 4;

/// The indices of a fault's configurations: all of them, or those of an everyday test, which begin at another
/// configuration for each fault.
fn order(at: usize, configurations: usize, full: bool) -> Vec<usize> {
    if full {
        return (0..configurations).collect();
    }
    (0..EVERYDAY).map(|turn| (at + turn) % EVERYDAY).chain([SINGLE]).collect()
}

/// The digests of all buffers that a step leaves: inputs of the optimizers, weights and parameters.
fn outcome(trace: &Trace) -> BTreeMap<(Option<usize>, Point, Option<usize>), String> {
    let mut outcome = BTreeMap::new();
    for (rank, event) in trace.events() {
        if let Event::Buffer { step, point, payload, .. } = event
            && matches!(point, Point::OptimizerInput | Point::MasterWeights | Point::Parameters)
        {
            outcome.insert((rank, *point, *step), payload.digest.clone());
        }
    }
    outcome
}

/// The text of a cell of the matrix, and the mistake in the result; `None` for a right result.
pub fn cell(
    pool: &Pool,
    clean: &mut BTreeMap<String, Trace>,
    row: &Expected,
    request: &SpecRequest,
) -> (String, Option<String>) {
    let healthy = with_place(row.fault, request.clone());
    let request = SpecRequest {
        inject: Some(row.fault),
        timeout_s: Some(if row.fault == Fault::RankHangs { 2 } else { 30 }),
        ..healthy.clone()
    };
    let (Ok(spec), Ok(healthy)) = (request.resolve(), healthy.resolve()) else {
        return ("·".to_owned(), None);
    };
    let key = serde_json::to_string(&healthy).unwrap();
    let reference = clean.entry(key).or_insert_with(|| run(HostSource::Warm(pool), &healthy));
    let trace = run(HostSource::Warm(pool), &spec);
    let findings = diagnose(&trace).findings;
    let codes: Vec<&str> = findings.iter().map(|finding| finding.code.as_str()).collect();
    let changed = outcome(&trace) != outcome(reference);
    let named = matches!(codes[..], [code] if code == row.code || row.or.contains(&code));
    let wrong = match (changed, codes.is_empty()) {
        (true, true) => Some("changed something, and nothing was found".to_owned()),
        (false, true) => None,
        (_, false) if !named => Some(brief(&findings)),
        (_, false) => misplaced(row, &spec, &findings[0]),
    };
    let text = if codes.is_empty() { "clean".to_owned() } else { codes.join(" ") };
    (text, wrong)
}

/// The findings as text, one per line.
fn brief(findings: &[Finding]) -> String {
    let line = |f: &Finding| {
        let Finding { code, step, microbatch, rank, param, message, .. } = f;
        format!("\n    {code} {step:?} {microbatch:?} {rank:?} {param:?} {message}")
    };
    findings.iter().map(line).collect()
}

fn misplaced(row: &Expected, spec: &RunSpec, finding: &Finding) -> Option<String> {
    let right = match row.place {
        Place::Anywhere => true,
        // With another code the fault is another one, so its place is not checked.
        _ if finding.code != row.code => true,
        Place::FirstMicrobatch => finding.microbatch.is_none_or(|microbatch| microbatch == 0),
        Place::Boundary => finding.microbatch == Some(spec.gradient_accumulation_steps - 1),
        Place::SecondStep => finding.step == Some(1),
        Place::LastRank => spec.world_size == 1 || finding.rank == Some(spec.world_size - 1),
    };
    (!right).then(|| format!("at the wrong place: {}", brief(std::slice::from_ref(finding))))
}

#[test]
fn every_fault_is_named_where_it_changes_anything_and_silent_where_not() {
    let full = full();
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let configurations = configurations();
    let names: Vec<&str> = configurations.iter().map(|(name, _)| *name).collect();
    let mut table = format!("| fault | rule | {} |\n", names.join(" | "));
    let _ = writeln!(table, "|---|---|{}", "---|".repeat(names.len()));
    let (mut wrong, mut clean) = (String::new(), BTreeMap::new());
    let (mut named, mut silent) = (0, 0);
    for (at, row) in expected().iter().enumerate() {
        let mut cells = vec![String::new(); configurations.len()];
        let mut is_named = false;
        for place in order(at, configurations.len(), full) {
            if is_named && !full && place != SINGLE {
                continue;
            }
            let (name, request) = &configurations[place];
            let (text, problem) = cell(&pool, &mut clean, row, request);
            is_named |= text.starts_with("ZP");
            named += usize::from(text.starts_with("ZP"));
            silent += usize::from(text == "clean");
            if let Some(problem) = problem {
                let _ = writeln!(wrong, "{} in {name}: {text}: {problem}", row.fault);
            }
            cells[place] = text;
        }
        if !is_named {
            let _ = writeln!(wrong, "{} is named nowhere", row.fault);
        }
        let _ = writeln!(table, "| `{}` | {} | {} |", row.fault, row.code, cells.join(" | "));
    }
    let _ = writeln!(
        table,
        "\n{} faults, {} configurations: named {named} times, silent {silent} times.",
        expected().len(),
        names.len(),
    );
    println!("{table}");
    assert!(wrong.is_empty(), "{wrong}");
    if full {
        compare_with_page(&table);
    }
}

/// Asserts that the page contains this table.
fn compare_with_page(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).unwrap();
    let (_, tail) = rest.split_once(END).unwrap();
    let fresh = format!("{head}{BEGIN}\n\n{table}\n{END}{tail}");
    if std::env::var_os("ZPROBE_BLESS").is_some() {
        std::fs::write(&path, fresh).unwrap();
    } else {
        assert_eq!(page, fresh, "{PAGE} is out of date: run with ZPROBE_BLESS=1");
    }
}
