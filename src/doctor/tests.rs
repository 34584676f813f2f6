//! Facts in, lines out.

use super::*;
use crate::spec::Gpus;

fn machine() -> Machine {
    Machine {
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
        }),
    }
}

fn python(json: &str) -> Result<Python, NoAnswer> {
    let common = r#""executable": "/bin/python", "version": "3.11.7""#;
    Ok(serde_json::from_str(&format!("{{{common}, {json}}}")).unwrap())
}

fn text(machine: &Machine, python: &Result<Python, NoAnswer>) -> String {
    let checks = engines(machine, python).into_iter().chain(surroundings(machine, python));
    let line = |check: Check| {
        let advice = check.advice.map(|text| format!(" -> {text}")).unwrap_or_default();
        format!("{:7} {}: {}{advice}\n", check.state, check.subject, check.detail)
    };
    checks.map(line).collect()
}

#[test]
fn where_all_is_well_there_is_nothing_to_do() {
    let python = python(
        r#""torch": {"value": "2.11.0"}, "backends": {"value": ["gloo", "nccl"]},
           "gpus": {"value": ["H100"]}, "ddp": {"value": true}, "fsdp2": {"value": true},
           "deepspeed": {"value": "0.19.8"}"#,
    );
    let checks = [engines(&machine(), &python), surroundings(&machine(), &python)].concat();
    let troubled: Vec<&Check> =
        checks.iter().filter(|check| check.state != State::Ok || check.advice.is_some()).collect();
    assert_eq!(troubled, Vec::<&Check>::new());
}

#[test]
fn what_is_missing_or_broken_comes_with_what_to_do() {
    let poor = Machine {
        cores: Some(1),
        memory: Some(1 << 20),
        open_files: Some(64),
        shared_memory: Some(64 << 20),
        uv: None,
        driver: Err("nvidia-smi: no answer within 20 s".to_owned()),
        native: Err("/bin/zprobe-rank".into()),
        cuda: None,
        ..machine()
    };
    let old = python(
        r#""torch": {"value": "2.6.0"}, "backends": {"value": []}, "gpus": {"value": []},
           "ddp": {"value": true}, "fsdp2": {"problem": "AttributeError: record_event"},
           "deepspeed": {"problem": "ImportError: cannot import name 'log'"}"#,
    );
    let empty = python(
        r#""torch": {"problem": "ModuleNotFoundError: No module named 'torch'"},
           "deepspeed": {"problem": "ModuleNotFoundError: No module named 'deepspeed'"}"#,
    );
    let silent = Err(NoAnswer::Late { python: "python3".to_owned(), seconds: 120 });
    let no_cuda = Gpus {
        names: Err("no NVIDIA driver: libcuda.so.1 is not there".to_owned()),
        libtorch: Err("libtorch 2.11.0 in /lib: this libtorch has no CUDA".to_owned()),
        nccl: Err("no NCCL library".to_owned()),
    };
    let unseen = Machine { driver: Ok(vec!["H100".to_owned()]), cuda: Some(no_cuda), ..machine() };
    insta::assert_snapshot!(
        [text(&poor, &old), text(&machine(), &empty), text(&unseen, &silent)].join("\n")
    );
}
