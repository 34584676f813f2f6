//! Tests of real engines and real training scripts, in a Python environment that has the engines.

mod exec;
#[path = "../support/interpreter.rs"]
mod interpreter;
mod run;
