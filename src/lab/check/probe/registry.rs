//! The standard suite: every probe that is part of the program.

use super::Probe;
use crate::document::{Complaint, Document};

/// Declares the probes by the names of their files.
macro_rules! probes {
    ($($name:literal,)*) => {
        /// Path and text of each file in `probes`, by name.
        pub const FILES: &[(&str, &str)] = &[$((
            concat!("probes/", $name, ".toml"),
            include_str!(concat!("../../../../probes/", $name, ".toml")),
        ),)*];
    };
}

probes! {
    "ddp-bf16",
    "ddp-bf16-compress",
    "ddp-bucket-view",
    "ddp-clipping",
    "ddp-dense",
    "ddp-fp16-compress",
    "ddp-fp32",
    "ddp-fp32-ga3",
    "ddp-poisoned-memory",
    "ddp-three-ranks",
    "ddp-tiny-buckets",
    "ddp-unused-last",
    "fsdp2-bf16",
    "fsdp2-bf16-reduce-bf16",
    "fsdp2-clipping",
    "fsdp2-dense",
    "fsdp2-every-microbatch",
    "fsdp2-fp16",
    "fsdp2-fp32",
    "fsdp2-ga1",
    "fsdp2-keep-parameters",
    "fsdp2-poisoned-memory",
    "fsdp2-three-ranks",
    "fsdp2-three-ranks-dense",
    "fsdp2-tied",
    "stage0-bf16",
    "stage0-clipping",
    "stage0-fp16",
    "stage0-fp32",
    "stage0-three-ranks",
    "stage0-unused-first",
    "stage1-bf16",
    "stage1-bf16-fp32",
    "stage1-bf16-fp32-ga1",
    "stage1-bf16-fp32-ga3",
    "stage1-clipping",
    "stage1-comm-fp32",
    "stage1-dense",
    "stage1-experts",
    "stage1-fp16",
    "stage1-fp32",
    "stage1-infinity",
    "stage1-offload",
    "stage1-poisoned-memory",
    "stage1-predivide",
    "stage1-prescale",
    "stage1-three-steps",
    "stage1-tied",
    "stage2-bf16",
    "stage2-bf16-fp32",
    "stage2-clipping",
    "stage2-comm-fp32",
    "stage2-comm-fp32-dense",
    "stage2-dense",
    "stage2-fp16",
    "stage2-fp32",
    "stage2-ga1",
    "stage2-infinity",
    "stage2-no-reduce-scatter",
    "stage2-offload",
    "stage2-offload-clipping",
    "stage2-one-bucket",
    "stage2-overlap-comm",
    "stage2-round-robin",
    "stage2-several-backwards",
    "stage2-single-rank-buckets",
    "stage2-three-ranks",
    "stage2-tiny-buckets",
    "stage2-unused-last",
    "stage3-bf16",
    "stage3-bf16-fp32",
    "stage3-clipping",
    "stage3-comm-fp32",
    "stage3-fp16",
    "stage3-fp32",
    "stage3-frozen",
    "stage3-ga3",
    "stage3-no-overlap-comm",
    "stage3-no-reduce-scatter",
    "stage3-offload",
    "stage3-poisoned-memory",
    "stage3-small-groups",
    "stage3-three-ranks",
}

/// All probes of the standard suite.
///
/// # Errors
/// Never for the files of a release: `tests/check.rs` reads them.
pub fn probes() -> Result<Vec<Probe>, Complaint> {
    let documents =
        FILES.iter().map(|&(file, text)| Document { file: file.to_owned(), text: text.to_owned() });
    documents.map(Probe::read).collect()
}
