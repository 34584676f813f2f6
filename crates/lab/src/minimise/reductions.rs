//! Reductions, which make a configuration smaller: they leave out settings, or lower numbers.

use zprobe_model::spec::settings::{self, Reduction as Role, Setting};
use zprobe_model::spec::{RunSpec, Shape, SpecRequest};

/// A way to make a configuration smaller.
#[derive(Clone)]
pub struct Reduction {
    description: String,
    change: Change,
}

#[derive(Clone, Copy)]
enum Change {
    LeaveOut(&'static dyn Setting),
    Shape(Shape),
    Number(fn(&mut SpecRequest, usize), usize),
}

impl Reduction {
    /// The change in description, for example `--steps 1 instead of 3`.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Applies the reduction to a request.
    pub fn apply(&self, request: &mut SpecRequest) {
        match self.change {
            Change::LeaveOut(setting) => setting.clear(request),
            Change::Shape(shape) => request.shapes.retain(|other| *other != shape),
            Change::Number(set, number) => set(request, number),
        }
    }
}

/// A numeric setting that can be made smaller, with its flag.
pub struct Number {
    flag: &'static str,
    get: fn(&RunSpec) -> usize,
    set: fn(&mut SpecRequest, usize),
}

/// The numeric settings that the search makes smaller.
pub const NUMBERS: &[Number] = &[
    Number {
        flag: "--steps",
        get: |spec| spec.steps,
        set: |request, number| request.steps = Some(number),
    },
    Number {
        flag: "--nproc-per-node",
        get: |spec| spec.world_size,
        set: |request, number| {
            request.world_size = Some(number);
            request.rank_per_gpu = false;
        },
    },
    Number {
        flag: "--ga",
        get: |spec| spec.gradient_accumulation_steps,
        set: |request, number| request.gradient_accumulation_steps = Some(number),
    },
];

/// Simpler forms of a request: each form leaves out one shape, or one optional setting that the request gives.
pub fn left_out(request: &SpecRequest) -> Vec<Reduction> {
    let shapes = request.shapes.iter().map(|&shape| Reduction {
        description: format!("without --shape {shape}"),
        change: Change::Shape(shape),
    });
    // Each shape is left out by itself, so the setting of all shapes is not left out at once.
    let all_at_once = SpecRequest { shapes: Vec::new(), ..request.clone() };
    shapes.chain(leaving_out(&all_at_once, |role| role == Role::LeaveOut)).collect()
}

/// The reductions that leave out one flag of a request each, for all flags of the request except those that are
/// always kept.
pub fn all_flags(request: &SpecRequest) -> Vec<Reduction> {
    leaving_out(request, |role| role != Role::KeepAlways).collect()
}

fn leaving_out(
    request: &SpecRequest,
    wanted: impl Fn(Role) -> bool,
) -> impl Iterator<Item = Reduction> {
    settings::ALL.iter().filter(move |it| wanted(it.describe().reduction)).filter_map(|setting| {
        let value = setting.text(request)?;
        Some(Reduction {
            description: format!("without {} {value}", setting.flag()),
            change: Change::LeaveOut(*setting),
        })
    })
}

/// Smaller values of a numeric setting, the smallest first: 1, 2, 3, half of the current value, and one less.
pub fn smaller(axis: usize, spec: &RunSpec) -> Vec<Reduction> {
    let number = &NUMBERS[axis];
    let now = (number.get)(spec);
    let mut values = vec![1, 2, 3, now / 2, now.saturating_sub(1)];
    values.retain(|value| (1..now).contains(value));
    values.sort_unstable();
    values.dedup();
    let reduction = |value| Reduction {
        description: format!("{} {value} instead of {now}", number.flag),
        change: Change::Number(number.set, value),
    };
    values.into_iter().map(reduction).collect()
}
