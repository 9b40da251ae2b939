//! Messages, ids, probes, and who and where a process is.
//!
//! Invariant: `msginfo` has what is known of the last message, unless the program gave a place of
//! its own.

use crate::calls::{calls, questions};
use crate::memory::{Lent, LentRoom, read, write};
use crate::process::{last_error, msginfo, note, nx, tell};
use std::ffi::{CStr, c_char, c_long, c_ulong, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use vmmc_nx::{ANY, Done, Info};

/// The address of `msginfo`, as a place that a program gives.
pub(crate) fn own_info() -> *mut c_long {
    (&raw const msginfo).cast::<c_long>().cast_mut()
}

/// Whether there is a message, of which `into` is told.
///
/// # Safety
/// `into` is null, or eight longs that may be written.
unsafe fn found(info: Option<Info>, into: *mut c_long) -> c_long {
    let is_there = info.is_some().into();
    // SAFETY: the caller's promise.
    info.into_iter().for_each(|info| unsafe { tell(info, into) });
    is_there
}

fn over(_done: Done) {}

calls! {
    /// Sends a message.
    fn csend, _csend(ty: c_long, buf: *const c_void, count: c_long, node: c_long, ptype: c_long) {
        // SAFETY: the caller's promise.
        let bytes = unsafe { read(buf.cast::<u8>(), count, "the buffer") }?;
        nx()?.csend(ty, bytes, node, ptype)
    }

    /// Receives a message.
    fn crecv, _crecv(typesel: c_long, buf: *mut c_void, count: c_long) {
        // SAFETY: the caller's promise.
        let room = unsafe { write(buf.cast::<u8>(), count, "the buffer") }?;
        nx()?.crecv(typesel, room).map(note)
    }

    /// Receives a message of a node and a process type.
    fn crecvx, _crecvx(
        typesel: c_long, buf: *mut c_void, count: c_long, nodesel: c_long, ptypesel: c_long, info: *mut c_long,
    ) {
        // SAFETY: the caller's promise.
        let room = unsafe { write(buf.cast::<u8>(), count, "the buffer") }?;
        let received = nx()?.crecvx(typesel, room, nodesel, ptypesel)?;
        // SAFETY: the caller's promise.
        unsafe { tell(received, info) };
        Ok(())
    }

    /// Waits for a message under way.
    fn msgwait, _msgwait(id: c_long) {
        nx()?.msgwait(id).map(over)
    }

    /// Lets an id go.
    fn msgignore, _msgignore(id: c_long) {
        nx()?.msgignore(id)
    }

    /// Takes a message back.
    fn msgcancel, _msgcancel(id: c_long) {
        nx()?.msgcancel(id)
    }

    /// Waits for a message, which stays.
    fn cprobe, _cprobe(typesel: c_long) {
        nx()?.cprobe(typesel).map(note)
    }

    /// Waits for a message of a node and a process type, which stays.
    fn cprobex, _cprobex(typesel: c_long, nodesel: c_long, ptypesel: c_long, info: *mut c_long) {
        let found = nx()?.cprobex(typesel, nodesel, ptypesel)?;
        // SAFETY: the caller's promise.
        unsafe { tell(found, info) };
        Ok(())
    }

    /// Drops messages that wait.
    fn flushmsg, _flushmsg(typesel: c_long, nodesel: c_long, ptypesel: c_long) {
        nx()?.flushmsg(typesel, nodesel, ptypesel)
    }

    /// Gives the process a process type.
    fn setptype, _setptype(ptype: c_long) {
        nx()?.setptype(ptype)
    }
}

questions! {
    /// Begins to send a message.
    fn isend, _isend(ty: c_long, buf: *const c_void, count: c_long, node: c_long, ptype: c_long) -> c_long {
        // SAFETY: the caller's promise.
        let payload = unsafe { Lent::new(buf, count, null_mut()) }?;
        nx()?.isend(ty, payload, node, ptype)
    }

    /// Begins to receive a message.
    fn irecv, _irecv(typesel: c_long, buf: *mut c_void, count: c_long) -> c_long {
        // SAFETY: the caller's promise.
        let room = LentRoom(unsafe { Lent::new(buf, count, own_info()) }?);
        nx()?.irecv(typesel, room)
    }

    /// Begins to receive a message of a node and a process type.
    fn irecvx, _irecvx(
        typesel: c_long, buf: *mut c_void, count: c_long, nodesel: c_long, ptypesel: c_long, info: *mut c_long,
    ) -> c_long {
        // SAFETY: the caller's promise.
        let room = LentRoom(unsafe { Lent::new(buf, count, info) }?);
        nx()?.irecvx(typesel, room, nodesel, ptypesel)
    }

    /// Sends a message and receives another one; gives the bytes of that.
    fn csendrecv, _csendrecv(
        ty: c_long, sbuf: *const c_void, scount: c_long, node: c_long, ptype: c_long,
        typesel: c_long, rbuf: *mut c_void, rcount: c_long,
    ) -> c_long {
        // SAFETY: the caller's promise; the two do not overlap.
        let bytes = unsafe { read(sbuf.cast::<u8>(), scount, "the buffer to send") }?;
        // SAFETY: the same.
        let room = unsafe { write(rbuf.cast::<u8>(), rcount, "the buffer to receive") }?;
        let info = nx()?.csendrecv(ty, bytes, node, ptype, typesel, room)?;
        note(info);
        Ok(info.count)
    }

    /// Begins to send a message and to receive another one.
    fn isendrecv, _isendrecv(
        ty: c_long, sbuf: *const c_void, scount: c_long, node: c_long, ptype: c_long,
        typesel: c_long, rbuf: *mut c_void, rcount: c_long,
    ) -> c_long {
        // SAFETY: the caller's promise.
        let payload = unsafe { Lent::new(sbuf, scount, null_mut()) }?;
        // SAFETY: the same.
        let room = LentRoom(unsafe { Lent::new(rbuf, rcount, own_info()) }?);
        nx()?.isendrecv(ty, payload, node, ptype, typesel, room)
    }

    /// Whether a message under way is over.
    fn msgdone, _msgdone(id: c_long) -> c_long {
        Ok(nx()?.msgdone(id)?.is_some().into())
    }

    /// One id for two messages.
    fn msgmerge, _msgmerge(id1: c_long, id2: c_long) -> c_long {
        nx()?.msgmerge(id1, id2)
    }

    /// Whether a message waits.
    fn iprobe, _iprobe(typesel: c_long) -> c_long {
        let info = nx()?.iprobe(typesel)?;
        // SAFETY: `msginfo` is eight longs, and known by its address.
        Ok(unsafe { found(info, own_info()) })
    }

    /// Whether a message of a node and a process type waits.
    fn iprobex, _iprobex(typesel: c_long, nodesel: c_long, ptypesel: c_long, info: *mut c_long) -> c_long {
        let found_info = nx()?.iprobex(typesel, nodesel, ptypesel)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { found(found_info, info) })
    }

    /// Bytes of the last message.
    fn infocount, _infocount() -> c_long {
        Ok(msginfo[1].load(Ordering::Relaxed))
    }

    /// Node of the sender of the last message.
    fn infonode, _infonode() -> c_long {
        Ok(msginfo[2].load(Ordering::Relaxed))
    }

    /// Type of the last message.
    fn infotype, _infotype() -> c_long {
        Ok(msginfo[0].load(Ordering::Relaxed))
    }

    /// Process type of the sender of the last message.
    fn infoptype, _infoptype() -> c_long {
        Ok(msginfo[3].load(Ordering::Relaxed))
    }

    /// Node of this process.
    fn mynode, _mynode() -> c_long {
        Ok(nx()?.mynode())
    }

    /// Nodes of the application.
    fn numnodes, _numnodes() -> c_long {
        let controlled = crate::process::with(|process| process.partition.clone().filter(|_| !crate::applications::is_node()));
        match controlled {
            Some(partition) => Ok(partition.numnodes().into()),
            None => Ok(nx()?.numnodes()),
        }
    }

    /// Process type of this process.
    fn myptype, _myptype() -> c_long {
        Ok(nx()?.myptype())
    }

    /// Seconds.
    fn dclock, _dclock() -> f64 {
        Ok(vmmc_nx::dclock())
    }
}

/// Milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn mclock() -> c_ulong {
    vmmc_nx::mclock()
}

/// Milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn _mclock() -> c_ulong {
    vmmc_nx::mclock()
}

/// Prints the last error of this thread.
///
/// # Safety
/// `before` is null, or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nx_perror(before: *const c_char) {
    if before.is_null() {
        return eprintln!("{}", last_error());
    }
    // SAFETY: the caller's promise.
    let before = unsafe { text(before) };
    eprintln!("{before}: {}", last_error());
}

/// # Safety
/// It is a string.
pub(crate) unsafe fn text(string: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

const _: () = assert!(ANY == -1 && size_of::<c_long>() == 8);
