//! Tests of the contents of scripts, and of the runs for which there is no script.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::script;
use crate::report::Report;
use crate::report::blank::report;
use crate::spec::{Device, Dtype, Engine, EngineSettings, Model, Offload, Shape, SpecRequest};

fn scripted(request: SpecRequest) -> Result<String, String> {
    script(&reported(request))
}

/// A report on a run that was asked for, and of which nothing was seen.
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
    assert!(!text.contains("#:"), "a place that was not filled:\n{text}");
    for wanted in [
        "\"stage\": 2",
        "\"device\": \"cpu\"",
        "PARAMETER_DTYPE = torch.float16",
        "UNUSED = {'layers.0.mlp.weight': [(0, 3), (1, 3)], }",
        "OUTPUT, PARTS = 'tuple', [2, -1]",
        "SEEN_WITH = 'torch 2.11.0'",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    for engine in [Engine::Ddp, Engine::Fsdp2] {
        let text = scripted(of(engine)).unwrap();
        assert!(!text.contains("#:") && text.contains("class Engine:"), "{engine}:\n{text}");
    }
}

#[test]
fn roundings_are_allowed_for_only_where_there_are_some() {
    let ranks = |world_size, ga| SpecRequest {
        world_size: Some(world_size),
        gradient_accumulation_steps: Some(ga),
        ..of(Engine::Ddp)
    };
    assert!(scripted(ranks(4, 8)).unwrap().contains("TOLERANCE, UPDATE_TOLERANCE = 0.0, 0.0"));
    // (3 + 3 + 2) roundings of 2^-8 of 9.
    assert!(scripted(ranks(3, 3)).unwrap().contains("TOLERANCE, UPDATE_TOLERANCE = 0.28125, "));
    assert!(scripted(ranks(6, 5)).unwrap_err().contains("rounded so often"));
}

#[test]
fn what_a_script_cannot_show_is_refused_by_name() {
    for (request, reason) in [
        (of(Engine::Native), "native engine"),
        (SpecRequest { model: Some(Model::Mlp), ..of(Engine::Ddp) }, "--model coded"),
        (SpecRequest { shapes: vec![Shape::Tied], ..of(Engine::Fsdp2) }, "shape tied"),
        (SpecRequest { gradient_clipping: Some(1.0), ..of(Engine::Ddp) }, "clipping"),
        (SpecRequest { parameters: Some(1 << 26), ..of(Engine::Ddp) }, "too many"),
    ] {
        let refused = scripted(request).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn a_run_on_gpus_has_no_script() {
    let mut report = reported(of(Engine::Ddp));
    report.run.spec.device = Device::Cuda;
    assert!(script(&report).unwrap_err().contains("--device cpu"));
}

/// Python program that prints `SEEN_WITH` and `CONFIG` of the script, and the kinds of its
/// statements. A real interpreter runs it, and evaluates nothing of the script but these two
/// expressions.
const READ: &str = "
import ast, json, sys
tree = ast.parse(sys.stdin.buffer.read())
said = {'kinds': [type(it).__name__ for it in tree.body]}
for it in tree.body:
    if isinstance(it, ast.Assign) and getattr(it.targets[0], 'id', None) in ('SEEN_WITH', 'CONFIG'):
        said[it.targets[0].id] = eval(compile(ast.Expression(it.value), 'script', 'eval'), {'json': json})
print(json.dumps(said))
";

fn read_by_python(script: &str) -> serde_json::Value {
    let mut child = Command::new("python3")
        .args(["-I", "-c", READ])
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
    let harmless = read_by_python(&script(&report).unwrap());
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
        "torch.bfloat16  #: compute_dtype",
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
        let script = script(&hostile).unwrap();
        assert!(script.is_ascii() && !script.contains(crate::visible::is_hidden), "{text:?}");
        let read = read_by_python(&script);
        assert_eq!(read["kinds"], harmless["kinds"], "{text:?}");
        assert_eq!(read["CONFIG"], config, "{text:?}");
        assert!(read["SEEN_WITH"].as_str().unwrap().contains(text), "{text:?}");
    }
}
