//! The check of the requirements for running the native engine on GPUs.

use super::{CheckState, DoctorCheck, MachineFacts};
use zprobe_model::spec::{Missing, NoCuda};

/// The check of the usable GPUs, or one check for each missing requirement, and a check of NCCL. The list is empty if
/// the native engine was not asked.
pub(super) fn cuda(machine: &MachineFacts) -> Vec<DoctorCheck> {
    const SUBJECT: &str = "native on cuda";
    const NCCL: &str = "nccl";
    let Some(gpus) = &machine.cuda else { return Vec::new() };
    let mut checks: Vec<DoctorCheck> = match gpus.usable() {
        Ok(()) => {
            let libtorch = gpus.libtorch.as_deref().unwrap_or_default();
            vec![DoctorCheck::ok(SUBJECT, format!("{} GPUs, {libtorch}", gpus.count()))]
        }
        Err(NoCuda(missing)) => missing
            .into_iter()
            .map(|Missing { what, advice }| {
                DoctorCheck::not(SUBJECT, CheckState::Missing, what, advice)
            })
            .collect(),
    };
    // NCCL is looked for only next to a libtorch that has CUDA.
    if gpus.libtorch.is_ok() {
        checks.push(match &gpus.nccl {
            Ok(path) => DoctorCheck::ok(NCCL, path),
            Err(problem) => DoctorCheck::not(
                NCCL,
                CheckState::Missing,
                problem,
                "`pip install nvidia-nccl-cu13` next to that torch, or let ranks on GPUs use Gloo",
            ),
        });
    }
    checks
}
