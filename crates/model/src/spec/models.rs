//! The parameters of the synthetic models, at any size.

use super::fsdp2::is_wide;
use super::plan::{Param, STAGES};
use super::{Model, Plan, RunSpec, Shape};

/// The width of the dense model, and of its hidden layer unless that must be larger.
const WIDTH: usize = 64;

/// The parameters of a run's model, without positions in the flat order, with at least the requested number of
/// elements.
pub(super) fn params(spec: &RunSpec) -> Vec<Param> {
    match spec.model {
        Model::Coded => in_parts(spec, grown(coded(spec), growth(spec))),
        Model::Mlp => mlp(hidden_width(spec)),
    }
}

/// Makes one copy of the parameters for each stage of a pipeline, or splits each parameter into its parts for
/// tensor parallelism, one part after the other.
fn in_parts(spec: &RunSpec, params: Vec<Param>) -> Vec<Param> {
    if let Some(pipeline) = spec.pipeline() {
        let of_stage = |(stage, ranks): (usize, Vec<usize>)| {
            params.clone().into_iter().map(move |param| Param {
                name: format!("{STAGES}{stage}.{}", param.name),
                ranks: ranks.clone(),
                ..param
            })
        };
        let stages = pipeline.stages(spec.world_size);
        return stages.into_iter().enumerate().flat_map(of_stage).collect();
    }
    let parts = spec.model_parallel();
    if parts == 1 {
        return params;
    }
    let of_param = |param: Param| {
        (0..parts).map(move |part| Param {
            name: format!("{}[tp={part}]", param.name),
            ranks: (part..spec.world_size).step_by(parts).collect(),
            ..param.clone()
        })
    };
    params.into_iter().flat_map(of_param).collect()
}

/// The default capacity of an IPG bucket, in elements: see [`Plan::default_bucket_size`].
pub(super) fn default_bucket_size(spec: &RunSpec) -> usize {
    match spec.model {
        Model::Coded => 3 * Plan::code(spec).length() * growth(spec),
        Model::Mlp => total(&mlp(hidden_width(spec))) / 2,
    }
}

fn total(params: &[Param]) -> usize {
    params.iter().map(Param::numel).sum()
}

/// The parameters of the coded model. They hold about two codes per rank, so that each partition is decoded by
/// itself. If the trace has no room for that many, they hold a few codes in total, and partitions are decoded
/// together. One parameter is larger than the default bucket, and some cross partition boundaries.
///
/// Every parameter is long enough to be decoded by itself. If each partition is decoded by itself, so is every part
/// of a parameter that a rank holds, provided that all parameters, in their order, are cut into equal partitions.
fn coded(spec: &RunSpec) -> Vec<Param> {
    let code = Plan::code(spec).length();
    let bias = Plan::code(spec).shortest() + 5;
    // Hooks fire from the last parameter to the first. The large parameter must not be the very first, or nothing
    // would be left for the flush at the boundary.
    let mut params = vec![
        Param::new("position.weight", vec![code + 2]),
        Param::new("embed.weight", vec![4, code + 3]),
    ];
    let apart = 2 * code * spec.world_size + code;
    let enough = if spec.recording.has_room_for(spec, apart) { apart } else { 0 };
    let blocks = if spec.has_shape(Shape::ThreeBlocks) { 3 } else { 1 };
    for layer in 0.. {
        for (part, shape) in [
            ("attn.weight", vec![3, code / 2 + 1]),
            ("norm.weight", vec![code]),
            ("mlp.weight", vec![code + 1, 2]),
            ("mlp.bias", vec![bias]),
        ] {
            params.push(Param::new(format!("layers.{layer}.{part}"), shape));
        }
        if layer + 1 >= blocks && total(&params) >= enough {
            break;
        }
    }
    params.push(Param::new("head.bias", vec![bias]));
    lay_out(&mut params, spec.world_size, Plan::code(spec).shortest());
    if let (true, Some(name)) = (spec.has_shape(Shape::Scalars), Shape::Scalars.param()) {
        // Two scalars keep the total odd; the second one is the first parameter in the backward.
        params.insert(2, Param::new(name, vec![1]));
        params.push(Param::new("shift.weight", vec![1]));
    }
    if let (true, Some(name)) = (spec.has_shape(Shape::Twins), Shape::Twins.param()) {
        // Two neighbours of the same shape, with an even number of elements in total.
        params.splice(1..1, [name, "key.weight"].map(|name| Param::new(name, vec![code])));
    }
    if let (true, Some(name)) = (spec.has_shape(Shape::Frozen), Shape::Frozen.param()) {
        params.insert(2, Param { trainable: false, ..Param::new(name, vec![code]) });
    }
    if let (true, Some(name)) = (spec.has_shape(Shape::Experts), Shape::Experts.param()) {
        // The expert comes before all other parameters: an engine keeps experts in separate buffers, and a piece
        // that is cut off is recognised by the elements after it.
        params.insert(0, Param::new(name, vec![code]));
    }
    if let Some(fsdp2) = spec.fsdp2().filter(|fsdp2| fsdp2.shard_dimension == 1) {
        // A rank's part of each row is a whole code, whose spare rows tell misplaced elements from weights.
        let shards = fsdp2.shards(spec.world_size);
        for param in params.iter_mut().filter(|param| is_wide(param)) {
            let columns = param.shape[1].div_ceil(shards).max(code);
            param.shape[1] = columns * shards;
        }
    }
    params
}

/// The maximum number of elements by which a parameter becomes longer at a time.
const LARGEST_UNIT: usize = 4;

/// Makes parameters longer, so that their total is odd, which leaves padding even on a single rank, and so that no
/// boundary between equal partitions is close to the end of a parameter. If partitions are not much longer than
/// `shortest`, the fewest elements that are decoded by themselves, no such place exists for their boundaries.
fn lay_out(params: &mut [Param], world_size: usize, shortest: usize) {
    let apart = shortest + 2;
    let mut partition = (total(params) + 1).div_ceil(world_size).next_multiple_of(2);
    if partition < 2 * (apart + LARGEST_UNIT) {
        if let Some(last) = params.last_mut() {
            last.shape[0] += 1;
        }
        return;
    }
    // The last parameter takes the rest, which grows with the partitions.
    loop {
        let mut grown = params.to_vec();
        if let Some((last, others)) = grown.split_last_mut() {
            let end = keep_apart(others, world_size, partition, apart);
            let rest = (world_size * partition - 1).saturating_sub(end);
            last.shape[0] = rest;
            if rest >= shortest {
                params.clone_from_slice(&grown);
                return;
            }
        }
        partition += 2;
    }
}

/// Makes parameters longer until none of them ends close to a boundary between partitions; returns their total
/// number of elements.
fn keep_apart(params: &mut [Param], world_size: usize, partition: usize, apart: usize) -> usize {
    let is_close = |end: usize| {
        let boundary = (end + partition / 2) / partition;
        (1..world_size).contains(&boundary) && end.abs_diff(boundary * partition) < apart
    };
    let mut end = 0;
    for param in params {
        while is_close(end + param.numel()) {
            if let Some(longest) = param.shape.iter_mut().max() {
                *longest += 1;
            }
        }
        end += param.numel();
    }
    end
}

/// True if a parameter grows with the model. Biases do not, so that they stay about as short as can be decoded.
fn grows(param: &Param) -> bool {
    param.name.ends_with("weight")
}

/// The factor by which the weights of the coded model grow, so that the model has the requested number of elements.
/// The factor is odd, which keeps the total odd.
fn growth(spec: &RunSpec) -> usize {
    let Some(asked) = spec.parameters else { return 1 };
    let params = coded(spec);
    let growing: usize = params.iter().filter(|param| grows(param)).map(Param::numel).sum();
    let fixed = total(&params) - growing;
    asked.saturating_sub(fixed).div_ceil(growing).max(1) | 1
}

/// The parameters, with `growth` times as many rows in each weight.
fn grown(mut params: Vec<Param>, growth: usize) -> Vec<Param> {
    for param in params.iter_mut().filter(|param| grows(param)) {
        param.shape[0] *= growth;
    }
    params
}

/// The width of the hidden layer of the dense model: [`WIDTH`], or more if the requested number of elements
/// requires it.
fn hidden_width(spec: &RunSpec) -> usize {
    let per_unit = 2 * WIDTH + 1;
    let asked = spec.parameters.unwrap_or(0);
    asked.saturating_sub(WIDTH).div_ceil(per_unit).max(WIDTH)
}

/// The parameters of the dense model: `Linear(64, hidden)`, GELU, `Linear(hidden, 64)`.
fn mlp(hidden: usize) -> Vec<Param> {
    vec![
        Param::new("0.weight", vec![hidden, WIDTH]),
        Param::new("0.bias", vec![hidden]),
        Param::new("2.weight", vec![WIDTH, hidden]),
        Param::new("2.bias", vec![WIDTH]),
    ]
}
