//! A call, in the hands of its handler.
//!
//! Invariant: a call is answered once. Dropping it unanswered is an answer too, so its caller waits
//! for nothing; a panic drops it. Source: [GMS §3] server stubs, delegated calls.

use crate::admission::Name;
use crate::client::Client;
use crate::error::RpcError;
use crate::figures::Counted;
use crate::limits::FAILURE_BYTES_MAX;
use crate::link::{Bulk, BulkResult, Changing, Link, NO_BULK, Staying};
use crate::wire::{Request, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vmmc::{AccessError, Frame, Sender, Source};
use vmmc_host::{Deadline, Nanos};

/// A call, which its handler answers, from whatever thread and whenever, or passes on. Dropping it
/// tells the caller that there is no answer.
pub struct Call {
    link: Arc<Link>,
    head: Request,
    came: Came,
    counted: Counted,
    arguments: Vec<u8>,
    bulk: BulkArgument,
    open: bool,
}

/// How a call came.
#[derive(Clone, Copy)]
pub(crate) struct Came {
    pub(crate) deadline: Deadline,
    /// When, if it is found out how long it takes.
    pub(crate) timed_from: Option<Nanos>,
    pub(crate) from: Sender,
}

/// Where bulk that comes with arguments is.
pub(crate) enum BulkArgument {
    /// Copied with the arguments.
    Copied(Vec<u8>),
    /// In a frame, from this byte on.
    InFrame(Frame, u64),
}

impl Call {
    #[inline]
    pub(crate) fn new(
        link: Arc<Link>,
        head: Request,
        (came, counted): (Came, Counted),
        (arguments, bulk): (Vec<u8>, BulkArgument),
    ) -> Call {
        Call { link, head, came, counted, arguments, bulk, open: true }
    }

    pub(crate) fn counted(&self) -> Counted {
        self.counted
    }

    /// When it came, if it is found out how long it takes.
    pub(crate) fn timed_from(&self) -> Option<Nanos> {
        self.came.timed_from
    }

    pub(crate) fn name(&self) -> Name<u64> {
        (self.link.number, self.head.id)
    }

    /// Number of the method.
    pub fn method(&self) -> u16 {
        self.head.method
    }

    /// The arguments.
    pub fn arguments(&self) -> &[u8] {
        &self.arguments
    }

    /// Bytes of bulk that came with them.
    pub fn bulk_len(&self) -> u64 {
        match &self.bulk {
            BulkArgument::Copied(bytes) => bytes.len() as u64,
            BulkArgument::InFrame(frame, start) => frame.len() - start,
        }
    }

    /// Copies bulk out. It is memory that its sender can write: copy what must not change before
    /// you check it.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`]: the range reaches past it.
    pub fn read_bulk(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let (len, size) = (into.len() as u64, self.bulk_len());
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(AccessError::OutOfBounds { offset, len, size });
        }
        match &self.bulk {
            BulkArgument::Copied(bytes) => into.copy_from_slice(&bytes[offset as usize..][..into.len()]),
            BulkArgument::InFrame(frame, start) => frame.read(start + offset, into)?,
        }
        Ok(())
    }

    /// A copy of the bulk.
    pub fn bulk_to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.bulk_len() as usize];
        self.read_bulk(0, &mut copy).expect("it is that long");
        copy
    }

    /// Whether the caller has a buffer for a bulk result.
    pub fn wants_bulk(&self) -> bool {
        self.head.token.is_some()
    }

    /// When the caller stops waiting.
    pub fn deadline(&self) -> Deadline {
        self.came.deadline
    }

    /// Time until then.
    pub fn left(&self) -> Duration {
        self.came.deadline.left(self.link.server.now()).unwrap_or_default()
    }

    /// Whether the caller has withdrawn it, or nobody can any more, for the server or its node has
    /// gone: a handler that works for long looks now and then.
    pub fn is_cancelled(&self) -> bool {
        let over = || self.link.server.over.load(Ordering::Acquire);
        self.link.server.is_here() && (over() || self.link.server.admission().is_withdrawn(&self.name()))
    }

    /// Who sent it here: the caller, or the server that has passed it on. The node vouches for it.
    pub fn from(&self) -> Sender {
        self.came.from
    }

    /// Number of its caller among those of this server: calls of one number are answered to one
    /// endpoint. It is not used again.
    pub fn caller(&self) -> u64 {
        self.link.number
    }

    /// User whose endpoint the answer goes to. That the caller is of this user is its own word,
    /// until it knows something that was in an answer.
    pub fn answered_to(&self) -> u32 {
        self.link.origin.uid
    }

    /// Answers with a result. One of more than 32 MiB is an error for the
    /// caller.
    pub fn answer(self, result: &[u8]) {
        self.end(Status::Done, result, NO_BULK);
    }

    /// Answers with a short result, and a bulk result for the buffer of the caller, from whatever
    /// memory it is in: bytes, a range of an export or of registered memory, or several of them
    /// ([`Gather`](vmmc::Gather)). Without a buffer ([`wants_bulk`](Self::wants_bulk)) the bulk is
    /// dropped. On return its memory may be changed.
    ///
    /// To a caller of this node the bytes go straight from there into its buffer. To one of another
    /// node registered memory goes without a copy, and this returns when that node has it: within
    /// the session's timeout, or as soon as the node is given up. Other memory is copied, as is all
    /// that finds earlier answers waiting, and all on a thread that takes calls, which does not
    /// wait for a caller's node. If the range reaches past its memory the call has
    /// failed, and its caller is told why.
    pub fn answer_with_bulk<'a>(self, result: &[u8], bulk: impl Source<'a>) {
        match (bulk.check(), self.head.token) {
            (Err(error), _) => self.fail(&format!("its bulk result: {error}")),
            (Ok(()), None) => self.end(Status::Done, result, NO_BULK),
            (Ok(()), Some(token)) => self.end(Status::Done, result, Some((token, Changing(bulk)))),
        }
    }

    /// As [`answer_with_bulk`](Self::answer_with_bulk), out of memory that stays as it is until the
    /// caller has the answer: what others write there meanwhile may go instead, in parts. So
    /// registered memory goes to other nodes without a copy on the way from every thread, also one
    /// that takes calls, and nobody waits for a node. Answers that find earlier ones waiting are
    /// copied, and so are those of a caller whose node does not say that it has them.
    pub fn answer_in_place(self, result: &[u8], bulk: impl Source<'static>) {
        match (bulk.check(), self.head.token) {
            (Err(error), _) => self.fail(&format!("its bulk result: {error}")),
            (Ok(()), None) => self.end(Status::Done, result, NO_BULK),
            (Ok(()), Some(token)) => self.end(Status::Done, result, Some((token, Staying(bulk)))),
        }
    }

    /// Says that it failed, and how, in up to 512 bytes.
    pub fn fail(self, message: &str) {
        let end = (0..=message.len().min(FAILURE_BYTES_MAX)).rev().find(|end| message.is_char_boundary(*end));
        self.end(Status::Failed, &message.as_bytes()[..end.unwrap_or(0)], NO_BULK);
    }

    /// Says that there is no such method.
    pub fn no_method(self) {
        self.end(Status::NoMethod, b"", NO_BULK);
    }

    /// Says that the arguments are none of this method.
    pub fn bad_arguments(self) {
        self.end(Status::BadArguments, b"", NO_BULK);
    }

    /// Passes the call on to another server, with other arguments if need be: that one answers the
    /// caller, whose bulk result lands in the caller's buffer. The caller needs no connection to
    /// it; its [`answered_by`](crate::ClientBuilder::answered_by) must admit its user.
    ///
    /// # Errors
    /// The call itself, to be answered, and why it could not be passed on.
    #[allow(clippy::result_large_err)] // the call comes back, which is seldom
    pub fn pass_on(mut self, to: &Client, method: u16, arguments: &[u8]) -> Result<(), (Call, RpcError)> {
        if let Err(error) = to.inner.must_be_here() {
            return Err((self, error));
        }
        let left = self.left();
        if left.is_zero() {
            // Its caller has ended it.
            self.end(Status::Late, b"", NO_BULK);
            return Ok(());
        }
        if let Err(error) = self.link.server.pass_on(&self.name(), to, || {
            let bulk = self.bulk_to_vec();
            let arguments_len = arguments.len() as u32;
            let head = Request { method, left, arguments: arguments_len, ..self.head };
            to.inner.send_forward(head, &self.link.origin, arguments, &bulk)
        }) {
            return Err((self, error));
        }
        self.open = false;
        Ok(())
    }

    /// Lets go of it without a word.
    pub(crate) fn forget(mut self) {
        self.open = false;
    }

    /// Ends it before a handler has begun.
    pub(crate) fn refuse(mut self, status: Status) {
        self.open = false;
        self.link.answer(self.head.id, status, b"");
    }

    fn end<'a>(mut self, status: Status, result: &[u8], bulk: BulkResult<impl Bulk<'a>>) {
        self.close(status, result, bulk);
    }

    fn close<'a>(&mut self, status: Status, result: &[u8], bulk: BulkResult<impl Bulk<'a>>) {
        self.open = false;
        if !self.link.server.is_here() {
            return;
        }
        // First, so that whoever has the answer finds the call gone.
        self.link.server.finished(self, status);
        if !self.link.answer_with_bulk(self.head.id, status, result, bulk) {
            self.link.answer(self.head.id, Status::ResultTooLong, b"");
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.open {
            let status = if std::thread::panicking() { Status::Panicked } else { Status::Unanswered };
            self.close(status, b"", NO_BULK);
        }
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("method", &self.head.method).finish_non_exhaustive()
    }
}
