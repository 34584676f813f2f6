//! Parameters of the synthetic models, at any size.

use super::plan::Param;
use super::{Model, Plan, RunSpec, Shape};

/// Width of the dense model, and of its hidden layer unless it has to be larger.
const WIDTH: usize = 64;

/// Parameters of the model of a run, not laid out yet, with at least as many elements as were asked
/// for.
pub(super) fn params(spec: &RunSpec) -> Vec<Param> {
    match spec.model {
        Model::Coded => grown(coded(spec), growth(spec)),
        Model::Mlp => mlp(hidden_width(spec)),
    }
}

/// Default capacity of an IPG bucket, in elements: see [`Plan::default_bucket_size`].
pub(super) fn default_bucket_size(spec: &RunSpec) -> usize {
    match spec.model {
        Model::Coded => 3 * Plan::code(spec).length() * growth(spec),
        Model::Mlp => total(&mlp(hidden_width(spec))) / 2,
    }
}

fn total(params: &[Param]) -> usize {
    params.iter().map(Param::numel).sum()
}

/// Parameters of the coded model. They hold about two codes per rank, so that each partition is
/// decoded by itself; where the trace has no room for as many, they hold a few codes in all, and
/// partitions are decoded together. One parameter is larger than the default bucket, some cross
/// partition boundaries, and some are too short to decode alone.
fn coded(spec: &RunSpec) -> Vec<Param> {
    let (code, world_size) = (Plan::code(spec).length(), spec.world_size);
    // Hooks fire from the last parameter to the first: the large one must not be the very first, or
    // nothing would be left for the flush at the boundary.
    let mut params = Vec::new();
    if let (true, Some(name)) = (spec.has_shape(Shape::Experts), Shape::Experts.param()) {
        // The expert comes before all others: an engine keeps experts in separate buffers, and
        // pieces that are cut off are recognised by what follows them.
        params.push(Param::new(name, vec![code]));
    }
    params.push(Param::new("position.weight", vec![code + 2]));
    params.push(Param::new("embed.weight", vec![4, code + 3]));
    if let (true, Some(name)) = (spec.has_shape(Shape::Frozen), Shape::Frozen.param()) {
        params.push(Param { trainable: false, ..Param::new(name, vec![code]) });
    }
    let mut numel = code + 2 + 4 * (code + 3);
    let apart = 2 * code * world_size + code;
    let enough = if spec.recording.has_room_for(spec, apart) { apart } else { 0 };
    let mut layer = 0;
    while layer == 0 || numel < enough {
        for (part, shape) in [
            ("attn.weight", vec![3, code / 2 + 1]),
            ("norm.weight", vec![code]),
            ("mlp.weight", vec![code + 1, 2]),
            ("mlp.bias", vec![5]),
        ] {
            numel += shape.iter().product::<usize>();
            params.push(Param::new(format!("layers.{layer}.{part}"), shape));
        }
        layer += 1;
    }
    // An odd total, so that even a single rank has padding.
    let head = if numel.is_multiple_of(2) { 7 } else { 6 };
    params.push(Param::new("head.bias", vec![head]));
    params
}

/// True if a parameter grows with the model. Biases do not: they stay too short to decode alone.
fn grows(param: &Param) -> bool {
    param.name.ends_with("weight")
}

/// Factor by which the weights of the coded model are larger, so that it has the elements that were
/// asked for: an odd number, which keeps the total odd.
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

/// Width of the hidden layer of the dense model: [`WIDTH`], or more where the elements asked for
/// require it.
fn hidden_width(spec: &RunSpec) -> usize {
    let per_unit = 2 * WIDTH + 1;
    let asked = spec.parameters.unwrap_or(0);
    asked.saturating_sub(WIDTH).div_ceil(per_unit).max(WIDTH)
}

/// Parameters of the dense model: `Linear(64, hidden)`, GELU, `Linear(hidden, 64)`.
fn mlp(hidden: usize) -> Vec<Param> {
    vec![
        Param::new("0.weight", vec![hidden, WIDTH]),
        Param::new("0.bias", vec![hidden]),
        Param::new("2.weight", vec![WIDTH, hidden]),
        Param::new("2.bias", vec![WIDTH]),
    ]
}
