//! Handlers of messages, and their mask.
//!
//! Invariant: a handler of the program is called once; an error of its message ends the program,
//! because nobody else could be told.

use crate::calls::{calls, questions};
use crate::memory::{Lent, LentRoom};
use crate::messages::own_info;
use crate::process::{end, handling, nx};
use std::ffi::{c_long, c_void};
use std::ptr::null_mut;
use vmmc_nx::{ANY, Done, Info, Nx, NxError};

/// `handler(type, count, node, ptype)`.
type Plain = Option<extern "C" fn(c_long, c_long, c_long, c_long)>;
/// `xhandler(type, count, node, ptype, hparam)`.
type Extended = Option<extern "C" fn(c_long, c_long, c_long, c_long, c_long)>;
/// `xhandler(hparam)` of hsendx.
type Sent = Option<extern "C" fn(c_long)>;

/// What runs when a message is over; `sent` is what it is told of a send.
fn of(name: &'static str, sent: Info, call: impl Fn(Info) + Send) -> impl FnOnce(&Nx, Result<Done, NxError>) + Send {
    move |_, done| match done {
        Ok(done) => handling(|| call(done.info().unwrap_or(sent))),
        Err(error) => end(name, &error.to_string()),
    }
}

fn plain(handler: Plain) -> Result<impl Fn(Info) + Send, NxError> {
    let handler = handler.ok_or(NxError::Null { what: "the handler" })?;
    Ok(move |info: Info| handler(info.ty, info.count, info.node, info.ptype))
}

fn extended(handler: Extended, parameter: c_long) -> Result<impl Fn(Info) + Send, NxError> {
    let handler = handler.ok_or(NxError::Null { what: "the handler" })?;
    Ok(move |info: Info| handler(info.ty, info.count, info.node, info.ptype, parameter))
}

calls! {
    /// Begins to send a message, with a handler.
    fn hsend, _hsend(ty: c_long, buf: *const c_void, count: c_long, node: c_long, ptype: c_long, handler: Plain) {
        let (handler, sent) = (plain(handler)?, Info { ty, count, node, ptype });
        // SAFETY: the caller's promise.
        let payload = unsafe { Lent::new(buf, count, null_mut()) }?;
        nx()?.hsend(ty, payload, node, ptype, of("hsend", sent, handler))
    }

    /// Begins to receive a message, with a handler.
    fn hrecv, _hrecv(typesel: c_long, buf: *mut c_void, count: c_long, handler: Plain) {
        let handler = plain(handler)?;
        // SAFETY: the caller's promise.
        let room = LentRoom(unsafe { Lent::new(buf, count, own_info()) }?);
        nx()?.hrecv(typesel, room, of("hrecv", Info::default(), handler))
    }

    /// Begins to send a message and to receive another one, with a handler.
    fn hsendrecv, _hsendrecv(
        ty: c_long, sbuf: *const c_void, scount: c_long, node: c_long, ptype: c_long,
        typesel: c_long, rbuf: *mut c_void, rcount: c_long, handler: Plain,
    ) {
        let handler = plain(handler)?;
        // SAFETY: the caller's promise.
        let payload = unsafe { Lent::new(sbuf, scount, null_mut()) }?;
        // SAFETY: the same.
        let room = LentRoom(unsafe { Lent::new(rbuf, rcount, own_info()) }?);
        nx()?.hsendrecv(ty, payload, node, ptype, typesel, room, of("hsendrecv", Info::default(), handler))
    }

    /// Begins to send a message, with a handler that gets a parameter.
    fn hsendx, _hsendx(
        ty: c_long, buf: *const c_void, count: c_long, node: c_long, ptype: c_long, xhandler: Sent, hparam: c_long,
    ) {
        let handler = xhandler.ok_or(NxError::Null { what: "the handler" })?;
        // SAFETY: the caller's promise.
        let payload = unsafe { Lent::new(buf, count, null_mut()) }?;
        nx()?.hsend(ty, payload, node, ptype, of("hsendx", Info::default(), move |_| handler(hparam)))
    }

    /// Begins to receive a message of a node and a process type, with a handler that gets a
    /// parameter.
    fn hrecvx, _hrecvx(
        typesel: c_long, buf: *mut c_void, count: c_long, nodesel: c_long, ptypesel: c_long, xhandler: Extended,
        hparam: c_long,
    ) {
        let handler = extended(xhandler, hparam)?;
        // SAFETY: the caller's promise.
        let room = LentRoom(unsafe { Lent::new(buf, count, own_info()) }?);
        nx()?.hrecvx(typesel, room, nodesel, ptypesel, of("hrecvx", Info::default(), handler))
    }
}

questions! {
    /// Has handlers wait, or not; gives what was before.
    fn masktrap, _masktrap(state: c_long) -> c_long {
        Ok(nx()?.masktrap(state != 0)?.into())
    }
}

const _: () = assert!(ANY == -1);
