//! Tests of the contents of reproduction scripts, and of the runs for which there is no script.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::json;

use super::script;
use zprobe_model::spec::{
    Device, Dtype, Engine, EngineSettings, Model, Offload, Optimizer, Plan, Shape, SpecRequest,
};
use zprobe_model::trace::Point;
use zprobe_report::blank::report;
use zprobe_report::{Contribution, Report, Verdict};

fn scripted(request: SpecRequest) -> Result<String, String> {
    script(&reported(request), "A title")
}

/// A report with the specification of a run and without any observations.
fn reported(request: SpecRequest) -> Report {
    let spec = request.resolve().expect("a valid request");
    report(spec)
}

fn of(engine: Engine) -> SpecRequest {
    SpecRequest { engine: Some(engine), ..SpecRequest::default() }
}

#[test]
fn a_script_has_the_settings_of_its_run_and_no_gap() {
    let request = SpecRequest {
        stage: Some(2),
        dtype: Some(Dtype::Fp16),
        offload: Some(Offload::Cpu),
        shapes: vec![Shape::UnusedLast, Shape::TupleOutput, Shape::SeveralBackwards],
        ..of(Engine::DeepSpeed)
    };
    let text = scripted(request).unwrap();
    assert!(!text.contains("#: "), "a place that was not filled:\n{text}");
    for wanted in [
        "# A title\n",
        "'stage': 2",
        "'device': 'cpu'",
        "torch.zeros(size, dtype=torch.float16)",
        "return not (name == \"mlp\" and m == GA - 1)",
        "return terms.sum(), terms",
        "loss = -1 * engine(step, rank, m)[0]",
        "engine.set_gradient_accumulation_boundary(m == GA - 1)",
        "# Seen with torch 2.11.0.\n",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    for engine in [Engine::Ddp, Engine::Fsdp2] {
        let text = scripted(of(engine)).unwrap();
        assert!(!text.contains("#: ") && text.contains("def train("), "{engine}:\n{text}");
    }
}

#[test]
fn a_script_is_short_enough_to_be_read() {
    let wanted = |text: &str| {
        let is_code = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
        (text.lines().filter(is_code).count(), text.lines().map(str::len).max().unwrap_or(0))
    };
    for engine in [Engine::DeepSpeed, Engine::Ddp, Engine::Fsdp2] {
        let (lines, longest) = wanted(&scripted(of(engine)).unwrap());
        assert!(
            lines <= 80 && longest <= 110,
            "{engine}: {lines} lines, the longest with {longest}"
        );
    }
}

#[test]
fn roundings_are_allowed_for_only_where_there_are_some() {
    let ranks = |world_size, ga| SpecRequest {
        world_size: Some(world_size),
        gradient_accumulation_steps: Some(ga),
        ..of(Engine::Ddp)
    };
    let exact = scripted(ranks(4, 8)).unwrap();
    assert!(exact.contains("right = weights == expected") && !exact.contains("TOLERANCE"));
    // The bound is (3 + 3 + 2) roundings of 2^-8 each.
    let rounded = scripted(ranks(3, 3)).unwrap();
    assert!(rounded.contains("TOLERANCE = 0.03125 ") && rounded.contains("<= TOLERANCE"));
}

#[test]
fn what_a_script_cannot_show_is_refused_by_name() {
    let adamw = Optimizer::Adamw { lr: 0.01, betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.0 };
    for (request, reason) in [
        (of(Engine::Native), "native engine"),
        (SpecRequest { model: Some(Model::Mlp), ..of(Engine::Ddp) }, "--model coded"),
        (SpecRequest { optimizer: Some(adamw), ..of(Engine::Ddp) }, "--optimizer sgd"),
        (SpecRequest { shapes: vec![Shape::Tied], ..of(Engine::Fsdp2) }, "shape tied"),
        (SpecRequest { gradient_clipping: Some(1.0), ..of(Engine::Ddp) }, "clipping"),
        (SpecRequest { parameters: Some(1 << 26), ..of(Engine::Ddp) }, "too many"),
    ] {
        let refused = scripted(request).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn a_finding_that_is_in_no_update_has_no_script() {
    let mut found = reported(of(Engine::Ddp));
    found.verdict = Verdict::Findings;
    let entry = |point, as_planned| Contribution {
        point,
        step: 0,
        microbatch: None,
        rank: 0,
        params: None,
        weights: Vec::new(),
        expected: Vec::new(),
        leftover: Vec::new(),
        elements: Vec::new(),
        possible: Vec::new(),
        residual: 0.0,
        tolerance: 0.0,
        covered: 1.0,
        as_planned,
        also: Vec::new(),
    };
    found.contributions = vec![entry(Point::Accumulator, false), entry(Point::Parameters, true)];
    assert!(script(&found, "").unwrap_err().contains("were right in this run"));
    found.contributions.push(entry(Point::Parameters, false));
    assert!(script(&found, "").is_ok());
    found.verdict = Verdict::Crashed;
    found.contributions.clear();
    assert!(script(&found, "").is_ok(), "a crash needs no weights");
}

/// A Python program that calls the script's function `used` for every parameter and microbatch, and prints the
/// results.
const USED: &str = "
import ast, json, sys
tree = ast.parse(sys.stdin.read())
names = {'W', 'GA', 'STEPS', 'K', 'SIZES'}
def is_wanted(it):
    if isinstance(it, ast.Assign):
        target = it.targets[0]
        return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)} <= names
    return isinstance(it, ast.FunctionDef) and it.name == 'used'
tree.body = [it for it in tree.body if is_wanted(it)]
exec(compile(tree, 'script', 'exec'))
print(json.dumps({name: [[[used(name, s, r, m) for m in range(GA)] for r in range(W)] for s in range(STEPS)]
                  for name in SIZES}))
";

#[test]
fn a_script_uses_its_parameters_in_the_microbatches_of_the_plan() {
    let request = SpecRequest {
        gradient_accumulation_steps: Some(3),
        shapes: vec![
            Shape::UnusedFirst,
            Shape::UnusedLast,
            Shape::UnusedAlways,
            Shape::UnusedAlternating,
            Shape::UnusedOnOddRanks,
            Shape::UnusedOnEvenRanks,
        ],
        ..of(Engine::DeepSpeed)
    };
    let spec = request.clone().resolve().unwrap();
    let plan = Plan::new(&spec);
    let said = read_by_python(USED, &scripted(request).unwrap());
    for (index, param) in plan.params().iter().enumerate() {
        let usage = plan.usage(index);
        let uses = |step, rank, microbatch| usage.uses(step, rank, microbatch, 3);
        let of_rank = |step, rank| (0..3).map(|m| uses(step, rank, m)).collect::<Vec<_>>();
        let of_step = |step| (0..2).map(|rank| of_rank(step, rank)).collect::<Vec<_>>();
        let planned: Vec<_> = (0..2).map(of_step).collect();
        assert_eq!(said[super::lines::name(&param.name)], json!(planned), "{}", param.name);
    }
}

#[test]
fn a_run_on_gpus_has_no_script() {
    let mut report = reported(of(Engine::Ddp));
    report.run.spec.device = Device::Cuda;
    assert!(script(&report, "").unwrap_err().contains("--device cpu"));
}

/// A Python program that prints the script's `CONFIG` and the kinds of its statements. The program parses the script
/// and evaluates only the literal of `CONFIG`.
const READ: &str = "
import ast, json, sys
tree = ast.parse(sys.stdin.buffer.read())
said = {'kinds': [type(it).__name__ for it in tree.body]}
for it in tree.body:
    if isinstance(it, ast.Assign) and getattr(it.targets[0], 'id', None) == 'CONFIG':
        said['CONFIG'] = ast.literal_eval(it.value)
print(json.dumps(said))
";

/// Runs a Python program with the script on standard input, and returns its JSON output.
fn read_by_python(program: &str, script: &str) -> serde_json::Value {
    let mut child = Command::new("python3")
        .args(["-I", "-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{script}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn no_text_of_a_report_becomes_code_of_the_script() {
    let report = reported(of(Engine::DeepSpeed));
    let harmless = read_by_python(READ, &script(&report, "").unwrap());
    for text in [
        "\"\"\"\nimport os\nos.abort()\n\"\"\"",
        "'''\nimport os\n'''",
        "' + __import__('os').abort() + '",
        "\\' + 1 #",
        "\\",
        "{__import__('os')} %s {0}",
        "a\u{2028}b\u{2029}c\u{85}d\u{b}e\u{c}f\rg\nh\0i",
        "\u{1b}]52;c;x\u{7}\u{202e}\u{feff}",
        "é 日本 🙂 \u{10ffff} \u{ffff}",
        "# coding: utf-7\n+ACI-",
        "#: config",
        "torch.bfloat16  #: dtype",
        "\\u0027 \\x27 \\N{APOSTROPHE}",
    ] {
        let mut hostile = report.clone();
        hostile.run.versions.insert(text.to_owned(), text.to_owned());
        let EngineSettings::DeepSpeed(options) = &mut hostile.run.spec.settings else {
            panic!("another engine")
        };
        let config = options.config.as_mut().unwrap();
        config[text] = serde_json::json!([text, { text: text }, 0.1, -3, 1e300, true, null]);
        let config = config.clone();
        let script = script(&hostile, text).unwrap();
        assert!(
            script.is_ascii() && !script.contains(zprobe_model::visible::is_hidden),
            "{text:?}"
        );
        let read = read_by_python(READ, &script);
        assert_eq!(read["kinds"], harmless["kinds"], "{text:?}");
        assert_eq!(read["CONFIG"], config, "{text:?}");
    }
}
