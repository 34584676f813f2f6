//! Writes the trace of a simulated run, for numbers of ranks that nobody has the machines for:
//! correct but for gradients that are lost.
//!
//! `cargo run --release --example simulate-trace -- --ranks 4096 --lose 0,2741,1 --out DIR`, then
//! `zprobe diagnose DIR`.

#[path = "../tests/simulator/mod.rs"]
#[allow(dead_code, reason = "tests use what this does not")]
mod simulator;

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;
use zprobe::spec::{Dtype, Engine, SpecRequest};
use zprobe::trace::TRACE_FILE;

use self::simulator::Simulation;

/// Write the trace of a simulated run.
#[derive(Parser)]
struct Args {
    /// Ranks; a power of two
    #[arg(long, value_name = "N")]
    ranks: usize,

    /// Microbatches per optimizer step; a power of two
    #[arg(long, value_name = "N", default_value_t = 4)]
    ga: usize,

    /// Optimizer steps
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
    let simulation = Simulation::large(
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
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let path = args.out.join(TRACE_FILE);
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut file = BufWriter::new(file);
    for record in simulation.trace().records {
        serde_json::to_writer(&mut file, &record)?;
        file.write_all(b"\n")?;
    }
    file.flush().with_context(|| format!("cannot write {}", path.display()))
}
