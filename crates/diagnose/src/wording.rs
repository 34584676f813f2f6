//! Texts that several rules have in common.

use zprobe_report::words::{abridged, counted};

/// The hint about the origin of a NaN in a run that fills memory with NaN.
pub const POISON: &str = "this run fills the memory that torch hands out with NaN (--poison-memory): perhaps the \
                          engine reads a buffer, or its padding, before it is written";

/// Describes `sources`, given as (rank, microbatch): as microbatches of every rank if possible, or else one by one.
pub fn sources_text(sources: &[(usize, usize)], world_size: usize) -> String {
    let mut microbatches: Vec<usize> = sources.iter().map(|&(_, m)| m).collect();
    microbatches.sort_unstable();
    microbatches.dedup();
    if sources.len() == microbatches.len() * world_size {
        return format!("{} of every rank", counted("microbatch", &microbatches));
    }
    let pairs: Vec<String> =
        sources.iter().map(|(rank, m)| format!("microbatch {m} of rank {rank}")).collect();
    abridged(&pairs)
}

/// The message about parameters that lost every gradient; no names stand for all parameters.
pub fn nothing_arrived(params: &[String]) -> String {
    let of = if params.is_empty() { String::new() } else { format!(" of {}", abridged(params)) };
    format!("no gradient{of} reached the optimizer")
}
