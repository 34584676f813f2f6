//! Every row of the zoo that is part of the program.

use std::sync::LazyLock;

use super::ZooRow;

/// Declares the rows by the names of their files.
macro_rules! rows {
    ($($name:literal,)*) => {
        /// The path and text of each file in `probes/zoo`, sorted by name.
        pub const FILES: &[(&str, &str)] = &[$((
            concat!("probes/zoo/", $name, ".toml"),
            include_str!(concat!("../probes/", $name, ".toml")),
        ),)*];
    };
}

rows! {
    "accelerate-steps-in-each-batch",
    "adam-counts-a-step-of-zeros",
    "bf16-asserts-on-infinity",
    "bf16-never-cleared",
    "bf16-never-scaled",
    "bf16-norm-of-used-parameters",
    "boundary-leak",
    "clipping-spreads-infinity",
    "comm-dtype-key-error",
    "comm-dtype-large-parameter",
    "cpu-never-reduced",
    "cpu-pipeline-v",
    "cpu-split-view",
    "ddp-late-no-sync",
    "ddp-no-sync-unused",
    "ddp-unmanaged-boundary",
    "ddp-unused-not-looked-for",
    "dead-hooks",
    "dead-hooks-silent",
    "dead-hooks-silent-stage2",
    "direct-backward-scaling",
    "divided-twice-dict",
    "divided-twice-tuple",
    "empty-boundary",
    "expert-gradients-doubled",
    "flag-set-after-forward",
    "fp16-never-scaled",
    "fsdp1-forward-keeps-parameters",
    "fsdp1-one-shard-never-reduced",
    "fsdp1-tied-gradient-dtype",
    "fsdp1-unfrozen-under-no-sync",
    "fsdp1-unmanaged-boundary",
    "fsdp2-blocks-in-another-order",
    "fsdp2-checkpoint-unused",
    "fsdp2-columns-resharded-in-part",
    "fsdp2-divide-factor-squared",
    "fsdp2-forward-keeps-parameters",
    "fsdp2-infinity-norm-of-empty-shard",
    "fsdp2-partial-sum-not-all-reduced",
    "fsdp2-partial-sums-by-position",
    "fsdp2-ranks-use-different-parameters",
    "fsdp2-skipped-block",
    "fsdp2-unmanaged-boundary",
    "lightning-last-window-of-an-epoch",
    "lightning-static-graph-never-reduced",
    "muon-loses-adam-gradients",
    "muon-never-orthogonalises",
    "muon-orthogonalises-each-microbatch",
    "norm-not-unscaled",
    "not-averaged-mixed-dtype",
    "offload-adds-old-steps",
    "offload-keeps-infinity",
    "offload-loses-middle",
    "offload-loses-unused",
    "offload-stale-gradient",
    "overflow-not-shared",
    "overlap-skips-unused",
    "penalty-counts-again",
    "pipeline-zero-bubble-counts-twice",
    "pipeline-zero-bubble-ddp",
    "scale-growth-halves-gradients",
    "sequence-bf16-norm",
    "sequence-mesh-not-reduced",
    "stage2-last-microbatch-only",
    "stage3-predivide",
    "stage3-sequence-averaged",
    "stage3-stale-gradient",
    "term-beside-not-divided",
    "transformers-custom-loss-never-divided",
    "transformers-last-window-divided-by-all",
    "transformers-mean-of-means",
    "transformers-tokens-of-the-own-rank",
    "transformers-window-over-the-epoch",
    "unfused-norm-without-experts",
    "unmanaged-counts-again",
    "wrong-optimizer",
    "zero-ranks-in-another-order",
    "zero-ranks-use-different-parameters",
}

/// All rows of the zoo.
pub fn rows() -> &'static [ZooRow] {
    static ROWS: LazyLock<Vec<ZooRow>> = LazyLock::new(|| {
        let rows = FILES.iter().map(|(path, text)| ZooRow::parse(path, text));
        rows.collect::<Result<_, _>>().expect("tests/it/zoo.rs reads every row")
    });
    &ROWS
}
