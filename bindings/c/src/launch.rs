//! Starting and watching jobs.
//!
//! Invariant: a job ends with its handle. What an event points to lives until the next call for an
//! event on the same handle.

use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::memory::{bytes, list, optional_string, string, strings};
use crate::options::{self, Options, known_flags};
use crate::status::vmmc_status::{self, VMMC_AGAIN, VMMC_BUSY};
use crate::wait::{duration, optional};
use ::vmmc_job::{Exit, JobEvent, Launch, Launched, Place, Stream};
use std::collections::VecDeque;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A job that runs, seen by who started it.
pub struct vmmc_launched(());

/// One thread at a time.
pub(crate) struct Object(Mutex<State>);
handle!(vmmc_launched, Launched, Object, "launched job");

pub(crate) struct State {
    job: Launched,
    /// Events that tell of several ranks come as one for each.
    waiting: VecDeque<Told>,
    /// What the last event points to.
    last: Option<Told>,
}

/// An event with what it points to.
struct Told {
    kind: vmmc_event_kind,
    rank: u32,
    number: i64,
    text: CString,
    data: Vec<u8>,
}

/// For `flags` of vmmc_launch_options: the job goes on when a rank fails.
pub const VMMC_LAUNCH_KEEP_GOING: u32 = 1;
/// For `flags`: `input_rank` gets standard input, from vmmc_launched_write_input().
pub const VMMC_LAUNCH_INPUT: u32 = 2;

/// A part of a job: a node, and how many ranks it gets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_job_place {
    /// Name or `address:port` of the node; NULL: the launcher's own.
    pub node: *const c_char,
    /// Ranks there.
    pub ranks: u32,
}

/// What to start, where, and how many.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_launch_options {
    /// sizeof (vmmc_launch_options).
    pub size: usize,
    /// The program: looked up on PATH unless it contains a slash.
    pub program: *const c_char,
    /// Its arguments, without its name.
    pub args: *const *const c_char,
    /// How many.
    pub arg_count: usize,
    /// Processes on the launcher's own node; 0: one. Not used with `places`.
    pub ranks: u32,
    /// VMMC_LAUNCH_KEEP_GOING, VMMC_LAUNCH_INPUT.
    pub flags: u32,
    /// Nodes, in order of the ranks; NULL: the launcher's own.
    pub places: *const vmmc_job_place,
    /// How many.
    pub place_count: usize,
    /// Name of the launcher's own node; NULL: $VMMC_NODE, else "default".
    pub node: *const c_char,
    /// Working directory; NULL: that of this process.
    pub cwd: *const c_char,
    /// Variables beside those of this process, as "NAME=VALUE".
    pub env: *const *const c_char,
    /// How many.
    pub env_count: usize,
    /// With VMMC_LAUNCH_INPUT: who gets standard input.
    pub input_rank: u32,
    /// How long nodes may take to come up, microseconds; 0: ten seconds.
    pub timeout_us: i64,
}

// SAFETY: plain data that starts with its size.
unsafe impl Options for vmmc_launch_options {
    const NAME: &'static str = "launch options";
}

/// What happened in a job.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmmc_event_kind {
    /// The rank runs; `number` is its process id on its node.
    VMMC_EVENT_STARTED = 0,
    /// The rank could not be started; `text` says why.
    VMMC_EVENT_NOT_STARTED = 1,
    /// The rank printed `len` bytes of `data` on its standard output: whole lines, unless a line is
    /// very long.
    VMMC_EVENT_OUTPUT = 2,
    /// The same on its standard error.
    VMMC_EVENT_ERROR_OUTPUT = 3,
    /// The rank has ended; `number` is its code, negative the signal that ended it.
    VMMC_EVENT_EXITED = 4,
    /// The rank has left the job.
    VMMC_EVENT_LEFT = 5,
    /// The rank has joined.
    VMMC_EVENT_JOINED = 6,
    /// The node of the rank is lost; `text` says which and why.
    VMMC_EVENT_NODE_LOST = 7,
    /// Nothing of the job runs any more; the last event.
    VMMC_EVENT_ENDED = 8,
}
use vmmc_event_kind::*;

/// Something that happened in a job. What it points to is valid until the next call for an event of
/// the same job.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct vmmc_job_event {
    /// What.
    pub kind: vmmc_event_kind,
    /// Whom it is about.
    pub rank: u32,
    /// Process id, or exit code.
    pub number: i64,
    /// Why, where there is a reason; never NULL.
    pub text: *const c_char,
    /// What was printed.
    pub data: *const c_void,
    /// Its bytes.
    pub len: usize,
}

fn told(event: JobEvent) -> Vec<Told> {
    let text = |why: &str| CString::new(why.replace('\0', "?")).unwrap_or_default();
    let blank = |kind, rank| Told { kind, rank, number: 0, text: CString::default(), data: Vec::new() };
    match event {
        JobEvent::Started { rank, pid } => vec![Told { number: i64::from(pid), ..blank(VMMC_EVENT_STARTED, rank) }],
        JobEvent::NotStarted { rank, why, .. } => {
            vec![Told { text: text(&why), ..blank(VMMC_EVENT_NOT_STARTED, rank) }]
        }
        JobEvent::Output { rank, stream, bytes } => {
            let kind = if stream == Stream::Out { VMMC_EVENT_OUTPUT } else { VMMC_EVENT_ERROR_OUTPUT };
            vec![Told { data: bytes, ..blank(kind, rank) }]
        }
        JobEvent::Exited { rank, exit } => {
            let number = match exit {
                Exit::Code(code) => i64::from(code),
                Exit::Signal(signal) => -i64::from(signal),
            };
            vec![Told { number, text: text(&exit.to_string()), ..blank(VMMC_EVENT_EXITED, rank) }]
        }
        JobEvent::Left { rank } => vec![blank(VMMC_EVENT_LEFT, rank)],
        JobEvent::Joined { ranks } => ranks.into_iter().map(|rank| blank(VMMC_EVENT_JOINED, rank)).collect(),
        JobEvent::NodeLost { node, ranks, why } => {
            let why = text(&format!("{node}: {why}"));
            ranks.into_iter().map(|rank| Told { text: why.clone(), ..blank(VMMC_EVENT_NODE_LOST, rank) }).collect()
        }
        JobEvent::Ended => vec![blank(VMMC_EVENT_ENDED, 0)],
    }
}

impl Object {
    fn lock(&self) -> Result<MutexGuard<'_, State>, Failure> {
        match self.0.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::new(VMMC_BUSY, "another thread waits for an event of this job"))
            }
        }
    }
}

unsafe fn launch(options: *const vmmc_launch_options) -> Result<Launch, Failure> {
    // SAFETY: the caller's word, passed on.
    let options = unsafe { options::read(options) }?;
    known_flags(options.flags, VMMC_LAUNCH_KEEP_GOING | VMMC_LAUNCH_INPUT, "launch options")?;
    // SAFETY: strings and lists of the caller's options.
    let (program, args, env, node, cwd, places) = unsafe {
        (
            string(options.program, "program")?,
            strings(options.args, options.arg_count, "args")?,
            strings(options.env, options.env_count, "env")?,
            optional_string(options.node, "node")?,
            optional_string(options.cwd, "cwd")?,
            list(options.places, options.place_count, "places")?,
        )
    };
    let mut launch = Launch::new(program).args(args).ranks(options.ranks.max(1));
    launch = launch.keep_going(options.flags & VMMC_LAUNCH_KEEP_GOING != 0);
    launch = launch.input((options.flags & VMMC_LAUNCH_INPUT != 0).then_some(options.input_rank));
    for variable in &env {
        let wrong = || Failure::invalid(format!("`env` {variable:?} is not NAME=VALUE"));
        let (name, value) = variable.split_once('=').ok_or_else(wrong)?;
        launch = launch.env(name, value);
    }
    if !places.is_empty() {
        // SAFETY: strings of the caller's list.
        let place = |p: &vmmc_job_place| unsafe {
            Ok(Place { node: optional_string(p.node, "places")?.map(str::to_string), ranks: p.ranks })
        };
        launch = launch.places(places.iter().map(place).collect::<Result<_, Failure>>()?);
    }
    if let Some(node) = node {
        launch = launch.node(node);
    }
    if let Some(cwd) = cwd {
        launch = launch.current_dir(cwd);
    }
    if let Some(timeout) = optional(options.timeout_us)? {
        launch = launch.timeout(timeout);
    }
    Ok(launch)
}

/// Starts a job. Whether the program was found is told later, by VMMC_EVENT_NOT_STARTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_job_launch(
    options: *const vmmc_launch_options,
    launched: *mut *mut vmmc_launched,
) -> vmmc_status {
    let start = || {
        // SAFETY: options of the caller.
        let job = unsafe { launch(options) }?.start()?;
        put(handle::Object::Launched(Object(Mutex::new(State { job, waiting: VecDeque::new(), last: None }))))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(launched, "launched", start) }
}

/// The next event; VMMC_AGAIN when the time has passed, and after VMMC_EVENT_ENDED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_launched_next_event(
    launched: *const vmmc_launched,
    timeout_us: i64,
    event: *mut vmmc_job_event,
) -> vmmc_status {
    let next = || {
        let object = get(launched)?;
        let mut guard = object.lock()?;
        let state = &mut *guard;
        if state.waiting.is_empty() {
            let timeout = duration(timeout_us).unwrap_or(vmmc::limits::TIMEOUT_DEFAULT);
            if let Some(event) = state.job.next_event(timeout)? {
                state.waiting.extend(told(event));
            }
        }
        let next = state.waiting.pop_front().ok_or_else(|| Failure::new(VMMC_AGAIN, "no event of the job"))?;
        let told = state.last.insert(next);
        let (text, data, len) = (told.text.as_ptr(), told.data.as_ptr().cast(), told.data.len());
        Ok(vmmc_job_event { kind: told.kind, rank: told.rank, number: told.number, text, data, len })
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(event, "event", next) }
}

/// Gives a rank bytes on its standard input; `taken` says how many were taken. The others have to
/// wait until the rank reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_launched_write_input(
    launched: *const vmmc_launched,
    rank: u32,
    data: *const c_void,
    len: usize,
    taken: *mut usize,
) -> vmmc_status {
    let write = || {
        // SAFETY: memory of the caller.
        let data = unsafe { bytes(data, len, "data") }?;
        Ok(get(launched)?.lock()?.job.write_input(rank, data))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(taken, "taken", write) }
}

/// Ends the standard input of a rank.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_launched_close_input(launched: *const vmmc_launched, rank: u32) -> vmmc_status {
    call(|| {
        get(launched)?.lock()?.job.close_input(rank);
        Ok(())
    })
}

/// Sends a signal to all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_launched_signal(launched: *const vmmc_launched, signal: c_int) -> vmmc_status {
    call(|| {
        get(launched)?.lock()?.job.signal(signal);
        Ok(())
    })
}

/// Ends the job: SIGTERM, and SIGKILL a second later; `at_once`: SIGKILL now. VMMC_EVENT_ENDED
/// tells when it is done.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_launched_end(launched: *const vmmc_launched, at_once: bool) -> vmmc_status {
    call(|| {
        let object = get(launched)?;
        let job = &mut object.lock()?.job;
        if at_once {
            job.kill()
        } else {
            job.end()
        }
        Ok(())
    })
}

/// Adds ranks on the nodes that have the fewest; `added` says how many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_launched_grow(
    launched: *const vmmc_launched,
    ranks: u32,
    added: *mut usize,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(added, "added", || Ok(get(launched)?.lock()?.job.grow(ranks).len())) }
}

/// Frees the job, which ends it if it runs.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_launched_free(launched: *mut vmmc_launched) -> vmmc_status {
    call(|| handle::free(launched))
}
