//! Scripts whose real gradients are observed while the scripts train.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use zprobe_report::Verdict;

use super::mistakes::{mistakes, planted};
use super::{file, full, python, scripts, train};

/// Trainings with a checkpoint at their end: the script, the number of ranks, and the flags.
const TRAININGS: &[(&str, usize, &str)] = &[
    ("ddp.py", 2, "--accumulate 2"),
    ("fsdp2.py", 2, "--accumulate 2 --dtype bf16"),
    ("deepspeed_zero.py", 2, "--stage 1 --accumulate 2 --dtype bf16"),
    ("ddp.py", 3, "--accumulate 2 --zero"),
    ("ddp.py", 2, "--accumulate 2 --amp --dtype fp16 --checkpoint reentrant"),
    ("deepspeed_zero.py", 2, "--stage 0 --accumulate 2"),
    ("deepspeed_zero.py", 2, "--stage 2 --accumulate 3"),
    ("deepspeed_zero.py", 2, "--stage 3 --accumulate 2 --dtype bf16"),
    ("megatron_core.py", 2, "--accumulate 2 --dtype bf16 --distributed-optimizer"),
];

/// The number of trainings that are run every day; they come first in [`TRAININGS`].
const FEW: usize = 3;

/// The contents of all files below a directory, by path.
pub(super) fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            all.extend(
                files(&path).into_iter().map(|(file, bytes)| (format!("{name}/{file}"), bytes)),
            );
        } else {
            all.insert(name, fs::read(&path).expect("a file"));
        }
    }
    all
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn what_is_observed_trains_to_the_same_last_bit() {
    for (script, ranks, flags) in TRAININGS.iter().take(if full() { usize::MAX } else { FEW }) {
        let flags = format!("{flags} --steps 5 --out saved");
        let plain = scripts();
        let status = Command::new(python())
            .arg(file("tests/engines/exec/ranks.py"))
            .args([&ranks.to_string(), *script])
            .args(flags.split_whitespace())
            .current_dir(plain.path())
            .env("DS_ACCELERATOR", "cpu")
            .env("OMP_NUM_THREADS", "1")
            .status();
        assert!(status.expect("a script").success(), "{script} {flags}");
        let run = train(scripts(), &["--observe"], *ranks, script, &flags);
        assert_eq!(run.report().verdict, Verdict::Clean, "{script} {flags}: {}", run.findings());
        assert_eq!(run.code, 0, "{script} {flags}");
        let (one, other) =
            (files(&plain.path().join("saved")), files(&run.dir.path().join("saved")));
        assert!(!one.is_empty() && one.keys().eq(other.keys()), "{script} {flags}");
        for (name, bytes) in &one {
            assert!(*bytes == other[name], "{script} {flags}: {name} differs");
        }
    }
}

/// Mistakes that real gradients show, with the code of the finding and a part of its message.
const NAMED: &[(&str, &str, &str)] = &[
    ("ddp-flag-set-after-forward", "ZP104", "of microbatches 1 and 2 were not averaged"),
    ("ddp-never-synchronised", "ZP104", "were not averaged across ranks"),
    ("ddp-never-cleared", "ZP106", "of an earlier step"),
    ("ddp-one-parameter-never-cleared", "ZP106", "of an earlier step"),
    ("ddp-unfrozen-after-wrapping", "ZP104", "were not averaged across ranks"),
    ("ddp-gradient-scaled-on-a-rank", "ZP103", "rank 1"),
    ("ddp-noise-in-gradients", "ZP605", "changed between the last backward"),
    ("deepspeed-not-in-the-optimizer", "ZP401", "are held by no rank's optimizer"),
];

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn mistakes_show_in_real_gradients() {
    let mistakes = mistakes();
    for (name, code, part) in NAMED.iter().take(if full() { usize::MAX } else { 1 }) {
        let mistake = &mistakes[*name];
        let flags = format!("{} --steps 5", mistake.flags);
        let run = train(planted(mistake), &["--observe"], mistake.world, &mistake.script, &flags);
        let [finding] = &run.report().findings[..] else { panic!("{name}: {}", run.findings()) };
        assert_eq!(finding.code.as_str(), *code, "{name}: {}", run.findings());
        assert!(finding.message.contains(part), "{name}: {}", run.findings());
        assert_eq!(run.code, 1, "{name}");
    }
}
