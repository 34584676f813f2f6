//! The table of docs/reference.md.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use zprobe_diagnose::diagnose;
use zprobe_model::spec::{Dataflow, Dtype, Engine, Model, RunSpec};
use zprobe_model::trace::{Trace, digest};
use zprobe_report::Verdict;

use super::recorded::Recorded;
use super::{Agreement, compare};

/// The page with the table. `ZPROBE_TEST_FULL=1 ZPROBE_BLESS=1` writes the table anew.
const PAGE: &str = "docs/reference.md";
const BEGIN: &str = "<!-- the table: begin -->";
const END: &str = "<!-- the table: end -->";

/// A line of the table: an engine with its settings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    engine: Engine,
    stage: u8,
    class: String,
    versions: String,
    way: &'static str,
}

/// The runs of a line with one kind of data.
#[derive(Default)]
struct Runs {
    count: usize,
    agreement: Agreement,
}

/// The results of all comparisons.
#[derive(Default)]
pub struct Table {
    lines: BTreeMap<Line, [Runs; 2]>,
    /// The digests of the final parameters of one specification's runs, by line.
    ends: BTreeMap<Line, String>,
    wrong: Vec<String>,
}

impl Table {
    /// Compares a run with the reference, and adds the result.
    pub fn add(&mut self, trace: &Trace) {
        let spec = &trace.spec;
        let (agreement, recorded) = compare(trace);
        let line = Line::of(spec, &recorded);
        let exact = spec.model == Model::Coded && spec.optimizer.readable_lr().is_some();
        let report = diagnose(trace);
        let all_exact = !exact || agreement.exact == agreement.elements;
        if agreement.wrong > 0 || !all_exact || report.verdict != Verdict::Clean {
            let case = serde_json::to_string(spec).unwrap();
            self.wrong.push(format!("{line:?} {agreement:?} {:?} {case}", report.verdict));
        }
        let runs = &mut self.lines.entry(line.clone()).or_default()[usize::from(!exact)];
        runs.count += 1;
        runs.agreement = runs.agreement.and(agreement);
        if exact && is_shared(spec) {
            let ends: Vec<String> =
                (0..spec.world_size).map(|rank| end(&recorded.last(rank))).collect();
            assert!(ends.iter().all(|other| *other == ends[0]), "{line:?}: ranks differ: {ends:?}");
            let known = self.ends.entry(line).or_insert_with(|| ends[0].clone());
            assert_eq!(*known, ends[0], "settings change no bit: {spec:?}");
        }
    }

    /// Asserts that everything agrees with the reference, and that all engines end with the same parameters.
    pub fn assert_right(&self) {
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        let mut ends: Vec<&String> = self.ends.values().collect();
        ends.dedup();
        assert_eq!(ends.len(), 1, "{:#?}", self.ends);
    }

    /// Asserts that the page contains this table.
    pub fn compare_with_page(&self) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
        let page = std::fs::read_to_string(&path).unwrap();
        let (head, rest) = page.split_once(BEGIN).unwrap();
        let (_, tail) = rest.split_once(END).unwrap();
        let fresh = format!("{head}{BEGIN}\n\n{self}\n{END}{tail}");
        if std::env::var_os("ZPROBE_BLESS").is_some() {
            std::fs::write(&path, fresh).unwrap();
        } else {
            assert_eq!(page, fresh, "{PAGE} is out of date: run with ZPROBE_BLESS=1");
        }
    }
}

impl Line {
    fn of(spec: &RunSpec, recorded: &Recorded) -> Self {
        let named = |name: &str| Some(format!("{name} {}", recorded.versions.get(name)?));
        let versions = match spec.engine() {
            Engine::DeepSpeed => named("deepspeed"),
            _ => named("torch"),
        };
        let way = match (spec.dataflow(), spec.reduce_scatter()) {
            (Some(Dataflow::Accumulator), _) => "accumulator",
            (Some(Dataflow::IpgBucket), Some(false)) => "buckets, all-reduced",
            (Some(Dataflow::IpgBucket), _) => "buckets",
            (None, _) => "",
        };
        Self {
            engine: spec.engine(),
            stage: spec.stage,
            class: recorded.class.clone(),
            versions: versions.unwrap_or_default(),
            way,
        }
    }
}

/// Returns true for runs whose final parameters are compared between engines: they have the same ranks,
/// microbatches and seed. A number that was rounded to the model's dtype is the same in fp32.
fn is_shared(spec: &RunSpec) -> bool {
    (spec.world_size, spec.gradient_accumulation_steps) == (2, 4)
        && [Dtype::Bf16, Dtype::Fp32].contains(&spec.dtype)
}

/// The digest of parameters, in fp32.
fn end(parameters: &[f64]) -> String {
    let bytes: Vec<u8> =
        parameters.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
    digest(&bytes)
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| engine | stage | as | exact runs | elements | differ | bounded runs | elements | \
             beyond | largest share of the bound | final parameters |"
        )?;
        writeln!(f, "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|")?;
        let (mut runs, mut elements) = (0, 0);
        for (line, [exact, bounded]) in &self.lines {
            let Line { engine, stage, class, versions, way } = line;
            let stage = match engine {
                Engine::Native | Engine::DeepSpeed => stage.to_string(),
                _ => "–".to_owned(),
            };
            let how = match engine {
                Engine::Native => (*way).to_owned(),
                _ => format!("`{class}`"),
            };
            let ended = self.ends.get(line).map_or("–", String::as_str);
            writeln!(
                f,
                "| {engine} ({versions}) | {stage} | {how} | {} | {} | {} | {} | {} | {} | {:.2} | {} |",
                exact.count,
                exact.agreement.elements,
                exact.agreement.wrong,
                bounded.count,
                bounded.agreement.elements,
                bounded.agreement.wrong,
                bounded.agreement.share,
                ended,
            )?;
            runs += exact.count + bounded.count;
            elements += exact.agreement.elements + bounded.agreement.elements;
        }
        writeln!(f, "\n{runs} runs, {elements} elements of weights.")
    }
}
