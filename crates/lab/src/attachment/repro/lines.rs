//! The lines of a script that depend on the run: its use of the model, and the expected weights.

use zprobe_engines::EngineScript;
use zprobe_model::spec::workload::{self, Output};
use zprobe_model::spec::{Plan, RunSpec, Shape, Workload};

/// The script's variables that identify a gradient, as function arguments.
const WHICH: &str = "step, rank, m";

/// The name of a plan's parameter in the script, as an attribute of the model: a Python identifier.
pub(super) fn name(param: &str) -> String {
    let param = param.trim_end_matches(".weight");
    let (layer, param) = match param.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some(("0", rest)) => (String::new(), rest),
        Some((layer, rest)) => (format!("_{layer}"), rest),
        None => (String::new(), param),
    };
    param.replace('.', "_") + &layer
}

/// The script's name for the parameter that a shape is about.
fn about(shape: Shape) -> String {
    name(shape.param().unwrap_or_default())
}

/// True if scripts support the shape.
pub(super) const fn has(shape: Shape) -> bool {
    match shape {
        Shape::UnusedFirst
        | Shape::UnusedLast
        | Shape::UnusedAlways
        | Shape::UnusedAlternating
        | Shape::UnusedOnOddRanks
        | Shape::UnusedOnEvenRanks
        | Shape::ReversedOnOddRanks
        | Shape::Frozen
        | Shape::Bypass
        | Shape::TupleOutput
        | Shape::DictOutput
        | Shape::InfinityOnOneRank
        | Shape::SeveralBackwards
        | Shape::PenaltyBackward
        | Shape::Unmanaged
        | Shape::Scalars
        | Shape::ThreeBlocks
        | Shape::Twins
        | Shape::LossBackward => true,
        Shape::SkippedBlock
        | Shape::DetachedBlock
        | Shape::FrozenAlternating
        | Shape::Tied
        | Shape::LateNoSync
        | Shape::Experts
        | Shape::DifferentStart
        | Shape::CoalescedReduction
        | Shape::WarmUp => false,
    }
}

/// The Python condition under which a microbatch does not use the parameter of a shape; `None` for other shapes.
fn unused(shape: Shape) -> Option<&'static str> {
    Some(match shape {
        Shape::UnusedFirst => "m == 0",
        Shape::UnusedLast => "m == GA - 1",
        Shape::UnusedAlways => "True",
        Shape::UnusedAlternating => "step % 2 == 1",
        Shape::UnusedOnOddRanks => "rank % 2 == 1",
        Shape::UnusedOnEvenRanks => "rank % 2 == 0",
        _ => return None,
    })
}

/// True if a microbatch leaves a parameter unused.
fn is_used_in_part(spec: &RunSpec) -> bool {
    spec.shapes.iter().any(|shape| unused(*shape).is_some())
}

/// The Python function `used`, which is true if a microbatch uses a parameter; empty if all microbatches do.
pub(super) fn used(spec: &RunSpec) -> String {
    let conditions: Vec<String> = spec
        .shapes
        .iter()
        .filter_map(|shape| Some(format!("name == \"{}\" and {}", about(*shape), unused(*shape)?)))
        .collect();
    match &conditions[..] {
        [] => String::new(),
        all => format!(
            "def used(name, {WHICH}):  # True if the microbatch uses the parameter\n    return not ({})\n\n",
            all.join(" or ")
        ),
    }
}

/// The body of the model's `forward`.
pub(super) fn forward(spec: &RunSpec) -> Vec<String> {
    let mut lines = Vec::new();
    let mut layers = "self.named_children()".to_owned();
    if spec.has_shape(Shape::ReversedOnOddRanks) {
        lines.push("layers = list(self.named_children())[:: -1 if rank % 2 else 1]".to_owned());
        "layers".clone_into(&mut layers);
    }
    let condition =
        if is_used_in_part(spec) { format!(" if used(name, {WHICH})") } else { String::new() };
    let mut terms = format!("[layer(k) for name, layer in {layers}{condition}]");
    for shape in beside(spec) {
        terms += &format!(" + [self.{}(k)]", about(shape));
    }
    match Workload::new(spec, &Plan::new(spec)).output {
        Output::Logits => lines.push(format!("return sum({terms})")),
        output => {
            lines.push(format!("terms = torch.stack({terms})"));
            lines.push(match output {
                Output::Tuple => "return terms.sum(), terms".to_owned(),
                _ => "return dict(loss=terms.sum(), logits=terms)".to_owned(),
            });
        }
    }
    lines
}

/// The run's shapes that use a parameter twice in the forward pass, and once outside of it with the opposite sign.
fn beside(spec: &RunSpec) -> impl Iterator<Item = Shape> {
    [Shape::Bypass, Shape::PenaltyBackward].into_iter().filter(|shape| spec.has_shape(*shape))
}

/// The lines that compute the expected weights of a step.
pub(super) fn expected(spec: &RunSpec) -> Vec<String> {
    let mut conditions = vec!["s == step"];
    if is_used_in_part(spec) {
        conditions.push("used(name, s, r, m)");
    }
    if spec.has_shape(Shape::Unmanaged) {
        conditions.push("m < GA - 1");
    }
    if spec.has_shape(Shape::InfinityOnOneRank) {
        conditions.push("step > 0");
    }
    let condition = format!("float({})", conditions.join(" and "));
    let all = "for s in range(STEPS) for r in range(W) for m in range(GA)";
    if conditions.len() == 1 {
        return vec![format!("expected = [{condition} {all}]")];
    }
    vec![
        "expected = [".to_owned(),
        format!("    {condition}"),
        format!("    {all}"),
        "]".to_owned(),
    ]
}

/// The line that returns the values of all trained parameters.
pub(super) fn values(spec: &RunSpec, value: &str) -> Vec<String> {
    let trained = if spec.has_shape(Shape::Frozen) { " if p.requires_grad" } else { "" };
    vec![format!("return {{name: {value} for name, p in parameters.items(){trained}}}")]
}

/// The lines after the construction of the model.
pub(super) fn made(spec: &RunSpec) -> Vec<String> {
    let mut lines = Vec::new();
    if spec.has_shape(Shape::Frozen) {
        lines.push(format!("model.{}.weight.requires_grad_(False)", about(Shape::Frozen)));
    }
    if spec.has_shape(Shape::Unmanaged) {
        lines.push(
            "other = torch.ones((), requires_grad=True)  # a parameter unknown to the engine"
                .to_owned(),
        );
    }
    lines
}

/// The Python expression for the parameters of the optimizer.
pub(super) fn parameters(spec: &RunSpec) -> String {
    if spec.parameter_groups == Some(2) {
        let plan = Plan::new(spec);
        let group = |is_decayed: bool| {
            let names = plan
                .params()
                .iter()
                .filter(|param| param.trainable && (param.shape.len() > 1) == is_decayed)
                .map(|param| format!("model.{}.weight", name(&param.name)));
            names.collect::<Vec<_>>()
        };
        let groups = [group(true), group(false)].map(|names| names.join(", "));
        let groups = groups.iter().filter(|names| !names.is_empty());
        let groups: Vec<String> = groups.map(|names| format!("dict(params=[{names}])")).collect();
        return format!("[{}]", groups.join(", "));
    }
    if spec.has_shape(Shape::Frozen) {
        return "[p for p in model.parameters() if p.requires_grad]".to_owned();
    }
    "model.parameters()".to_owned()
}

/// The lines with the forward and backward passes of a microbatch.
pub(super) fn microbatch(spec: &RunSpec, engine: &EngineScript) -> Vec<String> {
    let call = match Workload::new(spec, &Plan::new(spec)).output {
        Output::Logits => format!("{}({WHICH})", engine.forward),
        Output::Tuple => format!("{}({WHICH})[0]", engine.forward),
        Output::Dict => format!("{}({WHICH})[\"loss\"]", engine.forward),
    };
    let times = |factor: f64| if factor == 1.0 { String::new() } else { format!("{factor} * ") };
    let number = "(step * W + rank) * GA + m";
    let mut losses: Vec<Vec<String>> = Vec::new();
    for factor in workload::parts(spec) {
        let mut loss = vec![format!("loss = {}{call}", times(*factor))];
        if spec.has_shape(Shape::Bypass) {
            let layer = format!("model.{}({number})", about(Shape::Bypass));
            loss.push(format!(
                "loss = loss - {}{layer}  # outside of the engine's forward",
                times(*factor)
            ));
        }
        if spec.has_shape(Shape::InfinityOnOneRank) && losses.is_empty() {
            loss.push(format!(
                "if ({WHICH}) == (0, W - 1, 0):  # an overflow: the step is to be skipped"
            ));
            loss.push("    loss = loss * float(\"inf\")".to_owned());
        }
        if spec.has_shape(Shape::Unmanaged) {
            loss.push(
                "if m == GA - 1:  # the last loss uses no parameter of the engine".to_owned(),
            );
            loss.push("    loss = other * other".to_owned());
        }
        losses.push(loss);
    }
    if spec.has_shape(Shape::PenaltyBackward) {
        let layer = format!("model.{}({number})", about(Shape::PenaltyBackward));
        losses.push(vec![format!("loss = -{layer}  # a penalty, outside of the engine's forward")]);
    }
    let count = losses.len();
    let mut lines = Vec::new();
    for (at, loss) in losses.into_iter().enumerate() {
        let last = if at + 1 == count { "m == GA - 1" } else { "False" };
        let before = (engine.accumulation)(spec, last, count > 1);
        let indent =
            if before.last().is_some_and(|line| line.ends_with(':')) { "    " } else { "" };
        lines.extend(before);
        let all = loss.into_iter().chain([engine.backward.clone()]);
        lines.extend(all.map(|line| format!("{indent}{line}")));
    }
    lines
}
