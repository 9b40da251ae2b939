//! What the examples of parallel programs share: each starts four ranks of itself, unless
//! `vmmc run` has started it.

use std::process::ExitCode;
use std::sync::Arc;
use vmmc_job::{Job, JobError, JobEvent, Launch};

/// What anything can fail with.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// Plays a rank in a process that belongs to a job; else starts four of them.
pub(crate) fn run(rank: fn(Arc<Job>) -> Result<(), Failure>) -> ExitCode {
    let result = match Job::attach() {
        Ok(job) => rank(Arc::new(job)),
        Err(JobError::NoJob { .. }) => start(),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("failed: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Four ranks of this program on this node, as `vmmc run -n 4` does it.
fn start() -> Result<(), Failure> {
    let mut job = Launch::new(std::env::current_exe()?).ranks(4).start()?;
    let failed = job.wait(|event| {
        if let JobEvent::Output { rank, bytes, .. } = event {
            String::from_utf8_lossy(bytes).lines().for_each(|line| println!("[{rank}] {line}"));
        }
    })?;
    if failed.is_empty() { Ok(()) } else { Err(format!("{failed:?}").into()) }
}
