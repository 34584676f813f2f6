//! Chooses the recorded part of a buffer: the whole buffer of a small model, samples of a large model.
//!
//! The Python ranks make the same choice (`crates/launch/src/adapters/zprobe_rank/sampler.py`). Samples are windows of
//! one code length, because the diagnosis can decode each window by itself: the first and the last window of every
//! piece of a parameter, where engines have bugs, and some at pseudo-random places. The same elements are recorded at
//! every point and by every rank that holds the piece.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context as _, Result};
use tch::{Kind, Tensor};
use zprobe_model::spec::plan::Segment;
use zprobe_model::spec::{Plan, RunSpec};
use zprobe_model::trace::LayoutName;

use crate::engine::partitioning::Partitioning;

/// The number of windows in a piece, besides the first and the last.
const INNER_WINDOWS: usize = 14;

/// The number of elements in a chunk. Each chunk has a norm, and the squares of these norms are added up in fp64.
const CHUNK: i64 = 1 << 18;

/// The samples of each layout of one rank.
pub struct Sampler {
    layouts: BTreeMap<LayoutName, LayoutSamples>,
}

/// The recorded elements of a layout's buffers.
pub struct LayoutSamples {
    /// The parts of parameters that are recorded, in the order of the buffer.
    pub segments: Vec<Segment>,
    /// The ranges of the recorded parts in the buffer.
    places: Vec<Range<usize>>,
}

impl Sampler {
    /// Chooses the samples of the full layout and of the partition of rank `owner`; `None` if buffers are recorded
    /// whole.
    pub fn of(
        spec: &RunSpec,
        plan: &Plan,
        partitioning: &Partitioning,
        owner: usize,
    ) -> Option<Self> {
        if !spec.recording.sampled {
            return None;
        }
        let choice = WindowChoice { size: Plan::code(spec).length(), seed: spec.seed };
        let ranks = (0..spec.world_size).map(|rank| partitioning.layout(rank));
        let ends = ends(&ranks.collect::<Vec<_>>());
        let full = cut(plan.segments(), &ends);
        let layouts = BTreeMap::from([
            (LayoutName::Full, choice.choose(&full)),
            (LayoutName::Partition, choice.choose(&partitioning.layout(owner))),
        ]);
        Some(Self { layouts })
    }

    /// The samples of each layout.
    pub fn layouts(&self) -> impl Iterator<Item = (LayoutName, &LayoutSamples)> {
        self.layouts.iter().map(|(&layout, samples)| (layout, samples))
    }

    /// The recorded elements of a buffer that consists of flat `pieces`, and the norm of the whole buffer.
    pub fn pick(&self, layout: LayoutName, pieces: &[Tensor]) -> Result<(Tensor, f64)> {
        let samples = self.layouts.get(&layout).context("a layout without samples")?;
        // An empty tensor comes first, because a partition of only padding has no recorded elements.
        let nothing = pieces.first().context("a buffer without pieces")?.f_narrow(0, 0, 0)?;
        let (mut picked, mut squares) = (vec![nothing], 0.0);
        let (mut places, mut start) = (samples.places.iter().peekable(), 0);
        for piece in pieces {
            let end = start + piece.numel();
            // A window may cross the border between two pieces, but not between two parameters.
            while let Some(place) = places.peek() {
                let (first, last) = (place.start.max(start), place.end.min(end));
                if first < last {
                    let (first, len) =
                        (i64::try_from(first - start)?, i64::try_from(last - first)?);
                    picked.push(piece.f_narrow(0, first, len)?);
                }
                if place.end > end {
                    break;
                }
                places.next();
            }
            squares += square_sum(piece)?;
            start = end;
        }
        Ok((Tensor::f_cat(&picked, 0)?, squares.sqrt()))
    }
}

/// The numbers that determine the choice of windows: the code length and the seed of the run.
struct WindowChoice {
    size: usize,
    seed: u64,
}

impl WindowChoice {
    fn choose(&self, segments: &[Segment]) -> LayoutSamples {
        let mut samples = LayoutSamples { segments: Vec::new(), places: Vec::new() };
        let mut start = 0;
        for &segment in segments {
            if let Some(param) = segment.param {
                for window in self.of(param, &segment) {
                    let offset = segment.offset + window.start;
                    samples.segments.push(Segment { offset, len: window.len(), ..segment });
                    samples.places.push(start + window.start..start + window.end);
                }
            }
            start += segment.len;
        }
        samples
    }

    /// The windows of one piece, in order and merged where they overlap; the whole piece if the piece is short.
    fn of(&self, param: usize, piece: &Segment) -> Vec<Range<usize>> {
        let (size, len) = (self.size, piece.len);
        if len <= (INNER_WINDOWS + 2) * size {
            return std::iter::once(0..len).collect();
        }
        // The seed depends on the piece, so that every rank with this piece makes the same choice.
        let mut state = [param, piece.offset, len]
            .into_iter()
            .fold(self.seed, |state, number| scattered(state ^ number as u64));
        let mut starts = vec![0, len - size];
        for _ in 0..INNER_WINDOWS {
            state = scattered(state);
            starts.push(usize::try_from(state % (len - size) as u64).unwrap_or(0));
        }
        starts.sort_unstable();
        let mut windows: Vec<Range<usize>> = Vec::new();
        for start in starts {
            match windows.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(start + size),
                _ => windows.push(start..start + size),
            }
        }
        windows
    }
}

/// The offsets in each parameter at which a segment of any rank begins or ends.
fn ends(partitions: &[Vec<Segment>]) -> BTreeMap<usize, Vec<usize>> {
    let mut ends: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for segment in partitions.iter().flatten() {
        if let Some(param) = segment.param {
            ends.entry(param).or_default().extend([segment.offset, segment.offset + segment.len]);
        }
    }
    for places in ends.values_mut() {
        places.sort_unstable();
        places.dedup();
    }
    ends
}

/// The segments, cut at these offsets in their parameters.
fn cut(segments: Vec<Segment>, ends: &BTreeMap<usize, Vec<usize>>) -> Vec<Segment> {
    let mut pieces = Vec::new();
    for segment in segments {
        let mut first = segment.offset;
        let last = segment.offset + segment.len;
        let inner = segment.param.and_then(|param| ends.get(&param)).into_iter().flatten();
        for &end in inner.filter(|&&end| end > segment.offset && end < last).chain([&last]) {
            pieces.push(Segment { offset: first, len: end - first, ..segment });
            first = end;
        }
    }
    pieces
}

/// The pseudo-random number that the SplitMix64 generator makes from `number`.
fn scattered(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The sum of squares of a long tensor, computed in chunks to avoid a copy of the whole tensor.
fn square_sum(tensor: &Tensor) -> Result<f64> {
    let mut squares = 0.0;
    for chunk in tensor.f_split(CHUNK, 0)? {
        let norm = chunk.f_to_kind(Kind::Float)?.f_norm()?.double_value(&[]);
        // The sum may overflow in fp32, but not in fp64.
        let norm = if norm.is_finite() {
            norm
        } else {
            chunk.to_kind(Kind::Double).norm().double_value(&[])
        };
        squares += norm * norm;
    }
    Ok(squares)
}

#[cfg(test)]
mod tests {
    use zprobe_model::spec::SpecRequest;

    use super::*;

    fn sampler(stage: u8, rank: usize) -> (Sampler, Partitioning, Plan) {
        let request = SpecRequest {
            stage: Some(stage),
            parameters: Some(3 << 20),
            world_size: Some(3),
            ..SpecRequest::default()
        };
        let spec = request.resolve().unwrap();
        let plan = Plan::new(&spec);
        let partitioning = Partitioning::new(&spec, &plan);
        (Sampler::of(&spec, &plan, &partitioning, rank).unwrap(), partitioning, plan)
    }

    #[test]
    fn every_piece_is_sampled_at_both_ends_and_alike_by_the_whole_and_by_its_owner() {
        for stage in [1, 3] {
            let (whole, _, _) = sampler(stage, 0);
            let whole = &whole.layouts[&LayoutName::Full].segments;
            for rank in 0..3 {
                let (sampler, partitioning, _) = sampler(stage, rank);
                let own = &sampler.layouts[&LayoutName::Partition].segments;
                assert!(own.iter().all(|segment| whole.contains(segment)), "stage {stage}");
                for piece in partitioning.layout(rank).iter().filter(|it| it.param.is_some()) {
                    let first =
                        own.iter().any(|it| (it.param, it.offset) == (piece.param, piece.offset));
                    let end = piece.offset + piece.len;
                    let last =
                        own.iter().any(|it| it.param == piece.param && it.offset + it.len == end);
                    assert!(first && last, "stage {stage}, rank {rank}: {piece:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_picked_is_what_the_segments_name_however_the_buffer_is_cut_into_pieces() {
        let (sampler, _, plan) = sampler(1, 0);
        let whole = Tensor::arange(plan.numel() as i64, (Kind::Double, tch::Device::Cpu));
        let expected: Vec<f64> = sampler.layouts[&LayoutName::Full]
            .segments
            .iter()
            .flat_map(|it| {
                let first = plan.params()[it.param.unwrap()].offset + it.offset;
                (first..first + it.len).map(|element| element as f64)
            })
            .collect();
        for pieces in [1, 2, 1000] {
            let cut: Vec<Tensor> = whole.split(whole.size1().unwrap() / pieces, 0);
            let (picked, norm) = sampler.pick(LayoutName::Full, &cut).unwrap();
            assert_eq!(Vec::<f64>::try_from(picked).unwrap(), expected, "{pieces} pieces");
            let right = whole.norm().double_value(&[]);
            assert!((norm / right - 1.0).abs() < 1e-4, "{norm} for {right}");
        }
    }
}
