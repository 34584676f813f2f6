//! Which engines can run here.

use super::checks::{INSTALL_TORCH, no_answer};
use super::{Attempt, Check, Machine, NoAnswer, Python, State};
use crate::spec::Engine;

/// What to do where torch is there and DDP does not work.
const OTHER_TORCH: &str = "install another torch, or name another interpreter with --python";

/// What to do where torch is there and FSDP2 does not work.
const NEWER_TORCH: &str =
    "upgrade torch: fully_shard on the CPU works with 2.11, and not with 2.6 or older";

/// What to do where torch is there and DeepSpeed is not.
const INSTALL_DEEPSPEED: &str = "`DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed`, or name another interpreter with \
     --python";

/// Which engines can run: a line for each, in the order of [`Engine::ALL`].
pub fn engines(machine: &Machine, python: &Result<Python, NoAnswer>) -> Vec<Check> {
    let with_torch = |name, check: &dyn Fn(&Python, String) -> Check| match python {
        Err(error) => no_answer(name, error),
        Ok(python) => match &python.torch {
            Attempt::Value(version) => check(python, format!("torch {version}")),
            missing => Check::tried(name, missing, String::clone, INSTALL_TORCH),
        },
    };
    let check = |engine: &Engine| {
        let name = engine.name();
        match engine {
            Engine::Native => native(machine),
            Engine::DeepSpeed => with_torch(name, &|python, torch| {
                let detail = |version: &String| format!("deepspeed {version}, {torch}");
                Check::tried(name, &python.deepspeed, detail, INSTALL_DEEPSPEED)
            }),
            Engine::Ddp => with_torch(name, &|python, torch| {
                Check::tried(name, &python.ddp, |_| torch.clone(), OTHER_TORCH)
            }),
            Engine::Fsdp2 => with_torch(name, &|python, torch| {
                Check::tried(name, &python.fsdp2, |_| torch.clone(), NEWER_TORCH)
            }),
        }
    };
    Engine::ALL.iter().map(check).collect()
}

/// Whether the native engine can run.
pub fn native(machine: &Machine) -> Check {
    let name = Engine::Native.name();
    match &machine.native {
        Ok(path) => Check::ok(name, path.display().to_string()),
        Err(path) => Check::not(
            name,
            State::Missing,
            format!("{} does not exist", path.display()),
            "build it with `cargo xtask build`",
        ),
    }
}
