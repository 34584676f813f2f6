//! Python stack traces of ranks as text: the call that a rank was in, and the line of the user's code that made it.

use crate::observed::RankProcess;
use zprobe_model::trace::Frame;
use zprobe_report::words::counted;

/// The largest number of lines of the user's code that are shown of one stack.
const MOST_OWN: usize = 4;

/// The files of torch and other packages whose functions wait, or may wait, for other ranks, each with a name for the
/// call; an empty name stands for the name of the function. A path that ends with a slash is a directory, and comes
/// after the files inside it.
const MEETINGS: [(&str, &str); 8] = [
    ("torch/distributed/distributed_c10d.py", ""),
    ("torch/distributed/rendezvous.py", "the rendezvous"),
    ("torch/distributed/elastic/", "the rendezvous"),
    ("torch/autograd/graph.py", "backward"),
    ("torch/nn/parallel/distributed.py", "DistributedDataParallel"),
    ("torch/distributed/", ""),
    ("deepspeed/comm/", ""),
    ("zprobe_exec/mailbox.py", "zprobe's own exchange between the ranks"),
];

/// The call and the lines of code in which a rank is, as read from its stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackPlace {
    /// The name of the call in which the rank waits, or may wait, for other ranks; `None` if it waits for no other
    /// rank.
    pub meeting: Option<String>,
    /// The innermost frame of the user's own code; `None` for a stack without such a frame.
    pub own: Option<String>,
    /// The innermost frame of the whole stack.
    pub innermost: String,
}

impl StackPlace {
    /// Returns the place of a process's main thread; `None` if its stacks were not recorded.
    pub fn of(process: &RankProcess<'_>) -> Option<Self> {
        let frames = *process.stacks.get(&0)?;
        Some(Self {
            meeting: meeting(frames),
            own: frames.iter().find(|frame| frame.is_own).map(Frame::place),
            innermost: frames.first()?.place(),
        })
    }

    /// Describes the place of some ranks: `rank 1 is in train.py:57 (load)`.
    fn of_ranks(&self, ranks: &[usize]) -> String {
        let who = counted("rank", ranks);
        let (is, waits) = if ranks.len() == 1 { ("is", "waits") } else { ("are", "wait") };
        let does = match (&self.meeting, &self.own) {
            (Some(meeting), _) => format!("{waits} in {meeting}"),
            (None, _) => format!("{is} in {}", self.innermost),
        };
        match &self.own {
            Some(own) if self.meeting.is_some() || *own != self.innermost => {
                format!("{who} {does}, called from {own}")
            }
            _ => format!("{who} {does}"),
        }
    }
}

/// Returns the name of the call that waits for other ranks, if the innermost frame is inside one.
fn meeting(frames: &[Frame]) -> Option<String> {
    let known = |frame: &Frame| {
        let is_it = |file: &str| match file.ends_with('/') {
            true => frame.file.starts_with(file),
            false => frame.file == file,
        };
        MEETINGS.iter().find(|(file, _)| is_it(file)).map(|(_, name)| *name)
    };
    // Wrappers around a function have other names than the function.
    let is_function = |frame: &&Frame| !frame.function.contains("wrap");
    let outside = frames.iter().take_while(|frame| !frame.is_own);
    let mut outside = outside.filter(is_function).peekable();
    let innermost = outside.peek().filter(|frame| frame.function != "<module>")?;
    let name = known(innermost)?;
    if !name.is_empty() {
        return Some(name.to_owned());
    }
    // Where one collective calls another, the outer one is the call of the program.
    outside.take_while(|frame| known(frame) == Some("")).last().map(|frame| frame.function.clone())
}

/// Describes the places of ranks in one sentence; ranks at the same place share a clause.
pub fn told(places: &[(usize, StackPlace)]) -> String {
    let mut groups: Vec<(&StackPlace, Vec<usize>)> = Vec::new();
    for (rank, place) in places {
        match groups.iter_mut().find(|(known, _)| *known == place) {
            Some((_, ranks)) => ranks.push(*rank),
            None => groups.push((place, vec![*rank])),
        }
    }
    let texts = groups.iter().map(|(place, ranks)| place.of_ranks(ranks));
    texts.collect::<Vec<_>>().join("; ")
}

/// Returns the lines of the user's code in a stack, the innermost first: `train.py:57 (load), called from train.py:88
/// (main)`. `None` if the stack has no such line.
pub fn own_lines(process: &RankProcess<'_>) -> Option<String> {
    let frames = process.stacks.get(&0)?.iter().filter(|frame| frame.is_own);
    let places: Vec<String> = frames.map(Frame::place).take(MOST_OWN).collect();
    (!places.is_empty()).then(|| places.join(", called from "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, function: &str) -> Frame {
        let is_own = !file.starts_with("torch/");
        Frame { file: file.to_owned(), line: 1, function: function.to_owned(), is_own }
    }

    fn meeting_of(calls: &[(&str, &str)]) -> Option<String> {
        let frames: Vec<Frame> = calls.iter().map(|(file, it)| frame(file, it)).collect();
        meeting(&frames)
    }

    #[test]
    fn a_rank_waits_in_what_its_program_called() {
        let c10d = "torch/distributed/distributed_c10d.py";
        let wrapper = ("torch/distributed/c10d_logger.py", "wrapper");
        let own = ("train.py", "main");
        let gathered = [(c10d, "all_gather"), wrapper, (c10d, "all_gather_object"), wrapper, own];
        assert_eq!(meeting_of(&gathered).as_deref(), Some("all_gather_object"));
        let engine = ("torch/autograd/graph.py", "_engine_run_backward");
        let backward = [engine, ("torch/_tensor.py", "backward"), own];
        assert_eq!(meeting_of(&backward).as_deref(), Some("backward"));
        let hook = [(c10d, "all_reduce"), wrapper, engine, ("torch/_tensor.py", "backward"), own];
        assert_eq!(meeting_of(&hook).as_deref(), Some("all_reduce"));
        let tensors = ("torch/distributed/tensor/_redistribute.py", "redistribute");
        assert_eq!(meeting_of(&[tensors, own]).as_deref(), Some("redistribute"));
        assert_eq!(meeting_of(&[("torch/nn/functional.py", "linear"), own]), None);
        assert_eq!(meeting_of(&[own, engine]), None);
        // A module that is imported on the way to a call that waits.
        assert_eq!(meeting_of(&[("torch/_library/autograd.py", "<module>"), engine]), None);
        assert_eq!(meeting_of(&[("torch/distributed/utils.py", "<module>"), own]), None);
    }
}
