//! Tests of real engines and real training scripts, in a Python environment that has the engines.

#[path = "../support/changes.rs"]
mod changes;
mod exec;
#[path = "../support/interpreter.rs"]
mod interpreter;
mod run;
