//! Tests of the doctor's checks, which are made from given facts.

use super::*;
use zprobe_model::spec::{Engine, Gpus, Shape, SpecRequest};

fn machine() -> MachineFacts {
    MachineFacts {
        system: Some("Debian GNU/Linux 12".to_owned()),
        kernel: Some("6.1.0".to_owned()),
        container: false,
        cores: Some(8),
        memory: Some(8 << 30),
        open_files: Some(1024),
        shared_memory: Some(1 << 30),
        uv: Some("/usr/bin/uv".into()),
        driver: Ok(vec!["H100".to_owned()]),
        driver_version: Some("580.95.05".to_owned()),
        native: Ok("/bin/zprobe-rank".into()),
        cuda: Some(Gpus {
            names: Ok(vec!["H100".to_owned()]),
            libtorch: Ok("libtorch 2.11.0 in /venv/torch/lib".to_owned()),
            nccl: Ok("/venv/nvidia/nccl/lib/libnccl.so.2".to_owned()),
            of_python: false,
        }),
    }
}

fn python(json: &str) -> Result<PythonFacts, InterpreterError> {
    let common = r#""executable": "/bin/python", "version": "3.11.7""#;
    Ok(serde_json::from_str(&format!("{{{common}, {json}}}")).unwrap())
}

fn text(machine: &MachineFacts, python: &Result<PythonFacts, InterpreterError>) -> String {
    let checks = engines(machine, python).into_iter().chain(surroundings(machine, python));
    let line = |check: DoctorCheck| {
        let advice = check.advice.map(|text| format!(" -> {text}")).unwrap_or_default();
        format!("{:7} {}: {}{advice}\n", check.state, check.subject, check.detail)
    };
    checks.map(line).collect()
}

#[test]
fn where_all_is_well_there_is_nothing_to_do() {
    let python = python(
        r#""torch": {"value": "2.11.0"}, "backends": {"value": ["gloo", "nccl"]},
           "gpus": {"value": ["H100"]}, "ddp": {"value": true}, "fsdp1": {"value": true}, "fsdp2": {"value": true},
           "pipeline": {"value": true},
           "deepspeed": {"value": "0.19.8"}"#,
    );
    let checks = [engines(&machine(), &python), surroundings(&machine(), &python)].concat();
    let troubled: Vec<&DoctorCheck> = checks
        .iter()
        .filter(|check| check.state != CheckState::Ok || check.advice.is_some())
        .collect();
    assert_eq!(troubled, Vec::<&DoctorCheck>::new());
}

#[test]
fn a_run_is_refused_where_the_installed_release_lacks_what_it_needs_and_nowhere_else() {
    let answer = |features: &str| {
        python(&format!(
            r#""torch": {{"value": "2.11.0"}}, "deepspeed": {{"value": "0.18.9"}}{features}"#
        ))
        .unwrap()
    };
    let has =
        |features: &str| answer(&format!(r#", "deepspeed_features": {{"value": [{features}]}}"#));
    let spec = |shapes: Vec<Shape>| {
        let request = SpecRequest {
            engine: Some(Engine::DeepSpeed),
            stage: Some(2),
            shapes,
            ..SpecRequest::default()
        };
        request.resolve().unwrap()
    };
    let coalesced = spec(vec![Shape::CoalescedReduction]);
    let refused = refusal(&has(""), &coalesced).unwrap();
    assert!(refused.starts_with("DeepSpeed 0.18.9 has no coalesce_grad_reduction"), "{refused}");
    assert_eq!(refusal(&has(r#""coalesce_grad_reduction""#), &coalesced), None);
    assert_eq!(refusal(&answer(""), &coalesced), None, "a run with unknown limits is tried");
    let plain = spec(Vec::new());
    assert_eq!(refusal(&has(""), &plain), None);
    assert!(questions(&plain).is_empty(), "no fact has to be asked for");
}

#[test]
fn what_is_missing_or_broken_comes_with_what_to_do() {
    let poor = MachineFacts {
        cores: Some(1),
        memory: Some(1 << 20),
        open_files: Some(64),
        shared_memory: Some(64 << 20),
        uv: None,
        driver: Err("nvidia-smi: no answer within 20 s".to_owned()),
        native: Err("there is no /bin/zprobe-rank".to_owned()),
        cuda: None,
        ..machine()
    };
    let old = python(
        r#""torch": {"value": "2.6.0"}, "backends": {"value": []}, "gpus": {"value": []},
           "ddp": {"value": true}, "fsdp1": {"problem": "RuntimeError: no device"},
           "fsdp2": {"problem": "AttributeError: record_event"},
           "pipeline": {"value": true}, "deepspeed": {"problem": "ImportError: cannot import name 'log'"}"#,
    );
    let empty = python(
        r#""torch": {"problem": "ModuleNotFoundError: No module named 'torch'"},
           "deepspeed": {"problem": "ModuleNotFoundError: No module named 'deepspeed'"}"#,
    );
    let silent = Err(InterpreterError::Late { python: "python3".to_owned(), seconds: 120 });
    let no_cuda = Gpus {
        names: Err("no NVIDIA driver: libcuda.so.1 is not there".to_owned()),
        libtorch: Err("libtorch 2.11.0 in /lib: this libtorch has no CUDA".to_owned()),
        nccl: Err("no NCCL library".to_owned()),
        of_python: false,
    };
    let unseen =
        MachineFacts { driver: Ok(vec!["H100".to_owned()]), cuda: Some(no_cuda), ..machine() };
    insta::assert_snapshot!(
        [text(&poor, &old), text(&machine(), &empty), text(&unseen, &silent)].join("\n")
    );
}
