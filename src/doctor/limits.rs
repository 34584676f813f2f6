//! What an engine that is there cannot run on the CPU ranks of this machine.

use super::python::NOT_TRIED;
use super::{Attempt, Check, Python, State};
use crate::spec::{Dtype, Engine, RunSpec};

/// What is looked at.
const DEEPSPEED_FP16: &str = "deepspeed fp16";

/// What to do where the CPU has no fp16.
const OTHER_CPU: &str = "use bf16 or fp32, or a CPU with AVX512-FP16 or AMX-FP16";

/// What to do where DeepSpeed refuses fp16 though the CPU has it.
const OTHER_RELEASE: &str = "use bf16 or fp32, or a newer DeepSpeed: up to 0.15.4 none takes it";

/// Runs that some machines cannot make: a line for each of them that the interpreter was asked about.
pub fn limits(python: &Python) -> Vec<Check> {
    deepspeed_fp16(python).into_iter().collect()
}

/// Facts that say whether a run can be made, by their names in [`Python`]; none where nothing has to be
/// asked.
pub fn questions(spec: &RunSpec) -> &'static [&'static str] {
    if spec.engine() == Engine::DeepSpeed && spec.dtype == Dtype::Fp16 {
        &["onednn_fp16", "deepspeed", "deepspeed_fp16"]
    } else {
        &[]
    }
}

/// Why a run cannot be made here, and what to do; none where nothing is known against it.
pub fn refusal(python: &Python, spec: &RunSpec) -> Option<String> {
    let asks = !questions(spec).is_empty();
    let check = deepspeed_fp16(python).filter(|check| asks && check.state != State::Ok)?;
    let advice = check.advice.map(|advice| format!("; {advice}")).unwrap_or_default();
    Some(format!("{}{advice}", check.detail))
}

/// Whether DeepSpeed takes fp16 on CPU ranks; none where it could not be asked, and a run has to show it.
fn deepspeed_fp16(python: &Python) -> Option<Check> {
    let takes = *python.deepspeed_fp16.value()?;
    let release = python.deepspeed.value().map_or_else(String::new, |it| format!(" {it}"));
    if takes {
        return Some(Check::ok(
            DEEPSPEED_FP16,
            format!("DeepSpeed{release} takes it on CPU ranks"),
        ));
    }
    let refuses = format!("DeepSpeed{release} refuses fp16 on the CPU ranks of this machine");
    Some(match &python.onednn_fp16 {
        Attempt::Value(true) => Check::not(DEEPSPEED_FP16, State::Missing, refuses, OTHER_RELEASE),
        Attempt::Value(false) => {
            let detail = format!("{refuses}: torch's oneDNN has no fp16 on this CPU");
            Check::not(DEEPSPEED_FP16, State::Missing, detail, OTHER_CPU)
        }
        Attempt::Problem(problem) => {
            let why = if problem == NOT_TRIED { String::new() } else { format!(" ({problem})") };
            Check::not(DEEPSPEED_FP16, State::Missing, refuses + &why, OTHER_CPU)
        }
    })
}
