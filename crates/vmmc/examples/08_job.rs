//! A parallel program: heat flows along a ring of ranks, each of which holds a piece of the rod and
//! writes its borders into its neighbours' memory.
//!
//! `vmmc run -n 4 -- target/release/examples/08_job` starts it on this node, `vmmc run -n 4 --nodes
//! 2 -- ...` on two. Without `vmmc run` it starts four ranks of itself.

#[path = "tutorial/ranks.rs"]
mod ranks;

use ranks::Failure;
use std::sync::Arc;
use vmmc_job::Job;

/// Cells of one rank.
const CELLS: usize = 64;
/// Steps of the simulation.
const STEPS: u64 = 500;

fn main() -> std::process::ExitCode {
    ranks::run(simulate)
}

fn simulate(job: Arc<Job>) -> Result<(), Failure> {
    let (rank, size) = (job.rank(), job.size());
    let left = (rank + size - 1) % size;
    let right = (rank + 1) % size;

    // Two words for each neighbour and parity of the step: the step that the value belongs to, and
    // the value.
    let halo = job.export("halo", 64).create()?;
    let to_left = job.import(left, "halo")?.open()?;
    let to_right = job.import(right, "halo")?.open()?;

    let mut rod = vec![if rank == 0 { 1000.0f64 } else { 0.0 }; CELLS];
    for step in 1..=STEPS {
        let turn = 32 * (step % 2);
        // Our first cell is the left neighbour's right border, and the other way round. The value
        // goes first, the step says that it is there.
        for (to, place, value) in [(&to_left, 16, rod[0]), (&to_right, 0, rod[CELLS - 1])] {
            to.send(turn + place + 8, &value.to_le_bytes())?;
            to.send(turn + place, &step.to_le_bytes())?;
        }
        let border = |place: u64| -> Result<f64, Failure> {
            halo.wait_word(turn + place, |word| word == step)?;
            let mut value = [0; 8];
            halo.read(turn + place + 8, &mut value)?;
            Ok(f64::from_le_bytes(value))
        };
        let (before, after) = (border(0)?, border(16)?);
        let cell = |i: isize| match i {
            -1 => before,
            _ if i as usize == CELLS => after,
            _ => rod[i as usize],
        };
        rod = (0..CELLS as isize).map(|i| cell(i) + 0.25 * (cell(i - 1) - 2.0 * cell(i) + cell(i + 1))).collect();
    }

    // No heat is lost: the sum over all ranks is what it was.
    let own: f64 = rod.iter().sum();
    let all = job.allgather(&own.to_le_bytes())?;
    let total: f64 = all.iter().filter_map(|v| Some(f64::from_le_bytes(v.as_slice().try_into().ok()?))).sum();
    println!("on node {}: {own:.1} of {total:.1} units of heat after {STEPS} steps", job.node_of(rank)?);
    if (total - 1000.0 * CELLS as f64).abs() > 1e-6 * total {
        return Err(format!("{total} units of heat in all, {} at the start", 1000 * CELLS).into());
    }
    Ok(job.barrier()?)
}
