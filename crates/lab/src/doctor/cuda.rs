//! The check of the requirements for running the native engine on GPUs.

use super::{Check, Machine, State};
use zprobe_model::spec::{Missing, NoCuda};

/// The check of the usable GPUs, or one check for each missing requirement, and a check of NCCL. The list is empty if
/// the native engine was not asked.
pub(super) fn cuda(machine: &Machine) -> Vec<Check> {
    const SUBJECT: &str = "native on cuda";
    const NCCL: &str = "nccl";
    let Some(gpus) = &machine.cuda else { return Vec::new() };
    let mut checks: Vec<Check> = match gpus.usable() {
        Ok(()) => {
            let libtorch = gpus.libtorch.as_deref().unwrap_or_default();
            vec![Check::ok(SUBJECT, format!("{} GPUs, {libtorch}", gpus.count()))]
        }
        Err(NoCuda(missing)) => missing
            .into_iter()
            .map(|Missing { what, advice }| Check::not(SUBJECT, State::Missing, what, advice))
            .collect(),
    };
    // NCCL is looked for only next to a libtorch that has CUDA.
    if gpus.libtorch.is_ok() {
        checks.push(match &gpus.nccl {
            Ok(path) => Check::ok(NCCL, path),
            Err(problem) => Check::not(
                NCCL,
                State::Missing,
                problem,
                "`pip install nvidia-nccl-cu13` next to that torch, or let ranks on GPUs use Gloo",
            ),
        });
    }
    checks
}
