//! Failures of what stands around the engine: what its exceptions mean. Bugs of engines are known to
//! [`crate::zoo`].

/// A failure that is nobody's fault: this engine, or what it stands on, has no such thing here. It says
/// nothing about gradients.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// All of these stand in the rank's account of the failure.
    pub contains: &'static [&'static str],
    /// What it means.
    pub meaning: &'static str,
    /// Whether it is a limit of this machine or of a release, which no installation of the same
    /// packages is without. Where something is not installed, what was asked for is not there.
    pub is_limit: bool,
}

impl Signature {
    const fn limit(contains: &'static [&'static str], meaning: &'static str) -> Self {
        Self { contains, meaning, is_limit: true }
    }

    const fn incomplete(contains: &'static [&'static str], meaning: &'static str) -> Self {
        Self { contains, meaning, is_limit: false }
    }
}

/// Every known failure; the first that fits is the one.
pub const SIGNATURES: &[Signature] = &[
    Signature::limit(
        &["SplitBackward0", "modified inplace"],
        "DeepSpeed's ZeRO-1 and 2 cannot step on CPU ranks, as its code splits a tensor that it then \
         changes",
    ),
    Signature::incomplete(
        &["ModuleNotFoundError"],
        "a package that the engine needs is not installed",
    ),
    Signature::incomplete(
        &["ImportError"],
        "the engine cannot be imported: its release and those of what it needs do not fit",
    ),
    Signature::limit(
        &["not implemented for 'Half'"],
        "this torch has no such operation in fp16 on this device",
    ),
    Signature::limit(
        &["not implemented for 'BFloat16'"],
        "this torch has no such operation in bf16 on this device",
    ),
    Signature::limit(
        &["Invalid scalar type"],
        "this torch's Gloo has no such element type (bf16 needs torch 2.1)",
    ),
    Signature::limit(&["does not support", "Gloo"], "Gloo has no such collective"),
    // `Type fp16 is not supported on your device.`; in old releases without the device.
    Signature::limit(&["ype fp16 is not supported"], "DeepSpeed refuses fp16 on this accelerator"),
    Signature::limit(&["ype bf16 is not supported"], "DeepSpeed refuses bf16 on this accelerator"),
];

/// What a failure means that is not the engine's.
pub fn recognise(failure: &str) -> Option<&'static Signature> {
    SIGNATURES.iter().find(|signature| signature.contains.iter().all(|part| failure.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_failure_is_recognised_by_all_of_its_parts() {
        let split = "RuntimeError: Output 0 of SplitBackward0 is a view and is being modified \
                     inplace. (deepspeed/runtime/zero/stage_1_and_2.py:2000, in step)";
        assert!(recognise(split).is_some());
        assert!(recognise("Output 0 of SplitBackward0 is a view.").is_none());
    }

    #[test]
    fn what_a_machine_cannot_run_is_told_from_what_is_not_installed() {
        let is_limit = |failure| recognise(failure).map(|signature| signature.is_limit);
        for refusal in [
            "ValueError: Type fp16 is not supported on your device. (deepspeed/runtime/engine.py:2004)",
            "ValueError: Type fp16 is not supported.",
            "RuntimeError: \"addmm\" not implemented for 'Half'",
        ] {
            assert_eq!(is_limit(refusal), Some(true), "{refusal}");
        }
        assert_eq!(is_limit("ModuleNotFoundError: No module named 'hjson'"), Some(false));
        assert_eq!(is_limit("IndexError: list index out of range"), None);
    }
}
