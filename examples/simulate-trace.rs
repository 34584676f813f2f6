//! Writes the trace of a simulated run, for numbers of ranks that no available machine can run. The run is correct,
//! except for the gradients that `--lose` removes. Prints the seconds for writing the trace from all ranks' records.
//!
//! Usage: `cargo run --release --example simulate-trace -- --ranks 4096 --lose 0,2741,1 --out DIR`, then
//! `zprobe show DIR`.

#[path = "../tests/it/simulator/mod.rs"]
#[allow(dead_code, reason = "only tests use the rest")]
mod simulator;

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Parser;
use zprobe_lab::console::print;
use zprobe_launch::record_all;
use zprobe_model::spec::{Dtype, Engine, SpecRequest};

use self::simulator::Simulation;

/// Write the trace of a simulated run.
#[derive(Parser)]
struct Args {
    /// Number of ranks; a power of two
    #[arg(long, value_name = "N")]
    ranks: usize,

    /// Microbatches per optimizer step; a power of two
    #[arg(long, value_name = "N", default_value_t = 4)]
    ga: usize,

    /// Number of optimizer steps
    #[arg(long, value_name = "N", default_value_t = 2)]
    steps: usize,

    /// A gradient that reaches no optimizer; may be repeated
    #[arg(long, value_name = "STEP,RANK,MICROBATCH", value_parser = place)]
    lose: Vec<(usize, usize, usize)>,

    /// Directory for the trace
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

fn place(text: &str) -> Result<(usize, usize, usize)> {
    let numbers: Vec<usize> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
    match numbers[..] {
        [step, rank, microbatch] => Ok((step, rank, microbatch)),
        _ => anyhow::bail!("give three numbers: step, rank and microbatch"),
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    for (flag, number) in [("--ranks", args.ranks), ("--ga", args.ga)] {
        anyhow::ensure!(number.is_power_of_two(), "{flag} {number}: give a power of two");
    }
    let fp32 = Some(Dtype::Fp32);
    let mut simulation = Simulation::large(
        SpecRequest {
            engine: Some(Engine::DeepSpeed),
            world_size: Some(args.ranks),
            gradient_accumulation_steps: Some(args.ga),
            steps: Some(args.steps),
            dtype: fp32,
            grad_accum_dtype: fp32,
            comm_dtype: fp32,
            ..SpecRequest::default()
        },
        &args.lose,
    );
    simulation.gathers = true;
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let records = simulation.trace().records;
    let started = Instant::now();
    // `record_all` writes the first record itself.
    let events = records.into_iter().skip(1).map(|it| (it.rank, it.t_ns, it.event));
    record_all(&args.out, "simulated", &simulation.spec, events)?;
    print(&format!("{}\n", started.elapsed().as_secs_f64()))
}
