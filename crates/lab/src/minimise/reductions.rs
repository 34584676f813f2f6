//! Ways to make a configuration smaller: settings that can be left out, and smaller numbers.

use zprobe_model::spec::settings::{self, Reduction as Role, Setting};
use zprobe_model::spec::{RunSpec, Shape, SpecRequest};

/// One way to make a configuration smaller.
#[derive(Clone)]
pub struct Reduction {
    words: String,
    change: Change,
}

#[derive(Clone, Copy)]
enum Change {
    LeaveOut(&'static dyn Setting),
    Shape(Shape),
    Number(fn(&mut SpecRequest, usize), usize),
}

impl Reduction {
    /// Description of the change.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Makes the change to a request.
    pub fn apply(&self, request: &mut SpecRequest) {
        match self.change {
            Change::LeaveOut(setting) => setting.clear(request),
            Change::Shape(shape) => request.shapes.retain(|other| *other != shape),
            Change::Number(set, number) => set(request, number),
        }
    }
}

/// A number, by its flag.
pub struct Number {
    flag: &'static str,
    get: fn(&RunSpec) -> usize,
    set: fn(&mut SpecRequest, usize),
}

/// Numbers that have a smallest value of their own.
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

/// Reductions that leave something out of a request: each shape, and each setting that is not left
/// to its default.
pub fn left_out(request: &SpecRequest) -> Vec<Reduction> {
    let shapes = request.shapes.iter().map(|&shape| Reduction {
        words: format!("without --shape {shape}"),
        change: Change::Shape(shape),
    });
    // Each shape goes by itself.
    let all_at_once = SpecRequest { shapes: Vec::new(), ..request.clone() };
    shapes.chain(said(&all_at_once, |role| role == Role::LeaveOut)).collect()
}

/// Reductions that leave out a flag which the request sets, of all flags that may be left out where
/// they equal the default.
pub fn all_said(request: &SpecRequest) -> Vec<Reduction> {
    said(request, |role| role != Role::KeepAlways).collect()
}

fn said(request: &SpecRequest, wanted: impl Fn(Role) -> bool) -> impl Iterator<Item = Reduction> {
    settings::ALL.iter().filter(move |it| wanted(it.describe().reduction)).filter_map(|setting| {
        let value = setting.text(request)?;
        Some(Reduction {
            words: format!("without {} {value}", setting.flag()),
            change: Change::LeaveOut(*setting),
        })
    })
}

/// Smaller values of a number, the smallest first: 1, 2, 3, half of what it is, and one less.
pub fn smaller(axis: usize, spec: &RunSpec) -> Vec<Reduction> {
    let number = &NUMBERS[axis];
    let now = (number.get)(spec);
    let mut values = vec![1, 2, 3, now / 2, now.saturating_sub(1)];
    values.retain(|value| (1..now).contains(value));
    values.sort_unstable();
    values.dedup();
    let reduction = |value| Reduction {
        words: format!("{} {value} instead of {now}", number.flag),
        change: Change::Number(number.set, value),
    };
    values.into_iter().map(reduction).collect()
}
