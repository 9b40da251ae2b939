//! The handler of SIGSEGV: whose fault it is, the wait for its owner, and what becomes of others.
//!
//! Invariants: the handler calls only what signal-safety(7) allows, and system calls; it reads
//! atomics, and keeps `errno`. A fault of nobody's range goes to the handler that was installed
//! before, with the same arguments and mask; where there was none the process ends by this very
//! signal. The handler stays installed for good, for somebody may have come to rely on being behind
//! it. Source: sigaction(2), `SA_SIGINFO`; rt_tgsigqueueinfo(2).

use super::table::{Asked, RANGES, REQUESTS};
use super::{Answer, FaultError, OWNER};
use libc::{c_int, c_void, siginfo_t};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Whether the processor distinguishes loads from stores in a way that we read.
pub(super) const TELLS_STORES: bool = cfg!(target_arch = "x86_64");
/// Of `si_code`: no mapping there.
const SEGV_MAPERR: c_int = 1;
/// Of `si_code`: no right to it.
const SEGV_ACCERR: c_int = 2;
/// Time between two polls for room for a request, ns: all of them wait for other answers.
const SLEEP_NS: u64 = 50_000;

/// What was installed before.
static FORMER: OnceLock<libc::sigaction> = OnceLock::new();
/// It was to be called once, and was.
static FORMER_IS_USED_UP: AtomicBool = AtomicBool::new(false);
/// The thread that answers; 0: none.
static ANSWERING: AtomicI32 = AtomicI32::new(0);

type Plain = extern "C" fn(c_int);
type Informed = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Installs the handler, once; an error if another one has taken its place. One caller at a time.
pub(super) fn install() -> Result<(), FaultError> {
    let ours = on_fault as Informed as usize;
    let former = exchange(None)?;
    match FORMER.get() {
        Some(_) if former.sa_sigaction == ours => return Ok(()),
        Some(_) => return Err(FaultError::Replaced),
        None => {}
    }
    // Before ours, so that the first foreign fault finds it.
    let former = *FORMER.get_or_init(|| former);
    let mut new = former;
    new.sa_sigaction = ours;
    let is_function = former.sa_sigaction != libc::SIG_DFL && former.sa_sigaction != libc::SIG_IGN;
    // A former handler that did not ask for the other stack may need more than there is of it.
    let stack = if is_function { former.sa_flags & libc::SA_ONSTACK } else { libc::SA_ONSTACK };
    new.sa_flags = libc::SA_SIGINFO | stack | former.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART);
    exchange(Some(&new)).map(drop)
}

fn exchange(new: Option<&libc::sigaction>) -> Result<libc::sigaction, FaultError> {
    // SAFETY: all zeros are a valid value of this structure of numbers and a set.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both structures live as long as the call; a new one names a handler of ours with the
    // three arguments that its flags ask for.
    if unsafe { libc::sigaction(libc::SIGSEGV, new, &mut old) } == 0 {
        return Ok(old);
    }
    Err(FaultError::System { call: "sigaction", why: std::io::Error::last_os_error().to_string() })
}

/// The calling thread answers from now on, so nobody can answer it; or it no longer does.
pub(super) fn this_thread_answers(does: bool) {
    ANSWERING.store(if does { thread_id() } else { 0 }, Ordering::SeqCst);
}

pub(super) fn thread_id() -> i32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

fn process_id() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::getpid() as u32 }
}

fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives as long as the call, which this clock cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the thread's own `errno`, which lives as long as the thread.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel, or who passes the signal on, gives a handler with SA_SIGINFO both
    // structures, valid until it returns.
    unsafe {
        if !is_served(&*info, context) {
            pass_on(signal, info, context);
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Waits until the owner of the page has made the access possible; false: nobody does.
///
/// # Safety
/// The context is that of the signal.
unsafe fn is_served(info: &siginfo_t, context: *const c_void) -> bool {
    if !matches!(info.si_code, SEGV_MAPERR | SEGV_ACCERR) {
        return false;
    }
    // SAFETY: with these codes the kernel has set the address.
    let address = unsafe { info.si_addr() } as usize;
    let Some((range, deadline_ns)) = RANGES.find(address) else { return false };
    // SAFETY: the caller's promise.
    let (is_store, is_fetch) = unsafe { what_was_tried(context) };
    if is_fetch {
        return false;
    }
    if process_id() != OWNER.load(Ordering::Relaxed) {
        explain(address, "this process is a fork of the one that serves it");
        return false;
    }
    // It was refused there, and the page closed.
    if RANGES.is_window(range) {
        return false;
    }
    let thread = thread_id();
    if thread == ANSWERING.load(Ordering::SeqCst) {
        explain(address, "the thread that answers page faults met it, and cannot wait for itself");
        return false;
    }
    let until = now_ns().saturating_add(deadline_ns);
    let request = loop {
        match REQUESTS.post(Asked { range, address, is_store, thread }) {
            Some(request) => break request,
            None if now_ns() >= until => {
                explain(address, "too many threads wait for answers to page faults");
                return false;
            }
            None => timed_sleep(),
        }
    };
    // The thread may have looked for the last time before there was a request.
    let is_over = !RANGES.has(range);
    loop {
        let left = until.saturating_sub(now_ns());
        let answer = if is_over || left == 0 { request.give_up() } else { request.await_answer(left) };
        match answer {
            Some(answer) => return answer == Answer::Served,
            // The next try finds nobody.
            None if is_over => return true,
            None if left == 0 => {
                explain(address, "its owner has not answered in time");
                return false;
            }
            None => {}
        }
    }
}

fn timed_sleep() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: SLEEP_NS as libc::c_long };
    // SAFETY: the time lives as long as the call; nobody wants to know what is left of it.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

/// Whether it was a store, and whether an instruction was fetched.
///
/// # Safety
/// The context is that of a SIGSEGV.
#[cfg(target_arch = "x86_64")]
unsafe fn what_was_tried(context: *const c_void) -> (bool, bool) {
    // Bits 1 and 4 of the error code of a page fault (Intel SDM, volume 3, 4.7).
    // SAFETY: the caller vouches for the context.
    let error = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    (error & 1 << 1 != 0, error & 1 << 4 != 0)
}

/// Other processors: not known.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn what_was_tried(_: *const c_void) -> (bool, bool) {
    (false, false)
}

/// Hands a signal that is not ours to the former handler.
///
/// # Safety
/// The arguments are those of our own handler.
unsafe fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(former) = FORMER.get() else { return };
    // SAFETY: the caller's promise.
    let is_sent = unsafe { (*info).si_code } <= 0;
    let is_used_up = former.sa_flags & libc::SA_RESETHAND != 0 && FORMER_IS_USED_UP.swap(true, Ordering::SeqCst);
    match former.sa_sigaction {
        // The kernel would not let a fault be ignored either.
        libc::SIG_IGN if is_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the caller's promise.
            unsafe { end_by(signal, info) };
        }
        _ if is_used_up => {
            // SAFETY: the caller's promise.
            unsafe { end_by(signal, info) };
        }
        function if former.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the program installed this function with SA_SIGINFO, so it takes these three.
            let function: Informed = unsafe { std::mem::transmute(function) };
            function(signal, info, context);
        }
        function => {
            // SAFETY: the program installed this function without SA_SIGINFO, so it takes one.
            let function: Plain = unsafe { std::mem::transmute(function) };
            function(signal);
        }
    }
}

/// Has the process end by this signal, as it would have without a handler, when ours returns.
///
/// # Safety
/// The information is that of the signal.
unsafe fn end_by(signal: c_int, info: *mut siginfo_t) {
    // SAFETY: the default is always a valid disposition; the structure of the signal is valid, and
    // is sent to this very thread, where it waits until the handler returns. Should the kernel
    // refuse, a fault comes again of itself.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), thread_id(), signal, info);
    }
}

/// Ends the process by SIGSEGV, from whatever thread.
pub(super) fn end_process() {
    // SAFETY: the default is always a valid disposition, and the signal goes to this process.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::kill(libc::getpid(), libc::SIGSEGV);
    }
}

/// Says on standard error why a page fault of a served range ends as an error.
pub(super) fn explain(address: usize, why: &str) {
    let mut line = [0u8; 160];
    let mut used = 0;
    let mut digits = [0u8; 16];
    for (digit, at) in digits.iter_mut().rev().zip(0..) {
        *digit = b"0123456789abcdef"[address >> (4 * at) & 15];
    }
    for part in [b"vmmc: no answer to the page fault at address 0x", &digits[..], b": ", why.as_bytes(), b"\n"] {
        let part = &part[..part.len().min(line.len() - used)];
        line[used..used + part.len()].copy_from_slice(part);
        used += part.len();
    }
    // SAFETY: the bytes live as long as the call. Nothing can be done about an error.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), used) };
}
