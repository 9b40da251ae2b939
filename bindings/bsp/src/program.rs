//! The one process that this program is: before, in and after its parallel part.
//!
//! Invariant: a call that fails does not return; it ends this process, and the others are told.

use crate::memory::ProgramMemory;
use std::sync::{Arc, Mutex, MutexGuard};
use vmmc_bsp::{BspError, Builder, Process};
use vmmc_job::{Job, JobError};

/// Status of a program that was ended by a call.
const FAILED: i32 = 1;

enum State {
    Before,
    In(Box<Process<ProgramMemory>>),
    After,
}

static STATE: Mutex<State> = Mutex::new(State::Before);
/// The job, if there is one, as soon as that was asked for.
static JOB: Mutex<Option<Option<Arc<Job>>>> = Mutex::new(None);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn job(what: &str) -> Option<Arc<Job>> {
    let mut job = JOB.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let attach = || match Job::attach() {
        Ok(job) => Some(Arc::new(job)),
        Err(JobError::NoJob { .. }) => None,
        Err(error) => message(what, &error.to_string()),
    };
    job.get_or_insert_with(attach).clone()
}

/// Whether this process is to call the parallel part at once.
pub(crate) fn init() -> bool {
    if !matches!(*state(), State::Before) {
        message("bsp_init", "the parallel part has begun; bsp_init is the first statement of main");
    }
    job("bsp_init").is_some_and(|job| job.rank() > 0)
}

pub(crate) fn begin(most: u32) {
    if !matches!(*state(), State::Before) {
        message("bsp_begin", "the parallel part has begun before; there is one in a program");
    }
    let builder = match job("bsp_begin") {
        Some(job) => Builder::first(job, most),
        None => Ok(Some(Builder::alone())),
    };
    let builder = match builder {
        Ok(Some(builder)) => builder,
        Ok(None) => std::process::exit(0),
        Err(error) => message("bsp_begin", &error.to_string()),
    };
    match builder.create_over(ProgramMemory) {
        Ok(process) => *state() = State::In(Box::new(process)),
        Err(error) => message("bsp_begin", &error.to_string()),
    }
}

pub(crate) fn end() {
    call("bsp_end", |process| process.end());
    *state() = State::After;
}

pub(crate) fn nprocs() -> u32 {
    if let State::In(process) = &*state() {
        return process.nprocs();
    }
    job("bsp_nprocs").map_or(1, |job| job.size())
}

/// A call that cannot fail but for being made outside of the parallel part.
pub(crate) fn with<T>(what: &str, call: impl FnOnce(&mut Process<ProgramMemory>) -> T) -> T {
    let mut state = state();
    let wrong = match &mut *state {
        State::In(process) => return call(process),
        State::Before => "call bsp_begin first",
        State::After => "bsp_end was called; no calls follow it",
    };
    drop(state);
    message(what, wrong)
}

/// A call that ends the program when it fails.
pub(crate) fn call<T>(what: &str, call: impl FnOnce(&mut Process<ProgramMemory>) -> Result<T, BspError>) -> T {
    with(what, call).unwrap_or_else(|error| fail(what, &error))
}

/// Ends the program for an error.
fn fail(what: &str, error: &BspError) -> ! {
    let text = error.to_string();
    match error {
        // The others know.
        BspError::Aborted { .. } | BspError::Gone { .. } => finish(what, &text, false),
        _ => finish(what, &text, true),
    }
}

/// Ends the program for what a call was given.
pub(crate) fn message(what: &str, text: &str) -> ! {
    finish(what, text, true)
}

fn finish(what: &str, text: &str, tell: bool) -> ! {
    let text = format!("{what}: {text}");
    let before = std::mem::replace(&mut *state(), State::After);
    match before {
        State::In(mut process) => {
            eprintln!("process {}: {text}", process.pid());
            if tell {
                process.tell_abort(&text);
            }
            // Not dropped: that would tell them once more.
            std::mem::forget(process);
        }
        _ => eprintln!("{text}"),
    }
    std::process::exit(FAILED)
}

/// Ends all, with the program's own words.
pub(crate) fn abort(text: &str) -> ! {
    let before = std::mem::replace(&mut *state(), State::After);
    match before {
        State::In(mut process) => {
            eprintln!("process {} ends all: {}", process.pid(), text.trim_end());
            process.tell_abort(text.trim_end());
            std::mem::forget(process);
        }
        _ => eprintln!("bsp_abort: {}", text.trim_end()),
    }
    std::process::exit(FAILED)
}
