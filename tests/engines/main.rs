//! Tests of real engines and real training scripts, in an environment that has them.

mod exec;
#[path = "../support/interpreter.rs"]
mod interpreter;
mod run;
