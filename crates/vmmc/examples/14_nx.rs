//! A program as for the Intel Paragon: a matrix times a vector, whose rows are spread over the
//! nodes, with the calls of NX.
//!
//! `vmmc run -n 4 -- target/release/examples/14_nx` starts it on this node, `vmmc run -n 4 --nodes
//! 2 -- ...` on two. Without `vmmc run` it starts four ranks of itself.

#[path = "tutorial/ranks.rs"]
mod ranks;

use ranks::Failure;
use std::sync::Arc;
use vmmc_job::Job;
use vmmc_mp::Messages;
use vmmc_nx::{ANY, Nx, dclock};

/// Rows of one node, and types of messages.
const ROWS: usize = 64;
const BORDER: i64 = 1;
const TIME: i64 = 2;
/// Times that the vector goes through the matrix.
const ROUNDS: usize = 200;

fn main() -> std::process::ExitCode {
    ranks::run(rank)
}

fn rank(job: Arc<Job>) -> Result<(), Failure> {
    let nx = Nx::over(Messages::over(job).create()?);
    let (node, nodes) = (nx.mynode(), nx.numnodes());
    let (before, after) = ((node + nodes - 1) % nodes, (node + 1) % nodes);
    let mut own = vec![if node == 0 { 1.0f64 } else { 0.0 }; ROWS];
    let start = dclock();
    for _ in 0..ROUNDS {
        // The receive is posted before the send, so that the message finds its place.
        let from_before = nx.irecvx(BORDER, vec![0; 8], before, ANY)?;
        nx.csend(BORDER, &own[ROWS - 1].to_le_bytes(), after, nx.myptype())?;
        let border = f64::from_le_bytes(nx.msgwait(from_before)?.bytes().try_into()?);
        // Each row keeps half of its value, and gives half to the next one.
        own = (0..ROWS).map(|i| (own[i] + if i == 0 { border } else { own[i - 1] }) / 2.0).collect();
    }
    // The sum of all nodes is what it was: a global operation, in place.
    let mut sum = [own.iter().sum::<f64>()];
    nx.gdsum(&mut sum)?;
    println!("node {node} of {nodes}: the sum is {:.6}", sum[0]);
    let took = dclock() - start;
    if node != 0 {
        nx.csend(TIME, &took.to_le_bytes(), 0, nx.myptype())?;
    } else {
        let mut longest = took;
        for _ in 1..nodes {
            let mut time = [0; 8];
            let info = nx.crecv(TIME, &mut time)?;
            assert_eq!(info.count, 8);
            longest = longest.max(f64::from_le_bytes(time));
        }
        println!("{ROUNDS} rounds took {:.1} ms", 1e3 * longest);
    }
    nx.gsync()?;
    if (sum[0] - ROWS as f64).abs() < 1e-6 { Ok(()) } else { Err(format!("{} of {ROWS}", sum[0]).into()) }
}
