//! How a configuration is made smaller: what can be left out of it, and numbers.

use crate::spec::{Flag, RunSpec, Shape, SpecRequest};

/// One way to make a configuration smaller.
#[derive(Clone, Debug)]
pub struct Reduction {
    words: String,
    change: Change,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    LeaveOut(fn(&mut SpecRequest)),
    Shape(Shape),
    Number(fn(&mut SpecRequest, usize), usize),
}

impl Reduction {
    /// What it changes.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Changes it.
    pub fn apply(&self, request: &mut SpecRequest) {
        match self.change {
            Change::LeaveOut(leave_out) => leave_out(request),
            Change::Shape(shape) => request.shapes.retain(|other| *other != shape),
            Change::Number(set, number) => set(request, number),
        }
    }
}

/// Flags without which a configuration is another one rather than a smaller one: the engine and the
/// fault are what the question is about, numbers have [`NUMBERS`], and shapes go one by one.
const KEPT: &[&str] =
    &["--engine", "--inject", "--timeout", "--steps", "--nproc-per-node", "--ga", "--shape"];

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

/// What can be left out of a request: each shape, each setting that is not left to its default.
pub fn left_out(request: &SpecRequest) -> Vec<Reduction> {
    let shapes = request.shapes.iter().map(|&shape| Reduction {
        words: format!("without --shape {shape}"),
        change: Change::Shape(shape),
    });
    shapes.chain(said(request, |flag| !KEPT.contains(&flag.name))).collect()
}

/// Every flag that a request says.
pub fn all_said(request: &SpecRequest) -> Vec<Reduction> {
    said(request, |_| true).collect()
}

fn said(request: &SpecRequest, wanted: impl Fn(&Flag) -> bool) -> impl Iterator<Item = Reduction> {
    Flag::all().filter(move |flag| wanted(flag)).filter_map(|flag| {
        let value = (flag.text)(request)?;
        Some(Reduction {
            words: format!("without {} {value}", flag.name),
            change: Change::LeaveOut(flag.clear),
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
