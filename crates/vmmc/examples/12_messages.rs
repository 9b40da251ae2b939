//! Messages by rank and tag: rank 0 gives out pieces of work, and whoever is done gets the next.
//!
//! `vmmc run -n 4 -- target/release/examples/12_messages` starts it on this node, `vmmc run -n 4
//! --nodes 2 -- ...` on two. Without `vmmc run` it starts four ranks of itself.

#[path = "tutorial/ranks.rs"]
mod ranks;

use ranks::Failure;
use std::sync::Arc;
use vmmc_job::Job;
use vmmc_mp::{Group, Messages, Op, Select};

/// A piece to work on, or the result of one.
const WORK: u64 = 1;
/// There is none left.
const END: u64 = 2;
/// Pieces of the interval from 0 to 1, and steps in each.
const PIECES: u32 = 64;
const STEPS: u32 = 100_000;

fn main() -> std::process::ExitCode {
    ranks::run(rank)
}

fn rank(job: Arc<Job>) -> Result<(), Failure> {
    let messages = Messages::over(job).create()?;
    let world = messages.world();
    let done = if world.rank() == 0 { give_out(world)? } else { work(world)? };
    println!("{done} pieces");

    // All know how many there were: a collective call.
    let mut all = [if world.rank() == 0 { 0 } else { u64::from(done) }];
    world.allreduce(&mut all, Op::Sum)?;
    if all[0] != u64::from(PIECES) {
        return Err(format!("{} pieces were done, of {PIECES}", all[0]).into());
    }
    Ok(())
}

/// Each result comes from whoever is ready: `Select::any` names no rank.
fn give_out(world: &Group) -> Result<u32, Failure> {
    let (mut next, mut area) = (0, 0.0);
    let mut at_work = world.size() - 1;
    while at_work > 0 {
        let mut result = [0; 8];
        let status = world.receive(Select::any().tag(WORK), &mut result)?;
        area += f64::from_le_bytes(result);
        if next < PIECES {
            world.send(status.source, WORK, &next.to_le_bytes())?;
            next += 1;
        } else {
            world.send(status.source, END, &[])?;
            at_work -= 1;
        }
    }
    let error = (area - std::f64::consts::PI).abs();
    println!("pi is {area:.9}");
    if error < 1e-9 { Ok(next) } else { Err(format!("off by {error}").into()) }
}

/// The area below 4 / (1 + x²), piece by piece. The first message asks for work: a result of 0.
fn work(world: &Group) -> Result<u32, Failure> {
    let (mut done, mut result) = (0, 0.0f64);
    loop {
        world.send(0, WORK, &result.to_le_bytes())?;
        let mut piece = [0; 4];
        // Whatever its tag is: a piece, or the end.
        let status = world.receive(Select::from(0), &mut piece)?;
        if status.tag == END {
            return Ok(done);
        }
        let first = u32::from_le_bytes(piece) * STEPS;
        let width = 1.0 / f64::from(PIECES * STEPS);
        let height = |step: u32| 4.0 / (1.0 + ((f64::from(step) + 0.5) * width).powi(2));
        result = (first..first + STEPS).map(height).sum::<f64>() * width;
        done += 1;
    }
}
