//! The start of an application by one of its processes.
//!
//! Invariant: a process controls at most one application, or is a node of one.

use crate::calls::questions;
use crate::memory::read;
use crate::messages::text;
use crate::process::{nx, with};
use std::ffi::{CStr, c_char, c_int, c_long, c_ulong};
use std::path::PathBuf;
use vmmc_nx::{Application, NxError, Partition};

/// Whether `vmmc run`, or `nx_nfork` of another process, has started this one.
pub(crate) fn is_node() -> bool {
    std::env::var_os("VMMC_JOB").is_some()
}

/// The `-sz N` of a command line, which is taken out of it.
///
/// # Safety
/// `argc` and `argv` are those of `main`, or null.
unsafe fn size_of_command_line(argc: *mut c_int, argv: *mut *mut c_char) -> Option<u32> {
    if argc.is_null() || argv.is_null() {
        return None;
    }
    // SAFETY: the caller's promise: `argc` words, and a null pointer behind them.
    let words = unsafe { std::slice::from_raw_parts_mut(argv, usize::try_from(*argc).ok()? + 1) };
    // SAFETY: each is a string.
    let word = |at: usize| unsafe { CStr::from_ptr(words[at]) }.to_bytes();
    let at = (1..words.len().saturating_sub(2)).find(|at| word(*at) == b"-sz")?;
    let size = std::str::from_utf8(word(at + 1)).ok()?.parse().ok()?;
    words.copy_within(at + 2.., at);
    // SAFETY: as above.
    unsafe { *argc -= 2 };
    Some(size)
}

/// # Safety
/// `nodes` is null, or `n` of them; `pids` the same, to be written.
unsafe fn begin(
    nodes: *const c_long,
    n: c_long,
    pids: *mut c_long,
    start: impl FnOnce(&Partition, Option<&[c_long]>) -> Result<Application, NxError>,
) -> Result<c_long, NxError> {
    // SAFETY: the caller's promise.
    let list = if n == -1 { None } else { Some(unsafe { read(nodes, n, "the nodes") }?) };
    let partition = with(|process| match (process.controls, &process.partition) {
        (true, _) => Err(NxError::Started),
        (false, None) => Err(NxError::NoApplication),
        (false, Some(partition)) => Ok(partition.clone()),
    })?;
    let application = start(&partition, list)?;
    let started = application.pids();
    if !pids.is_null() {
        // SAFETY: the caller's promise: there is one for each node that got a process.
        unsafe { std::ptr::copy_nonoverlapping(started.as_ptr(), pids, started.len()) };
    }
    with(|process| {
        process.controls = true;
        process.application = Some(application);
    });
    Ok(started.len() as c_long)
}

questions! {
    /// Has nodes for an application; gives how many.
    fn nx_initve, _nx_initve(
        partition: *const c_char, size: c_long, _account: *const c_char, argc: *mut c_int, argv: *mut *mut c_char,
    ) -> c_long {
        // SAFETY: the caller's promise.
        let said = unsafe { size_of_command_line(argc, argv) };
        if is_node() {
            return Ok(nx()?.numnodes());
        }
        // SAFETY: the caller's promise.
        let names = if partition.is_null() { String::new() } else { unsafe { text(partition) } };
        let here = || std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let count = match (said, size) {
            (Some(count), _) => count,
            (None, 0 | -1) => here(),
            (None, size) => u32::try_from(size).map_err(|_| NxError::Length { len: size })?,
        };
        with(|process| {
            if process.controls {
                return Err(NxError::Started);
            }
            process.partition = Some(Partition::new(&names, count));
            Ok(count.into())
        })
    }

    /// Starts this program on nodes: 0 there, and the number of processes here.
    fn nx_nfork, _nx_nfork(nodes: *const c_long, n: c_long, ptype: c_long, pids: *mut c_long) -> c_long {
        if is_node() {
            return nx().map(|_| 0);
        }
        // SAFETY: the caller's promise.
        unsafe { begin(nodes, n, pids, |partition, list| partition.fork(list, ptype)) }
    }

    /// Starts a program on nodes; gives the number of processes.
    fn nx_load, _nx_load(
        nodes: *const c_long, n: c_long, ptype: c_long, pids: *mut c_long, path: *const c_char,
    ) -> c_long {
        if is_node() {
            return Err(NxError::Started);
        }
        if path.is_null() {
            return Err(NxError::Null { what: "the path" });
        }
        // SAFETY: the caller's promise.
        let path = PathBuf::from(unsafe { text(path) });
        // SAFETY: the same.
        unsafe { begin(nodes, n, pids, |partition, list| partition.load(&path, list, ptype)) }
    }

    /// Waits until all processes have ended; gives how many have failed.
    fn nx_waitall, _nx_waitall() -> c_long {
        let application = with(|process| process.application.take()).ok_or(NxError::NotStarted)?;
        let failed = application.wait();
        failed.iter().for_each(|(node, how)| eprintln!("node {node}: {how}"));
        Ok(failed.len() as c_long)
    }

    /// The nodes of the application, in memory to be freed by `free`.
    fn nx_app_nodes, _nx_app_nodes(_pgroup: c_long, nodes: *mut *mut c_long, count: *mut c_ulong) -> c_long {
        if nodes.is_null() || count.is_null() {
            return Err(NxError::Null { what: "the place for nodes, or for their number" });
        }
        // SAFETY: no addresses.
        let size = unsafe { crate::messages::_numnodes() };
        if size < 0 {
            return Err(NxError::NoApplication);
        }
        let bytes = usize::try_from(size).unwrap_or_default().max(1) * size_of::<c_long>();
        // SAFETY: the result is looked at.
        let list = unsafe { libc::malloc(bytes) }.cast::<c_long>();
        if list.is_null() {
            return Err(NxError::Length { len: size });
        }
        // SAFETY: the list has `size` longs; the caller's promise for the other two.
        unsafe {
            (0..size).for_each(|node| *list.add(node as usize) = node);
            *nodes = list;
            *count = size as c_ulong;
        }
        Ok(0)
    }
}
