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
}

/// Every known failure; the first that fits is the one.
pub const SIGNATURES: &[Signature] = &[
    Signature {
        contains: &["SplitBackward0", "modified inplace"],
        meaning: "DeepSpeed's ZeRO-1 and 2 cannot step on CPU ranks, as its code splits a tensor \
                  that it then changes",
    },
    Signature {
        contains: &["ModuleNotFoundError"],
        meaning: "a package that the engine needs is not installed",
    },
    Signature {
        contains: &["ImportError"],
        meaning: "the engine cannot be imported: its release and those of what it needs do not fit",
    },
    Signature {
        contains: &["not implemented for 'Half'"],
        meaning: "this torch has no such operation in fp16 on this device",
    },
    Signature {
        contains: &["not implemented for 'BFloat16'"],
        meaning: "this torch has no such operation in bf16 on this device",
    },
    Signature {
        contains: &["Invalid scalar type"],
        meaning: "this torch's Gloo has no such element type (bf16 needs torch 2.1)",
    },
    Signature { contains: &["does not support", "Gloo"], meaning: "Gloo has no such collective" },
    Signature {
        contains: &["type fp16 is not supported"],
        meaning: "DeepSpeed refuses fp16 on this accelerator",
    },
    Signature {
        contains: &["type bf16 is not supported"],
        meaning: "DeepSpeed refuses bf16 on this accelerator",
    },
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
}
