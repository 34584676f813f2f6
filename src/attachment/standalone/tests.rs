//! What scripts say, and which runs have none.

use super::script;
use crate::report::{Ending, Hooks, Method, Power, Report, Run, Schema, Verdict};
use crate::spec::{Dtype, Engine, Model, Offload, Shape, SpecRequest};

fn scripted(request: SpecRequest) -> Result<String, String> {
    let spec = request.resolve().expect("a valid request");
    let report = Report {
        schema: Schema::CURRENT,
        verdict: Verdict::Clean,
        run: Run {
            spec,
            versions: [("torch".to_owned(), "2.11.0".to_owned())].into(),
            optimizer_class: None,
            inner_optimizer: None,
            engine_facts: Default::default(),
            not_observed: Vec::new(),
            ending: Ending::Complete,
        },
        findings: Vec::new(),
        first_divergence: None,
        journey: Vec::new(),
        contributions: Vec::new(),
        norms: Vec::new(),
        steps: Vec::new(),
        ranks: Vec::new(),
        buckets: Vec::new(),
        hooks: Hooks {
            observed: false,
            counts: Vec::new(),
            params: Vec::new(),
            firings: Vec::new(),
        },
        precision: Vec::new(),
        power: Power {
            method: Method::Coded,
            smallest_weight_deviation: None,
            condition: None,
            smallest_element_deviation: None,
            statement: String::new(),
        },
        not_exercised: Vec::new(),
        masked: 0,
        repeats: None,
        minimised: None,
    };
    script(&report)
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
        "\"stage\": 2,",
        "\"device\": \"cpu\",",
        "PARAMETER_DTYPE = torch.float16",
        "UNUSED = {\"layers.0.mlp.weight\": \"last\", }",
        "OUTPUT, PARTS = \"tuple\", [2, -1]",
        "Seen with torch 2.11.0.",
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
