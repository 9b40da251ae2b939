//! Sessions: a process's attachment to its node.
//!
//! Invariant: a session ends with its handle and the last handle made with it.

use crate::failure::{Failure, call, give};
use crate::handle::{self, get, handle, put};
use crate::memory::{bytes_mut, give_string, optional_string, string, strings};
use crate::options::{self, Options, known_flags};
use crate::status::vmmc_status;
use crate::wait::{duration, optional, within};
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;
use vmmc::{ImportId, PinOptions, ProcessId, Sender, Session, SessionBuilder};

/// A process's attachment to its node: the door to exports, imports, buffers and notifications.
pub struct vmmc_session(());

pub(crate) type Object = Session;
handle!(vmmc_session, Session, Object, "session");

/// For `flags` of vmmc_session_options: do not start a node when none runs.
pub const VMMC_SESSION_NO_START: u32 = 1;

/// Choices for vmmc_session_attach().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_session_options {
    /// sizeof (vmmc_session_options).
    pub size: usize,
    /// Name of the node of this user; NULL: $VMMC_NODE, else "default".
    pub node: *const c_char,
    /// VMMC_SESSION_NO_START.
    pub flags: u32,
    /// Default of all waits of the session, microseconds; 0: five seconds.
    pub timeout_us: i64,
}

// SAFETY: plain data that starts with its size.
unsafe impl Options for vmmc_session_options {
    const NAME: &'static str = "session options";
}

/// Bounds of a session, for programs that plan.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vmmc_limits {
    /// Bytes of a send that travel inside the descriptor.
    pub inline_bytes: u64,
    /// Transfers through the engine that can be outstanding at once; further ones wait.
    pub transfers: u64,
    /// Exports of one process.
    pub exports: u64,
    /// Redirections of one process at once.
    pub redirections: u64,
    /// Threads that run mapped transfers without sharing a lane.
    pub lanes: u64,
    /// Notifications that queue for one export before further ones are counted as lost.
    pub notifications_queued: u64,
    /// Largest export, bytes.
    pub export_bytes: u64,
}

/// What a session has done so far. Later releases may add fields at the end: pass sizeof
/// (vmmc_stats) to vmmc_session_stats().
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct vmmc_stats {
    /// Sends by copying into mapped memory.
    pub sends_mapped: u64,
    /// Their bytes.
    pub send_bytes_mapped: u64,
    /// Sends through the engine with the data in the descriptor.
    pub sends_inline: u64,
    /// Sends through the engine by way of staging memory.
    pub sends_staged: u64,
    /// Sends through the engine from registered memory.
    pub sends_registered: u64,
    /// Bytes of all sends through the engine.
    pub send_bytes_engine: u64,
    /// Fetches by copying from mapped memory.
    pub fetches_mapped: u64,
    /// Their bytes.
    pub fetch_bytes_mapped: u64,
    /// Fetches through the engine.
    pub fetches_engine: u64,
    /// Their bytes.
    pub fetch_bytes_engine: u64,
    /// Atomic operations on mapped memory, counters of sends included.
    pub atomics_mapped: u64,
    /// Atomic operations through the engine.
    pub atomics_engine: u64,
    /// Notifications asked for on mapped imports.
    pub notifications_sent: u64,
    /// Of those, the ones that found the ring to the receiver full.
    pub notifications_lost_sending: u64,
    /// Notifications that came.
    pub notifications_received: u64,
    /// Notifications handed to waiters and handlers.
    pub notifications_taken: u64,
    /// Notifications lost on the way to this process because a ring was full.
    pub notifications_lost_in_rings: u64,
    /// Notifications lost in this process because an export's queue was full.
    pub notifications_lost_in_queue: u64,
    /// Notifications for exports that had ended, and those that their sender could not have caused.
    pub notifications_stale: u64,
    /// Waits that blocked in the kernel.
    pub sleeps: u64,
    /// Calls to the node.
    pub calls: u64,
    /// Transfers from and to pinned memory of the caller's.
    pub pin_transfers: u64,
    /// Their pages.
    pub pin_lookups: u64,
    /// Of those, the ones that were not pinned yet.
    pub pin_check_misses: u64,
    /// Pages pinned.
    pub pin_pins: u64,
    /// Pages unpinned.
    pub pin_unpins: u64,
    /// Of those, the ones that a limit forced out.
    pub pin_evictions: u64,
    /// Transfers of whole pages that were copied, because their memory cannot be pinned.
    pub pin_copied: u64,
    /// Pages pinned now.
    pub pinned_pages: u64,
}

/// The choices of the caller as a builder.
pub(crate) unsafe fn builder(options: *const vmmc_session_options) -> Result<SessionBuilder, Failure> {
    // SAFETY: the caller's word, passed on.
    let options = unsafe { options::read(options) }?;
    known_flags(options.flags, VMMC_SESSION_NO_START, "session options")?;
    let mut builder = Session::builder().start_node(options.flags & VMMC_SESSION_NO_START == 0);
    // SAFETY: a string of the caller's options.
    if let Some(node) = unsafe { optional_string(options.node, "node") }? {
        builder = builder.node(node);
    }
    if let Some(timeout) = optional(options.timeout_us)? {
        builder = builder.timeout(timeout);
    }
    Ok(builder)
}

/// Attaches to the user's node, starting it when none runs. `options` may be NULL.
///
/// The node is started with the program $VMMC_BIN, else `vmmc` beside the running program, above
/// it, or on PATH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_attach(
    options: *const vmmc_session_options,
    session: *mut *mut vmmc_session,
) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(session, "session", || put(handle::Object::Session(builder(options)?.attach()?))) }
}

/// Frees the session. It stays attached until all exports, imports and buffers made with it are
/// freed too.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_session_free(session: *mut vmmc_session) -> vmmc_status {
    call(|| handle::free(session))
}

/// Leaves the node at once, as the end of the process would: exports end, later calls fail.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_session_leave(session: *const vmmc_session) -> vmmc_status {
    call(|| {
        get(session)?.leave();
        Ok(())
    })
}

/// Name of the node; free it with vmmc_string_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_node(session: *const vmmc_session, name: *mut *mut c_char) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(name, "name", || Ok(give_string(&get(session)?.node().name))) }
}

/// Id of this process on its node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_process(session: *const vmmc_session, process: *mut u32) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(process, "process", || Ok(get(session)?.process_id())) }
}

/// Whether the node is still there, as far as is known without asking it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_alive(session: *const vmmc_session, alive: *mut bool) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(alive, "alive", || Ok(get(session)?.is_alive())) }
}

/// Runs an embedded node once; does nothing with a daemon. For programs that compute for long
/// between calls.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_session_step(session: *const vmmc_session) -> vmmc_status {
    call(|| {
        get(session)?.step();
        Ok(())
    })
}

/// Bounds of the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_limits(session: *const vmmc_session, limits: *mut vmmc_limits) -> vmmc_status {
    let read = || {
        let limits = get(session)?.limits();
        Ok(vmmc_limits {
            inline_bytes: limits.inline_bytes as u64,
            transfers: limits.transfers as u64,
            exports: limits.exports as u64,
            redirections: limits.redirections as u64,
            lanes: limits.lanes as u64,
            notifications_queued: limits.notifications_queued as u64,
            export_bytes: limits.export_bytes,
        })
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(limits, "limits", read) }
}

/// Counters of the session. `size` is sizeof (vmmc_stats); fields that this library does not know
/// are left as they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_stats(
    session: *const vmmc_session,
    stats: *mut vmmc_stats,
    size: usize,
) -> vmmc_status {
    call(|| {
        if stats.is_null() || !stats.is_aligned() {
            return Err(Failure::invalid("`stats` is NULL or misaligned"));
        }
        let value = read_stats(&*get(session)?);
        let known = size.min(size_of::<vmmc_stats>());
        // SAFETY: the caller has `size` bytes there, and we have as many as we know.
        unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), stats.cast::<u8>(), known) };
        Ok(())
    })
}

fn read_stats(session: &Session) -> vmmc_stats {
    let stats = session.stats();
    vmmc_stats {
        sends_mapped: stats.sends_mapped,
        send_bytes_mapped: stats.send_bytes_mapped,
        sends_inline: stats.sends_inline,
        sends_staged: stats.sends_staged,
        sends_registered: stats.sends_registered,
        send_bytes_engine: stats.send_bytes_engine,
        fetches_mapped: stats.fetches_mapped,
        fetch_bytes_mapped: stats.fetch_bytes_mapped,
        fetches_engine: stats.fetches_engine,
        fetch_bytes_engine: stats.fetch_bytes_engine,
        atomics_mapped: stats.atomics_mapped,
        atomics_engine: stats.atomics_engine,
        notifications_sent: stats.notifications_sent,
        notifications_lost_sending: stats.notifications_lost_sending,
        notifications_received: stats.notifications_received,
        notifications_taken: stats.notifications_taken,
        notifications_lost_in_rings: stats.notifications_lost_in_rings,
        notifications_lost_in_queue: stats.notifications_lost_in_queue,
        notifications_stale: stats.notifications_stale,
        sleeps: stats.sleeps,
        calls: stats.calls,
        pin_transfers: stats.pin_transfers,
        pin_lookups: stats.pin_lookups,
        pin_check_misses: stats.pin_check_misses,
        pin_pins: stats.pin_pins,
        pin_unpins: stats.pin_unpins,
        pin_evictions: stats.pin_evictions,
        pin_copied: stats.pin_copied,
        pinned_pages: stats.pinned_pages,
    }
}

/// Description of the node as JSON; `details` lists exports, imports and processes too. Free it
/// with vmmc_string_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_node_info(
    session: *const vmmc_session,
    details: bool,
    timeout_us: i64,
    json: *mut *mut c_char,
) -> vmmc_status {
    let ask = || {
        let info = within(timeout_us, || get(session)?.node_info(details).map_err(Failure::from))?;
        Ok(give_string(&serde_json::to_string(&info).expect("a description has no maps with odd keys")))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(json, "json", ask) }
}

/// Name of the node at the other end of a session that a notification names (`sender_session`), or
/// NULL if that session has ended; 0 is this node. Free it with vmmc_string_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_node_of(
    session: *const vmmc_session,
    sender_session: u32,
    timeout_us: i64,
    node: *mut *mut c_char,
) -> vmmc_status {
    let ask = || {
        let from = Sender { session: sender_session, process: ProcessId(0), import: ImportId::from_u64(0) };
        let name = within(timeout_us, || get(session)?.node_of(from).map_err(Failure::from))?;
        Ok(name.map_or(std::ptr::null_mut(), |name| give_string(&name)))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(node, "node", ask) }
}

/// Round trip from engine to engine, nanoseconds. `node` is a name or `address:port`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_ping(
    session: *const vmmc_session,
    node: *const c_char,
    timeout_us: i64,
    rtt_ns: *mut u64,
) -> vmmc_status {
    let ping = || {
        let session = get(session)?;
        let timeout = duration(timeout_us).unwrap_or(session.timeout());
        // SAFETY: a string of the caller.
        let rtt: Duration = session.ping(unsafe { string(node, "node") }?, timeout)?;
        Ok(u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX))
    };
    // SAFETY: pointers are as the header asks.
    unsafe { give(rtt_ns, "rtt_ns", ping) }
}

/// Makes the node know a peer by its addresses (`address:port`; several are several paths to one
/// node).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_add_peer(
    session: *const vmmc_session,
    addresses: *const *const c_char,
    count: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: a list of strings of the caller.
        let addresses = unsafe { strings(addresses, count, "addresses") }?;
        Ok(get(session)?.add_peer(&addresses)?)
    })
}

/// Ends the node, for all its processes. Only its own user and root may.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_session_stop_node(session: *const vmmc_session) -> vmmc_status {
    call(|| Ok(get(session)?.stop_node()?))
}

/// Sets the most pages that vmmc_import_send_pinned() and vmmc_import_fetch_pinned() keep pinned at
/// a time. Before the first of them; VMMC_BUSY afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn vmmc_session_set_pinned_max(session: *const vmmc_session, pages_max: usize) -> vmmc_status {
    call(|| {
        if get(session)?.set_pinning(PinOptions::default().pages_max(pages_max)) {
            return Ok(());
        }
        Err(Failure::new(
            vmmc_status::VMMC_BUSY,
            "memory has been pinned already; set the limit before the first transfer",
        ))
    })
}

/// Ends the pinning of memory: its whole pages are private memory again. Needed before `mremap`
/// over pinned and other memory, and good before pinned memory is unmapped: it is noticed
/// otherwise, but this costs less.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_forget(
    session: *const vmmc_session,
    memory: *mut c_void,
    len: usize,
) -> vmmc_status {
    call(|| {
        // SAFETY: memory of the caller.
        let memory = unsafe { bytes_mut(memory, len, "memory") }?;
        Ok(get(session)?.forget(memory)?)
    })
}

/// A descriptor for event loops (poll, epoll): readable when vmmc_session_take_notification() may
/// have something, and for ever when the node has gone. Only wait for it to be readable, then take
/// until VMMC_AGAIN; do not read or close it. When vmmc_session_alive() says no, wait for it no
/// longer. It is valid as long as the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmmc_session_event_fd(session: *const vmmc_session, fd: *mut c_int) -> vmmc_status {
    // SAFETY: pointers are as the header asks.
    unsafe { give(fd, "fd", || Ok(get(session)?.event_fd()?.as_raw_fd())) }
}
