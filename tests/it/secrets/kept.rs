//! Texts that are not private are kept.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use zprobe_model::trace::Trace;
use zprobe_redact::{Kind, Known, Private, Redactor};

/// Texts that resemble private ones a little.
const HARMLESS: &[&str] = &[
    "torch==2.11.0+cu130.git5811a8d nvidia-cublas-cu12==12.4.5.8, NCCL 2.27.5+cuda13.0, glibc 2.36",
    "2.9.0a0+50eac811a6.nv25.9, built 2025-09-18T11:22:33Z, sm_90a;sm_100 -D_GLIBCXX_USE_CXX11_ABI=1",
    "sha256:5f2b8a1c9d3e4f60718293a4b5c6d7e8f90123456789abcdef0123456789abcd",
    "checksum = \"ddd31a130427c27518df266943a5308ed92d4b226cc639f5a8f1002816174301\"",
    "git+https://github.com/deepspeedai/DeepSpeed@0123456789abcdef0123456789abcdef01234567",
    "digest 44b0cd6e3d926afe of 12 elements, norm 36.66060555964672, 1.2e-07, 0x7ffd5e3c",
    "gradient of layers.0.attn.k_proj.weight, fc1.in, block3.tokens.key, h.11.mlp.c_fc.bias",
    "rank 0: [[1, 2], [1, 0]], rank 1: [[1, 0], [1, 2]], ranks=[0, 1], group=0:1:2:3",
    "ZP101 boundary-leak, ZP901 rank-died, ZP604: the engine computed 44.855 as the global norm",
    "AAAAAD+AAABAQAAAgEAAoEAAwEAA4EABAEA//8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8=",
    "optimizer: token-bucket, keys: ['exp_avg', 'exp_avg_sq'], KeyError: 'communication'",
    "for key in keys: total += d[key]; token = tokens[0]; auth: none; pass: 2; signature: (Tensor)",
    "--stage 1 --ga 4 --nproc-per-node 2 --comm-dtype fp32 --reduce-bucket-size 96 --seed 12345678",
    "PWD=/ OLDPWD=/usr/lib {'PWD': '/usr'} SSH_AUTH_SOCK=agent TOKEN_TYPE=bearer",
    "TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=4 NCCL_DEBUG=INFO CUDA_VISIBLE_DEVICES=0,1",
    "at 12:34:56.789, pid 12345, 127.0.0.1:29500, [::1]:29500, ::, 0.0.0.0, /dev/shm, /usr/lib",
    "std::bad_alloc in c10d::ProcessGroupGloo::allreduce, engine.py:2345, reducer.cpp:1234",
    "the boundary microbatch 1 was not averaged: each rank's optimizer got its own gradient 2 times over",
    "The secret of a good password: it is long. Tokens per second: 1234. A basic functionality test.",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below a directory whose name ends with one of `ends`.
fn files(dir: &str, ends: &[&str]) -> Vec<PathBuf> {
    let mut dirs = vec![root().join(dir)];
    let mut files = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if ends.iter().any(|end| path.to_str().unwrap().ends_with(end)) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

#[test]
fn of_a_recorded_run_nothing_is_taken_for_a_secret_and_of_a_healthy_one_nothing_changes() {
    let mut seen = 0;
    for fixture in fs::read_dir(root().join("fixtures/traces")).unwrap() {
        let dir = fixture.unwrap().path();
        let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
        let mut known = Known::default();
        known.trace(&Trace::read(&dir).unwrap());
        let redactor = Redactor::of_everything(&Private::default(), &known);
        for line in fs::read_to_string(dir.join("trace.jsonl")).unwrap().lines() {
            let record: Value = serde_json::from_str(line).unwrap();
            let mut redacted = record.clone();
            redactor.json(&mut redacted);
            assert!(redacted == record || !name.starts_with("clean-"), "{name}: {redacted}");
        }
        assert_eq!(redactor.counts().get(&Kind::Secret), None, "{name}");
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn what_looks_a_little_like_something_private_stays() {
    let redactor = Redactor::of_everything(&Private::default(), &Known::default());
    for text in HARMLESS {
        assert_eq!(redactor.text(text), *text);
    }
}

#[test]
fn no_word_of_the_documentation_and_of_a_lock_file_is_taken_for_a_secret() {
    let redactor = Redactor::of_secrets(&Private::default(), &Known::default());
    let mut read = files("docs", &[".md"]);
    read.extend(files("probes", &[".toml"]));
    read.extend(["README.md", "CHANGELOG.md", "Cargo.lock"].map(|name| root().join(name)));
    for path in read {
        // This page shows examples of redacted texts.
        if path.ends_with("file-a-bug.md") {
            continue;
        }
        for line in fs::read_to_string(&path).unwrap().lines() {
            assert_eq!(redactor.text(line), line, "{}", path.display());
        }
    }
}
