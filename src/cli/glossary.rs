//! The words of zprobe's screens, for `zprobe explain`.

/// Words with one meaning, and their explanation.
pub struct Entry {
    /// The words; the first is the usual one.
    pub words: &'static [&'static str],
    /// The explanation.
    pub text: &'static str,
}

/// All words, those of training before those of the report.
pub const GLOSSARY: &[Entry] = &[
    Entry {
        words: &["microbatch", "ga"],
        text: "A microbatch is the batch of one forward and one backward on one rank. An optimizer step has ga of them \
               (gradient accumulation steps): m0 is the first one of a step.",
    },
    Entry {
        words: &["boundary"],
        text: "The gradient accumulation boundary is the last microbatch of an optimizer step, after which the \
               gradients of all ranks are in the sum and the optimizer steps.",
    },
    Entry {
        words: &["weights", "weight"],
        text: "The weight of a gradient is its factor in a buffer, as a multiple of its share in the average over all \
               ranks and microbatches of a step. A correct gradient has weight 1; 0 means lost, and 2 means counted \
               twice. In a matrix of weights each row is a source rank, each column is a microbatch, and wrong \
               weights are in brackets.",
    },
    Entry {
        words: &["bucket"],
        text: "A bucket is a buffer in which an engine collects gradients until it reduces all of them in one collective.",
    },
    Entry {
        words: &["partition"],
        text: "A partition is one rank's share of the parameters, gradients or optimizer states, as in ZeRO and FSDP.",
    },
    Entry {
        words: &["clipping"],
        text: "Clipping multiplies all gradients by one factor, so that their norm is at most a limit. The norm must be \
               that of all gradients on all ranks. ZP607 (clipping-differs) is the rule about clipping; `zprobe run \
               --gradient-clipping 1` tries it.",
    },
    Entry {
        words: &["coded"],
        text: "In the coded model every gradient is a code, so that sums of gradients show exactly which gradients are in \
               them, with which weight and in which place.",
    },
    Entry {
        words: &["latest"],
        text: "`latest` is the newest recorded run, and `latest~1` is the run before it: `zprobe compare latest~1 \
               latest`. `zprobe list runs` lists the runs.",
    },
    Entry {
        words: &["setup"],
        text: "The numbers of ranks, microbatches (ga) and steps of the run, and its model.",
    },
    Entry {
        words: &["untested", "not-exercised"],
        text: "The parts of training that the run did not exercise. A clean verdict says nothing about them; `zprobe show \
               -v` gives the reason for each.",
    },
    Entry {
        words: &["judged"],
        text: "The parts of your script's training that were judged, from the loss to the parameters.",
    },
    Entry {
        words: &["loss"],
        text: "Which factors your script puts on the loss, and which division of the engine or the script turns the sum \
               into a mean.",
    },
    Entry {
        words: &["where"],
        text: "The function of the engine, or the line of the script, that made the first wrong buffer.",
    },
    Entry {
        words: &["effect"],
        text: "Other findings that follow from the main finding, or what the error does to training.",
    },
    Entry { words: &["also"], text: "Another root cause in the same run." },
    Entry {
        words: &["advice", "fix"],
        text: "What to do about the main finding: `fix` is a release or a workaround for a known bug, and `advice` is the \
               first step for any other finding.",
    },
    Entry {
        words: &["known"],
        text: "A bug of a released engine or trainer that zprobe recognises; `zprobe list zoo` lists these bugs.",
    },
    Entry { words: &["again"], text: "The command that repeats the run with the same settings." },
    Entry {
        words: &["journey"],
        text: "The buffers through which a gradient goes, from backward to the updated parameters; `zprobe show -v` lists \
               them up to the first wrong one.",
    },
    Entry {
        words: &["norms", "norm"],
        text: "The L2 norms of the gradients of each rank at each recorded moment of a step (`zprobe show -v`).",
    },
    Entry {
        words: &["hooks", "hook"],
        text: "Gradient hooks are functions that autograd calls once the gradient of a parameter is there; engines reduce \
               gradients in them. `zprobe show -v` compares the fired hooks with the autograd graph.",
    },
    Entry {
        words: &["power"],
        text: "The smallest deviation that the run would have found; a clean verdict says nothing about smaller ones.",
    },
    Entry {
        words: &["probe"],
        text: "A probe is a run with a known right result, in a TOML file; `zprobe check` runs probes, and `zprobe list \
               probes` lists those of the standard suite.",
    },
    Entry {
        words: &["zoo"],
        text: "The zoo is the collection of known bugs of released engines and trainers: `zprobe list zoo`, `zprobe zoo`.",
    },
];
