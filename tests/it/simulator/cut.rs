//! The ways in which optimizers share a model.

use zprobe_model::spec::Plan;
use zprobe_model::spec::plan::Segment;

/// The way in which the optimizers share the model.
#[derive(Clone, Debug)]
pub enum Cut {
    /// Every rank holds a copy of all parameters: DDP, and stage 0.
    Replicated,
    /// One flat order is cut into equal parts, with padding at the end: stages 1 and 2.
    Flat,
    /// Each parameter is cut into equal parts, with padding: stage 3; FSDP2 without the padding.
    EachParameter,
    /// Rank 0 holds only the parameter with this index, and rank 1 holds all others.
    Alone(usize),
    /// One flat order is cut at these fractions of its length.
    At(Vec<f64>),
}

impl Cut {
    /// The parts of parameters that a rank's optimizer holds, in the order of the optimizer's buffer.
    pub fn partition(&self, plan: &Plan, world: usize, rank: usize) -> Vec<Segment> {
        let trainable: Vec<usize> =
            (0..plan.params().len()).filter(|&p| plan.params()[p].trainable).collect();
        let numel = |param: usize| plan.params()[param].numel();
        let total: usize = trainable.iter().map(|&param| numel(param)).sum();
        let part = |from: usize, to: usize| {
            let mut segments = Vec::new();
            let mut start = 0;
            for &param in &trainable {
                let (first, end) = (from.max(start), to.min(start + numel(param)));
                if first < end {
                    let (offset, len) = (first - start, end - first);
                    segments.push(Segment::new(Some(param), offset, len));
                }
                start += numel(param);
            }
            if to > total.max(from) {
                let len = to - total.max(from);
                segments.push(Segment::new(None, 0, len));
            }
            segments
        };
        match self {
            Cut::Replicated => part(0, total),
            Cut::Flat => {
                let size = total.div_ceil(world);
                part(rank * size, (rank + 1) * size)
            }
            Cut::EachParameter => trainable
                .iter()
                .flat_map(|&param| {
                    let size = numel(param).div_ceil(world);
                    let (from, to) = (rank * size, numel(param).min((rank + 1) * size));
                    let len = to.saturating_sub(from);
                    let held = Segment::new(Some(param), from, len);
                    let padding = Segment::new(None, 0, size - len);
                    [held, padding].into_iter().filter(|segment| segment.len > 0)
                })
                .collect(),
            Cut::Alone(alone) => trainable
                .iter()
                .filter(|&param| (param == alone) == (rank == 0))
                .map(|&param| Segment::new(Some(param), 0, numel(param)))
                .collect(),
            Cut::At(fractions) => {
                let mut cuts: Vec<usize> =
                    fractions.iter().map(|fraction| (fraction * total as f64) as usize).collect();
                cuts.sort_unstable();
                let at = |index: usize| match index {
                    0 => 0,
                    index if index == world => total,
                    index => cuts.get(index - 1).copied().unwrap_or(total),
                };
                part(at(rank), at(rank + 1))
            }
        }
    }
}
