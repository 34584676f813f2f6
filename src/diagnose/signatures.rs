//! Known ways in which engines fail: what their exceptions mean, and in which releases.

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The engine's: it was asked for something that it should do.
    Engine,
    /// Nobody's: this engine, or what it stands on, has no such thing here. It says nothing about
    /// gradients.
    Environment,
}

/// A failure that is known.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// All of these stand in the rank's account of the failure.
    pub contains: &'static [&'static str],
    /// Whose fault it is.
    pub fault: Fault,
    /// What it means.
    pub meaning: &'static str,
    /// Where it was seen; empty where it is not about releases.
    pub releases: &'static str,
}

/// Every known failure; the first that fits is the one.
pub const SIGNATURES: &[Signature] = &[
    Signature {
        contains: &["SplitBackward0", "modified inplace"],
        fault: Fault::Environment,
        meaning: "DeepSpeed's ZeRO-1 and 2 cannot step on CPU ranks, as its code splits a tensor \
                  that it then changes (#7948)",
        releases: "DeepSpeed 0.18.7 to 0.18.9, right in 0.19.0",
    },
    Signature {
        contains: &["ModuleNotFoundError"],
        fault: Fault::Environment,
        meaning: "a package that the engine needs is not installed",
        releases: "",
    },
    Signature {
        contains: &["ImportError"],
        fault: Fault::Environment,
        meaning: "the engine cannot be imported: its release and those of what it needs do not fit",
        releases: "",
    },
    Signature {
        contains: &["not implemented for 'Half'"],
        fault: Fault::Environment,
        meaning: "this torch has no such operation in fp16 on this device",
        releases: "",
    },
    Signature {
        contains: &["not implemented for 'BFloat16'"],
        fault: Fault::Environment,
        meaning: "this torch has no such operation in bf16 on this device",
        releases: "",
    },
    Signature {
        contains: &["Invalid scalar type"],
        fault: Fault::Environment,
        meaning: "Gloo has no such element type",
        releases: "torch 2.0: bf16; all: int16, fp8",
    },
    Signature {
        contains: &["does not support", "Gloo"],
        fault: Fault::Environment,
        meaning: "Gloo has no such collective",
        releases: "",
    },
    Signature {
        contains: &["type fp16 is not supported"],
        fault: Fault::Environment,
        meaning: "DeepSpeed refuses fp16 on this accelerator",
        releases: "",
    },
    Signature {
        contains: &["type bf16 is not supported"],
        fault: Fault::Environment,
        meaning: "DeepSpeed refuses bf16 on this accelerator",
        releases: "",
    },
    Signature {
        contains: &["IndexError: list index out of range", "stage_1_and_2.py"],
        fault: Fault::Engine,
        meaning: "DeepSpeed reduces an IPG bucket into which no hook has put anything (#7595)",
        releases: "DeepSpeed 0.17.2 to 0.19.8",
    },
    Signature {
        contains: &["KeyError: torch."],
        fault: Fault::Engine,
        meaning: "DeepSpeed has no bucket for a communication dtype that is not the parameters' \
                  (#7636)",
        releases: "DeepSpeed before 0.18.1",
    },
    Signature {
        contains: &["narrow", "stage_1_and_2.py"],
        fault: Fault::Engine,
        meaning: "DeepSpeed takes a part of a bucket that a parameter is larger than (#7660)",
        releases: "DeepSpeed before 0.18.2",
    },
];

/// What is known of a failure.
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
        assert_eq!(recognise(split).map(|known| known.fault), Some(Fault::Environment));
        let empty = "IndexError: list index out of range (deepspeed/runtime/zero/\
                     stage_1_and_2.py:1100, in reduce_ipg_grads)";
        assert_eq!(recognise(empty).map(|known| known.fault), Some(Fault::Engine));
        assert!(recognise("IndexError: list index out of range (somewhere.py:1, in f)").is_none());
    }
}
