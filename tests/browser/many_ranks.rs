//! A run of many ranks, made from the recorded leak with two ranks.

use zprobe_model::trace::{Event, Outcome, Record, Trace};
use zprobe_report::{Contribution, Report};

/// The report and the trace of a leak of the boundary microbatch on `world_size` ranks.
pub fn leak(world_size: usize, ga: usize) -> (Report, Trace) {
    let (mut report, mut trace) = super::fixture("boundary-leak");
    for spec in [&mut report.run.spec, &mut trace.spec] {
        spec.world_size = world_size;
        spec.gradient_accumulation_steps = ga;
    }
    // Entries of rank 0 that hold the whole model or the rank's own part are repeated for every rank.
    let of_first = |entry: &&Contribution| entry.rank == 0 && entry.params.is_none();
    let entries: Vec<Contribution> =
        report.contributions.iter().filter(of_first).cloned().collect();
    report.contributions = entries
        .iter()
        .flat_map(|entry| (0..world_size).map(move |rank| spread(entry, rank, world_size, ga)))
        .collect();
    if let Some(first) = &mut report.first_divergence {
        first.ranks = (0..world_size).collect();
    }
    for row in &mut report.norms {
        let first = row.norms[0].unwrap();
        let norm = |rank: usize| first * (1.0 + 0.002 * ((rank * 7919) % 97) as f64 / 97.0);
        row.norms = (0..world_size).map(|rank| Some(norm(rank))).collect();
        row.difference_percent =
            (0..world_size).map(|r| Some((norm(r) / first - 1.0) * 100.0)).collect();
    }
    let rank = report.ranks[0].clone();
    report.ranks = (0..world_size)
        .map(|number| {
            let mut rank = rank.clone();
            (rank.rank, rank.pid) = (number, Some(30_000 + number as u32));
            rank
        })
        .collect();
    for firings in &mut report.hooks.firings {
        firings.ranks = (0..world_size).collect();
    }
    trace.records = records(&trace, world_size);
    (report, trace)
}

/// An entry of rank 0 of two ranks, converted to one of `world_size` ranks: the weight of the rank's own
/// gradients at the boundary grows with the number of ranks.
fn spread(entry: &Contribution, rank: usize, world_size: usize, ga: usize) -> Contribution {
    let row = |weights: &[Vec<f64>], source: usize| -> Vec<f64> {
        let of_two = &weights[usize::from(source != rank)];
        let grown = |weight: f64| if weight == 2.0 { world_size as f64 } else { weight };
        (0..ga).map(|m| grown(of_two[usize::from(m == ga - 1)])).collect()
    };
    let all = |weights: &[Vec<f64>]| (0..world_size).map(|source| row(weights, source)).collect();
    let steps_before = if entry.step == 0 { 0 } else { ga };
    Contribution {
        rank,
        microbatch: entry.microbatch.map(|m| if m == 1 { ga - 1 } else { m }),
        weights: all(&entry.weights),
        expected: all(&entry.expected),
        leftover: vec![vec![0.0; steps_before]; world_size],
        ..entry.clone()
    }
}

/// The records of rank 0 repeated for every rank, each a little later than the previous one.
fn records(trace: &Trace, world_size: usize) -> Vec<Record> {
    let of_first = |record: &&Record| {
        record.rank == Some(0)
            && !matches!(record.event, Event::Buffer { .. } | Event::Model { .. })
    };
    let first: Vec<&Record> = trace.records.iter().filter(of_first).collect();
    let last = first.last().unwrap().t_ns;
    let mut records = vec![trace.records[0].clone()];
    for rank in 0..world_size {
        let late = (rank * 7919 % 1009) as u64 * 1000;
        let moved = |record: &&Record| Record {
            rank: Some(rank),
            t_ns: record.t_ns + late,
            ..(*record).clone()
        };
        records.extend(first.iter().map(moved));
        records.push(Record {
            rank: None,
            t_ns: last + 2_000_000,
            event: Event::RankExited { rank, outcome: Outcome::Code(0) },
            ..trace.records[0].clone()
        });
    }
    records
}
