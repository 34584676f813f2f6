//! Failures of the software around an engine, and the meaning of its exceptions. Bugs of engines are listed in
//! [`zprobe_zoo`].

/// A known failure that is no bug: the engine, or software on which it depends, does not support this configuration on
/// this machine. Such a failure says nothing about gradients.
#[derive(Clone, Copy, Debug)]
pub struct FailureSignature {
    /// The substrings that a rank's error message must all contain.
    pub contains: &'static [&'static str],
    /// The meaning of the failure, as shown to the user.
    pub meaning: &'static str,
    /// True for a limit of the machine or of a release, which every installation of the same packages has. False if
    /// something is not installed, so that the requested configuration could not run.
    pub is_limit: bool,
}

impl FailureSignature {
    const fn limit(contains: &'static [&'static str], meaning: &'static str) -> Self {
        Self { contains, meaning, is_limit: true }
    }

    const fn incomplete(contains: &'static [&'static str], meaning: &'static str) -> Self {
        Self { contains, meaning, is_limit: false }
    }
}

/// All known failures, in order; the first one that matches is used.
pub const SIGNATURES: &[FailureSignature] = &[
    FailureSignature::limit(
        &["SplitBackward0", "modified inplace"],
        "DeepSpeed's ZeRO-1 and 2 cannot step on CPU ranks, because their code splits a tensor that it then \
         changes",
    ),
    FailureSignature::incomplete(
        &["ModuleNotFoundError"],
        "a package that the engine needs is not installed",
    ),
    FailureSignature::incomplete(
        &["ImportError"],
        "the engine cannot be imported: its release does not match those of its dependencies",
    ),
    FailureSignature::limit(
        &["not implemented for 'Half'"],
        "this torch does not implement an operation in fp16 on this device",
    ),
    FailureSignature::limit(
        &["not implemented for 'BFloat16'"],
        "this torch does not implement an operation in bf16 on this device",
    ),
    FailureSignature::limit(
        &["Invalid scalar type"],
        "this torch's Gloo does not support the element type (bf16 needs torch 2.1)",
    ),
    FailureSignature::limit(&["does not support", "Gloo"], "Gloo does not support the collective"),
    // The full message is `Type fp16 is not supported on your device.`; old releases do not name the device.
    FailureSignature::limit(
        &["ype fp16 is not supported"],
        "DeepSpeed refuses fp16 on this accelerator",
    ),
    FailureSignature::limit(
        &["ype bf16 is not supported"],
        "DeepSpeed refuses bf16 on this accelerator",
    ),
];

/// Returns the signature of a failure that is not the engine's own.
pub fn recognise(failure: &str) -> Option<&'static FailureSignature> {
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
