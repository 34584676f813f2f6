//! Requirements of the native engine for computing on GPUs.

use super::{Check, Machine, State};
use zprobe_model::spec::{Missing, NoCuda};

/// A line about the usable GPUs, or one for each missing requirement, and one about NCCL; none if
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
    // NCCL is looked for only beside a libtorch that has CUDA.
    if gpus.libtorch.is_ok() {
        checks.push(match &gpus.nccl {
            Ok(path) => Check::ok(NCCL, path),
            Err(problem) => Check::not(
                NCCL,
                State::Missing,
                problem,
                "`pip install nvidia-nccl-cu13` beside that torch; ranks on GPUs can use Gloo",
            ),
        });
    }
    checks
}
