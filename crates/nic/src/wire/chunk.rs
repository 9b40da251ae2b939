//! Chunks: the reliable, ordered part of a session.

use super::{Reader, Writer};
use crate::command::AtomicOp;
use crate::error::{ErrorArgs, ImportError, OpError};
use crate::ids::ExportId;
use crate::limits::{EXPORT_NAME_BYTES_MAX, LENGTH_BYTES_MAX};
use crate::rights::{ExportKind, ImportTarget, Owner, Rights};
use crate::tokens::TokenPart;

/// First byte of a chunk; frames that are no chunks are below.
pub(crate) const CHUNK_FIRST: u8 = 0x10;

pub(crate) const WRITE: u8 = 0x10;
pub(crate) const NOP: u8 = 0x11;
pub(crate) const ABORT: u8 = 0x12;
pub(crate) const FETCH_REQUEST: u8 = 0x13;
pub(crate) const FETCH_DATA: u8 = 0x14;
pub(crate) const FETCH_FAIL: u8 = 0x15;
pub(crate) const ATOMIC_REQUEST: u8 = 0x16;
pub(crate) const ATOMIC_REPLY: u8 = 0x17;
pub(crate) const ATOMIC_FAIL: u8 = 0x18;
pub(crate) const ERROR: u8 = 0x19;
pub(crate) const IMPORT_REQUEST: u8 = 0x1a;
pub(crate) const IMPORT_GRANT: u8 = 0x1b;
pub(crate) const IMPORT_FAIL: u8 = 0x1c;
pub(crate) const IMPORT_CANCEL: u8 = 0x1d;
pub(crate) const UNIMPORT: u8 = 0x1e;
pub(crate) const REVOKED: u8 = 0x1f;
pub(crate) const ECHO: u8 = 0x20;
pub(crate) const ECHO_REPLY: u8 = 0x21;
pub(crate) const MESSAGE: u8 = 0x22;
pub(crate) const APPEND: u8 = 0x23;

/// Flags of a write and a nop.
pub(crate) const FLAG_ACK_NOW: u8 = 1;
pub(crate) const FLAG_NOTIFY: u8 = 2;
pub(crate) const FLAG_COUNTER: u8 = 4;
/// Flag of a write: a new send begins.
pub(crate) const FLAG_FIRST: u8 = 8;
/// Flag of a write: it goes into the buffer of a token.
pub(crate) const FLAG_TOKEN: u8 = 16;
/// Flag of fetched data: nothing follows.
pub(crate) const FLAG_LAST: u8 = 1;

/// Bytes of a write before its data, without and with what notification and counter add.
pub(crate) const WRITE_BYTES: usize = 22;
pub(crate) const WRITE_NOTIFY_BYTES: usize = 24;
pub(crate) const WRITE_COUNTER_BYTES: usize = 8;
pub(crate) const WRITE_TOKEN_BYTES: usize = 28;
pub(crate) const FETCH_DATA_BYTES: usize = 22;
pub(crate) const FETCH_REQUEST_BYTES: usize = 41;
pub(crate) const ATOMIC_REQUEST_BYTES: usize = 42;
pub(crate) const ATOMIC_REPLY_BYTES: usize = 17;
pub(crate) const NOP_BYTES: usize = 2;
pub(crate) const UNIMPORT_BYTES: usize = 9;
/// Bytes of an append before its data.
pub(crate) const APPEND_BYTES: usize = 26;
/// Bytes of a message before its contents.
pub(crate) const MESSAGE_BYTES: usize = 5;
/// No other control chunk is longer: an import request with the longest name.
pub(crate) const CONTROL_BYTES_MAX: usize = 320;

/// Which import, in the numbers of its owner; the exporter only gives it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handle {
    pub(crate) process: u32,
    pub(crate) import: u64,
}

/// A decoded chunk.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Chunk<'a> {
    Write {
        head: WriteHead,
        data: &'a [u8],
    },
    Nop {
        ack_now: bool,
    },
    /// In place of a write whose sender is gone: the rest of that send is void too.
    Abort {
        grant: u64,
    },
    /// Of `len` bytes from `offset` in the export on, which are from `start` on in the fetch.
    FetchRequest {
        ticket: u64,
        grant: u64,
        offset: u64,
        start: u64,
        len: u64,
    },
    FetchData {
        ticket: u64,
        offset: u64,
        last: bool,
        data: &'a [u8],
    },
    FetchFail {
        ticket: u64,
        why: OpError,
    },
    AtomicRequest {
        ticket: u64,
        grant: u64,
        offset: u64,
        op: AtomicOp,
    },
    AtomicReply {
        ticket: u64,
        old: u64,
    },
    AtomicFail {
        ticket: u64,
        why: OpError,
    },
    /// Chunk `seq` of the other direction failed.
    Error {
        seq: u64,
        why: OpError,
    },
    ImportRequest {
        handle: Handle,
        uid: u32,
        rights: Rights,
        owner: Owner,
        wait: bool,
        what: ImportTarget,
    },
    ImportGrant {
        handle: Handle,
        grant: u64,
        export: ExportId,
        owner: u32,
        len: u64,
        rights: Rights,
        notify: bool,
        redirectable: bool,
        kind: ExportKind,
    },
    ImportFail {
        handle: Handle,
        why: ImportError,
    },
    ImportCancel {
        handle: Handle,
        what: ImportTarget,
    },
    Unimport {
        grant: u64,
    },
    Revoked {
        handle: Handle,
        why: OpError,
    },
    Echo {
        token: u64,
    },
    EchoReply {
        token: u64,
    },
    /// A record for a ring.
    Append {
        head: AppendHead,
        data: &'a [u8],
    },
    /// From driver to driver; the engine does not inspect it.
    Message {
        data: &'a [u8],
    },
}

impl<'a> Chunk<'a> {
    /// Takes one chunk; its first byte is still in `reader`.
    #[inline]
    pub(crate) fn read(reader: &mut Reader<'a>) -> Option<Chunk<'a>> {
        match reader.u8()? {
            WRITE => read_write(reader),
            FETCH_DATA => {
                let (ticket, offset, last, len) = read_fetch_head(reader)?;
                Some(Chunk::FetchData { ticket, offset, last, data: reader.bytes(len as usize)? })
            }
            APPEND => read_append(reader),
            MESSAGE => {
                let len = reader.u32()?;
                Some(Chunk::Message { data: reader.bytes(len as usize)? })
            }
            kind => read_control(kind, reader),
        }
    }

    /// Writes a chunk whose data, if any, is at hand.
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        match *self {
            Chunk::Write { head, data } => {
                head.write(data.len() as u32, out);
                out.bytes(data);
            }
            Chunk::FetchData { ticket, offset, last, data } => {
                write_fetch_head(ticket, offset, last, data.len() as u32, out);
                out.bytes(data);
            }
            Chunk::Append { head, data } => {
                head.write(data.len() as u32, out);
                out.bytes(data);
            }
            _ => self.write_control(out),
        }
    }

    fn write_control(&self, out: &mut Writer<'_>) {
        match self {
            Chunk::Write { .. } | Chunk::FetchData { .. } | Chunk::Append { .. } => {
                unreachable!("written by `write`")
            }
            Chunk::Message { data } => {
                out.u8(MESSAGE);
                out.u32(data.len() as u32);
                out.bytes(data);
            }
            Chunk::Nop { ack_now } => {
                out.u8(NOP);
                out.u8(if *ack_now { FLAG_ACK_NOW } else { 0 });
            }
            Chunk::Abort { grant } => put(out, ABORT, &[*grant]),
            Chunk::FetchRequest { ticket, grant, offset, start, len } => {
                put(out, FETCH_REQUEST, &[*ticket, *grant, *offset, *start, *len]);
            }
            Chunk::FetchFail { ticket, why } => {
                put(out, FETCH_FAIL, &[*ticket]);
                write_error(why.code(), why.args(), out);
            }
            Chunk::AtomicRequest { ticket, grant, offset, op } => {
                put(out, ATOMIC_REQUEST, &[*ticket, *grant, *offset]);
                let (code, a, b) = match *op {
                    AtomicOp::FetchAdd(n) => (0, n, 0),
                    AtomicOp::CompareSwap { expected, desired } => (1, expected, desired),
                    AtomicOp::Swap(new) => (2, new, 0),
                };
                put(out, code, &[a, b]);
            }
            Chunk::AtomicReply { ticket, old } => put(out, ATOMIC_REPLY, &[*ticket, *old]),
            Chunk::AtomicFail { ticket, why } => {
                put(out, ATOMIC_FAIL, &[*ticket]);
                write_error(why.code(), why.args(), out);
            }
            Chunk::Error { seq, why } => {
                put(out, ERROR, &[*seq]);
                write_error(why.code(), why.args(), out);
            }
            Chunk::ImportRequest { handle, uid, rights, owner, wait, what } => {
                write_handle(IMPORT_REQUEST, *handle, out);
                out.u32(*uid);
                out.u8(rights.bits());
                write_owner(*owner, out);
                out.u8((*wait).into());
                write_target(what, out);
            }
            Chunk::ImportGrant { handle, grant, export, owner, len, rights, notify, redirectable, kind } => {
                write_handle(IMPORT_GRANT, *handle, out);
                out.u64(*grant);
                out.u64(export.to_u64());
                out.u32(*owner);
                out.u64(*len);
                out.u8(rights.bits());
                let (kind, entries) = match *kind {
                    ExportKind::Memory => (0, 0),
                    ExportKind::Ring => (1, 0),
                    ExportKind::Tokens { entries } => (2, entries),
                };
                out.u8(u8::from(*notify) | u8::from(*redirectable) << 1 | kind << 2);
                out.u32(entries);
            }
            Chunk::ImportFail { handle, why } => {
                write_handle(IMPORT_FAIL, *handle, out);
                write_error(why.code(), why.args(), out);
            }
            Chunk::ImportCancel { handle, what } => {
                write_handle(IMPORT_CANCEL, *handle, out);
                write_target(what, out);
            }
            Chunk::Unimport { grant } => put(out, UNIMPORT, &[*grant]),
            Chunk::Revoked { handle, why } => {
                write_handle(REVOKED, *handle, out);
                write_error(why.code(), why.args(), out);
            }
            Chunk::Echo { token } => put(out, ECHO, &[*token]),
            Chunk::EchoReply { token } => put(out, ECHO_REPLY, &[*token]),
        }
    }
}

/// A write without its data.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct WriteHead {
    pub(crate) ack_now: bool,
    /// A new send begins here; the chunks of one grant are never mixed.
    pub(crate) first: bool,
    pub(crate) grant: u64,
    pub(crate) offset: u64,
    /// Offset and length of the whole send, and the word of its sender.
    pub(crate) notify: Option<(u64, u64, u64)>,
    pub(crate) counter: Option<u64>,
    /// The offset is then that in the payload.
    pub(crate) token: Option<TokenPart>,
}

impl WriteHead {
    /// Of a send that is one chunk, with which nothing comes.
    #[inline]
    pub(crate) fn whole(ack_now: bool, grant: u64, offset: u64) -> WriteHead {
        WriteHead { ack_now, first: true, grant, offset, notify: None, counter: None, token: None }
    }

    #[inline]
    pub(crate) fn write(&self, len: u32, out: &mut Writer<'_>) {
        out.u8(WRITE);
        let mut flags = if self.ack_now { FLAG_ACK_NOW } else { 0 };
        if self.first {
            flags |= FLAG_FIRST;
        }
        if self.notify.is_some() {
            flags |= FLAG_NOTIFY;
        }
        if self.counter.is_some() {
            flags |= FLAG_COUNTER;
        }
        if self.token.is_some() {
            flags |= FLAG_TOKEN;
        }
        out.u8(flags);
        out.u64(self.grant);
        out.u64(self.offset);
        out.u32(len);
        if let Some((offset, len, word)) = self.notify {
            out.u64(offset);
            out.u64(len);
            out.u64(word);
        }
        if let Some(counter) = self.counter {
            out.u64(counter);
        }
        if let Some(TokenPart { index, key, tag, total }) = self.token {
            out.u32(index);
            [key, tag, total].iter().for_each(|word| out.u64(*word));
        }
    }
}

/// Whose data a chunk brings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Brings {
    Write(WriteHead),
    Fetch { ticket: u64, offset: u64 },
}

/// An append without its data.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct AppendHead {
    pub(crate) ack_now: bool,
    pub(crate) notify: bool,
    pub(crate) grant: u64,
    /// Of appends through this grant, that the sender knows of.
    pub(crate) refusals: u32,
    pub(crate) word: u64,
}

impl AppendHead {
    pub(crate) fn write(&self, len: u32, out: &mut Writer<'_>) {
        out.u8(APPEND);
        let notify = if self.notify { FLAG_NOTIFY } else { 0 };
        out.u8(notify | if self.ack_now { FLAG_ACK_NOW } else { 0 });
        out.u64(self.grant);
        out.u32(self.refusals);
        out.u64(self.word);
        out.u32(len);
    }
}

#[inline]
pub(crate) fn write_fetch_head(ticket: u64, offset: u64, last: bool, len: u32, out: &mut Writer<'_>) {
    out.u8(FETCH_DATA);
    out.u8(if last { FLAG_LAST } else { 0 });
    out.u64(ticket);
    out.u64(offset);
    out.u32(len);
}

/// Takes a chunk up to its data, of which it gives the bytes. `None`: it brings none, or this is
/// not all of its head.
pub(crate) fn read_head(reader: &mut Reader<'_>) -> Option<(Brings, u32)> {
    match reader.u8()? {
        WRITE => read_write_head(reader).map(|(head, len)| (Brings::Write(head), len)),
        FETCH_DATA => {
            let (ticket, offset, _, len) = read_fetch_head(reader)?;
            Some((Brings::Fetch { ticket, offset }, len))
        }
        _ => None,
    }
}

/// Ticket, offset, whether it is the last, and bytes of data; its first byte is gone.
#[inline]
fn read_fetch_head(reader: &mut Reader<'_>) -> Option<(u64, u64, bool, u32)> {
    let last = reader.u8()? & FLAG_LAST != 0;
    Some((reader.u64()?, reader.u64()?, last, reader.u32()?))
}

#[inline]
fn read_write<'a>(reader: &mut Reader<'a>) -> Option<Chunk<'a>> {
    let (head, len) = read_write_head(reader)?;
    Some(Chunk::Write { head, data: reader.bytes(len as usize)? })
}

/// Takes a write up to its data, of which it gives the bytes; its first byte is gone.
#[inline]
fn read_write_head(reader: &mut Reader<'_>) -> Option<(WriteHead, u32)> {
    let flags = reader.u8()?;
    let (grant, offset, len) = (reader.u64()?, reader.u64()?, reader.u32()?);
    let notify = if flags & FLAG_NOTIFY != 0 { Some((reader.u64()?, reader.u64()?, reader.u64()?)) } else { None };
    let counter = if flags & FLAG_COUNTER != 0 { Some(reader.u64()?) } else { None };
    let token = if flags & FLAG_TOKEN != 0 { Some(read_token(reader)?) } else { None };
    let (ack_now, first) = (flags & FLAG_ACK_NOW != 0, flags & FLAG_FIRST != 0);
    Some((WriteHead { ack_now, first, grant, offset, notify, counter, token }, len))
}

fn read_token(reader: &mut Reader<'_>) -> Option<TokenPart> {
    let index = reader.u32()?;
    Some(TokenPart { index, key: reader.u64()?, tag: reader.u64()?, total: reader.u64()? })
}

fn read_append<'a>(reader: &mut Reader<'a>) -> Option<Chunk<'a>> {
    let flags = reader.u8()?;
    let (grant, refusals, word) = (reader.u64()?, reader.u32()?, reader.u64()?);
    let len = reader.u32()?;
    let head =
        AppendHead { ack_now: flags & FLAG_ACK_NOW != 0, notify: flags & FLAG_NOTIFY != 0, grant, refusals, word };
    Some(Chunk::Append { head, data: reader.bytes(len as usize)? })
}

fn read_control<'a>(kind: u8, reader: &mut Reader<'a>) -> Option<Chunk<'a>> {
    Some(match kind {
        NOP => Chunk::Nop { ack_now: reader.u8()? & FLAG_ACK_NOW != 0 },
        ABORT => Chunk::Abort { grant: reader.u64()? },
        FETCH_REQUEST => {
            let (ticket, grant) = (reader.u64()?, reader.u64()?);
            let (offset, start, len) = (reader.u64()?, reader.u64()?, reader.u64()?);
            if len > LENGTH_BYTES_MAX || start > LENGTH_BYTES_MAX {
                return None;
            }
            Chunk::FetchRequest { ticket, grant, offset, start, len }
        }
        FETCH_FAIL => Chunk::FetchFail { ticket: reader.u64()?, why: read_op_error(reader)? },
        ATOMIC_REQUEST => {
            let (ticket, grant, offset) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let (code, a, b) = (reader.u8()?, reader.u64()?, reader.u64()?);
            let op = match code {
                0 => AtomicOp::FetchAdd(a),
                1 => AtomicOp::CompareSwap { expected: a, desired: b },
                2 => AtomicOp::Swap(a),
                _ => return None,
            };
            Chunk::AtomicRequest { ticket, grant, offset, op }
        }
        ATOMIC_REPLY => Chunk::AtomicReply { ticket: reader.u64()?, old: reader.u64()? },
        ATOMIC_FAIL => Chunk::AtomicFail { ticket: reader.u64()?, why: read_op_error(reader)? },
        ERROR => Chunk::Error { seq: reader.u64()?, why: read_op_error(reader)? },
        IMPORT_REQUEST => Chunk::ImportRequest {
            handle: read_handle(reader)?,
            uid: reader.u32()?,
            rights: Rights::from_bits(reader.u8()?)?,
            owner: read_owner(reader)?,
            wait: reader.u8()? & 1 != 0,
            what: read_target(reader)?,
        },
        IMPORT_GRANT => {
            let (handle, grant) = (read_handle(reader)?, reader.u64()?);
            let (export, owner, len) = (ExportId::from_u64(reader.u64()?), reader.u32()?, reader.u64()?);
            let (rights, flags) = (Rights::from_bits(reader.u8()?)?, reader.u8()?);
            if len > LENGTH_BYTES_MAX {
                return None;
            }
            let (notify, redirectable) = (flags & 1 != 0, flags & 2 != 0);
            let kind = match (flags >> 2 & 3, reader.u32()?) {
                (0, 0) => ExportKind::Memory,
                (1, 0) => ExportKind::Ring,
                (2, entries) => ExportKind::Tokens { entries },
                _ => return None,
            };
            Chunk::ImportGrant { handle, grant, export, owner, len, rights, notify, redirectable, kind }
        }
        IMPORT_FAIL => {
            let handle = read_handle(reader)?;
            let (code, args) = read_error(reader)?;
            Chunk::ImportFail { handle, why: ImportError::from_code(code, args)? }
        }
        IMPORT_CANCEL => Chunk::ImportCancel { handle: read_handle(reader)?, what: read_target(reader)? },
        UNIMPORT => Chunk::Unimport { grant: reader.u64()? },
        REVOKED => Chunk::Revoked { handle: read_handle(reader)?, why: read_op_error(reader)? },
        ECHO => Chunk::Echo { token: reader.u64()? },
        ECHO_REPLY => Chunk::EchoReply { token: reader.u64()? },
        _ => return None,
    })
}

fn put(out: &mut Writer<'_>, kind: u8, words: &[u64]) {
    out.u8(kind);
    words.iter().for_each(|word| out.u64(*word));
}

fn write_handle(kind: u8, handle: Handle, out: &mut Writer<'_>) {
    out.u8(kind);
    out.u32(handle.process);
    out.u64(handle.import);
}

fn read_handle(reader: &mut Reader<'_>) -> Option<Handle> {
    Some(Handle { process: reader.u32()?, import: reader.u64()? })
}

fn write_error(code: u16, args: ErrorArgs, out: &mut Writer<'_>) {
    out.u16(code);
    args.iter().for_each(|arg| out.u64(*arg));
}

fn read_error(reader: &mut Reader<'_>) -> Option<(u16, ErrorArgs)> {
    Some((reader.u16()?, [reader.u64()?, reader.u64()?, reader.u64()?]))
}

fn read_op_error(reader: &mut Reader<'_>) -> Option<OpError> {
    let (code, args) = read_error(reader)?;
    OpError::from_code(code, args)
}

fn write_owner(owner: Owner, out: &mut Writer<'_>) {
    let (code, user) = match owner {
        Owner::OwnOrRoot => (0, 0),
        Owner::User(user) => (1, user),
        Owner::Any => (2, 0),
    };
    out.u8(code);
    out.u32(user);
}

fn read_owner(reader: &mut Reader<'_>) -> Option<Owner> {
    Some(match (reader.u8()?, reader.u32()?) {
        (0, 0) => Owner::OwnOrRoot,
        (1, user) => Owner::User(user),
        (2, 0) => Owner::Any,
        _ => return None,
    })
}

fn write_target(what: &ImportTarget, out: &mut Writer<'_>) {
    match what {
        ImportTarget::Id(id) => {
            out.u8(0);
            out.u64(id.to_u64());
        }
        ImportTarget::Name(name) => {
            out.u8(1);
            out.short_text(name);
        }
    }
}

fn read_target(reader: &mut Reader<'_>) -> Option<ImportTarget> {
    Some(match reader.u8()? {
        0 => ImportTarget::Id(ExportId::from_u64(reader.u64()?)),
        1 => {
            let name = reader.short_text()?;
            if name.is_empty() || name.len() > EXPORT_NAME_BYTES_MAX {
                return None;
            }
            ImportTarget::Name(name.to_owned())
        }
        _ => return None,
    })
}
