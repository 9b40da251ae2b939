//! BSPlib for C: what `bsp.h` declares.
//!
//! ```text
//!   C program ── bsp.h ──▶ extern "C" calls ── one process of the program ──▶ crate vmmc-bsp
//! ```
//!
//! **Promises.** A call that makes no sense ends the program with a message that names the call,
//! the numbers and what to do, and all other processes with it. A panic ends it too, and never
//! crosses the boundary.
//!
//! **Does not.** It cannot check pointers: memory that is given to a call must be valid for the
//! length given. That contract stands at the head of `bsp.h` instead of at each function.
//!
//! Start reading at `include/bsp.h`.

#![allow(clippy::missing_safety_doc)] // one contract for all calls, above

mod memory;
mod program;

use memory::{copy_out, count, given, lent, name, set, text};
use program::{call, message, with};
use std::ffi::{c_char, c_double, c_int, c_void};
use vmmc_bsp::Place;

/// A function of the program.
type Spmd = Option<extern "C" fn()>;

/// See `bsp.h`, as for all calls.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_begin(maxprocs: c_int) {
    let most = u32::try_from(maxprocs).ok().filter(|most| *most > 0);
    match most {
        Some(most) => program::begin(most),
        None => message("bsp_begin", &format!("{maxprocs} processes; give 1 or more")),
    }
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub extern "C" fn bsp_end() {
    program::end();
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub extern "C" fn bsp_init(spmd: Spmd, _argc: c_int, _argv: *mut *mut c_char) {
    let Some(spmd) = spmd else { message("bsp_init", "a function is needed, not NULL") };
    if program::init() {
        spmd();
        std::process::exit(0);
    }
}

/// The text of `bsp_abort`, which C has made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_bsp_abort_text(words: *const c_char) {
    // SAFETY: C gives its own array, which ends with a zero.
    program::abort(&unsafe { text(words) })
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub extern "C" fn bsp_nprocs() -> c_int {
    program::nprocs() as c_int
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub extern "C" fn bsp_pid() -> c_int {
    with("bsp_pid", |process| process.pid() as c_int)
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub extern "C" fn bsp_time() -> c_double {
    with("bsp_time", |process| process.time().as_secs_f64())
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub extern "C" fn bsp_sync() {
    call("bsp_sync", |process| process.sync());
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub extern "C" fn bsp_push_reg(ident: *const c_void, size: c_int) {
    let size = positive("bsp_push_reg", "size", size);
    call("bsp_push_reg", |process| process.push_reg(name(ident).map(|name| Place::new(name, size))));
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub extern "C" fn bsp_pop_reg(ident: *const c_void) {
    call("bsp_pop_reg", |process| process.pop_reg(name(ident)));
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_put(pid: c_int, src: *const c_void, dst: *mut c_void, offset: c_int, nbytes: c_int) {
    // SAFETY: the contract of both calls is the same.
    unsafe { put("bsp_put", pid, src, dst, offset, nbytes) }
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_hpput(pid: c_int, src: *const c_void, dst: *mut c_void, offset: c_int, nbytes: c_int) {
    // SAFETY: the contract of both calls is the same.
    unsafe { put("bsp_hpput", pid, src, dst, offset, nbytes) }
}

/// # Safety
/// That of `bsp.h`: `nbytes` bytes are at `src`.
unsafe fn put(what: &str, pid: c_int, src: *const c_void, dst: *mut c_void, offset: c_int, nbytes: c_int) {
    let (offset, len) = (positive(what, "offset", offset), positive(what, "nbytes", nbytes));
    // SAFETY: the program says that so many bytes are there, and it is in this call.
    let bytes = not_null(what, "src", unsafe { given(src, len) });
    let area = not_null(what, "dst", name(dst));
    let pid = number(what, pid);
    call(what, |process| process.put(pid, area, offset, bytes));
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub extern "C" fn bsp_get(pid: c_int, src: *const c_void, offset: c_int, dst: *mut c_void, nbytes: c_int) {
    get("bsp_get", pid, src, offset, dst, nbytes);
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub extern "C" fn bsp_hpget(pid: c_int, src: *const c_void, offset: c_int, dst: *mut c_void, nbytes: c_int) {
    get("bsp_hpget", pid, src, offset, dst, nbytes);
}

fn get(what: &str, pid: c_int, src: *const c_void, offset: c_int, dst: *mut c_void, nbytes: c_int) {
    let (offset, len) = (positive(what, "offset", offset), positive(what, "nbytes", nbytes));
    let (area, to) = (not_null(what, "src", name(src)), not_null(what, "dst", name(dst)));
    let pid = number(what, pid);
    call(what, |process| process.get(pid, (area, offset), (Place::new(to, len), 0), len));
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_set_tagsize(tag_nbytes: *mut c_int) {
    // SAFETY: the program says that an int is there, or NULL.
    let size = not_null("bsp_set_tagsize", "tag_nbytes", unsafe { tag_nbytes.as_ref() });
    let size = positive("bsp_set_tagsize", "*tag_nbytes", *size);
    let before = call("bsp_set_tagsize", |process| process.set_tagsize(size));
    // SAFETY: as above.
    unsafe { set(tag_nbytes, before) }
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_send(pid: c_int, tag: *const c_void, payload: *const c_void, payload_nbytes: c_int) {
    let len = positive("bsp_send", "payload_nbytes", payload_nbytes);
    let size = with("bsp_send", |process| process.tagsize());
    // SAFETY: the program says that so many bytes are there, as many as a tag has, and it is in
    // this call.
    let (tag, bytes) = unsafe { (given(tag, size), given(payload, len)) };
    let (tag, bytes) = (not_null("bsp_send", "tag", tag), not_null("bsp_send", "payload", bytes));
    let pid = number("bsp_send", pid);
    call("bsp_send", |process| process.send(pid, tag, bytes));
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_qsize(nmessages: *mut c_int, accum_nbytes: *mut c_int) {
    let (messages, bytes) = with("bsp_qsize", |process| process.qsize());
    // SAFETY: the program says that ints are there, or NULL.
    unsafe {
        set(nmessages, messages);
        set(accum_nbytes, bytes);
    }
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_get_tag(status: *mut c_int, tag: *mut c_void) {
    with("bsp_get_tag", |process| match process.first() {
        // SAFETY: the program says that an int is there, and as many bytes as a tag has, or NULL.
        Some((bytes, payload)) => unsafe {
            copy_out(bytes, tag);
            set(status, payload.len() as u64);
        },
        // SAFETY: the same.
        None if !status.is_null() => unsafe { status.write(-1) },
        None => {}
    });
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_move(payload: *mut c_void, reception_nbytes: c_int) {
    let most = positive("bsp_move", "reception_nbytes", reception_nbytes) as usize;
    let found = with("bsp_move", |process| {
        let bytes = process.take().map(|(_, bytes)| bytes);
        // SAFETY: the program says that so many bytes are there, or NULL.
        bytes.map(|bytes| unsafe { copy_out(&bytes[..bytes.len().min(most)], payload) })
    });
    if found.is_none() {
        message("bsp_move", "the queue is empty; bsp_qsize says how many messages there are");
    }
}

#[allow(missing_docs)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_hpmove(tag_ptr: *mut *mut c_void, payload_ptr: *mut *mut c_void) -> c_int {
    if tag_ptr.is_null() || payload_ptr.is_null() {
        message("bsp_hpmove", "places for two pointers are needed, not NULL");
    }
    with("bsp_hpmove", |process| match process.take() {
        Some((tag, bytes)) => {
            // SAFETY: the program says that pointers are there. What they point to stays until the
            // next sync, which the header says.
            unsafe {
                tag_ptr.write(lent(tag));
                payload_ptr.write(lent(bytes));
            }
            c_int::try_from(bytes.len()).unwrap_or(c_int::MAX)
        }
        None => -1,
    })
}

fn number(what: &str, pid: c_int) -> u32 {
    match u32::try_from(pid) {
        Ok(pid) => pid,
        Err(_) => message(what, &format!("`pid` is {pid}; processes are counted from 0")),
    }
}

fn positive(what: &str, argument: &str, value: c_int) -> u64 {
    match count(value) {
        Some(value) => value,
        None => message(what, &format!("`{argument}` is {value}; give 0 or more")),
    }
}

fn not_null<T>(what: &str, argument: &str, value: Option<T>) -> T {
    match value {
        Some(value) => value,
        None => message(what, &format!("`{argument}` is NULL; give the address of memory of this process")),
    }
}
