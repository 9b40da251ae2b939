//! A call as its caller sees it: made, under way, answered.
//!
//! Invariant: an outcome is fetched once, and a call that nobody wants any more is withdrawn.
//! Source: [GMS §3].

use super::{Answer, Begun, Bulk, Landing, Outcome, Pending, Request, Sink, Then, Waits};
use crate::error::RpcError;
use crate::wire;
use std::ops::Range;
use std::task::Waker;
use std::thread::Thread;
use std::time::Duration;
use vmmc::{AccessError, TokenBuffer, TokenRegion};
use vmmc_host::Deadline;

impl<'a> Request<'a> {
    /// The arguments.
    pub fn arguments(mut self, arguments: &'a [u8]) -> Self {
        self.arguments = arguments;
        self
    }

    /// Bulk that goes with them; together they have up to 32 MiB. What is longer than a frame of
    /// the server goes in pieces, and the server copies it together.
    pub fn bulk(mut self, bulk: &'a [u8]) -> Self {
        self.bulk = bulk;
        self
    }

    /// Wants a bulk result, which lands in a buffer of the client.
    pub fn wants_bulk(mut self) -> Self {
        self.landing = Landing::Buffer;
        self
    }

    /// Wants a bulk result, which lands in these bytes of a region of this client
    /// ([`Client::region`](crate::Client::region)) and stays there: no buffer of the client is
    /// used, and nothing is copied. From the call until its [`Bulk`] is dropped no other call can
    /// have any of these bytes.
    pub fn into_region(mut self, region: &'a TokenRegion, bytes: Range<u64>) -> Self {
        self.landing = Landing::Region(region, bytes);
        self
    }

    /// Leaves a result that is too long to come with the answer, more than some 100 bytes, in the
    /// frame that it comes in, [`Answer::frame`]: nothing is copied. The server has that frame
    /// again when it is dropped.
    pub fn in_frame(mut self) -> Self {
        self.in_frame = true;
        self
    }

    /// How long to wait for the answer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Calls, and waits for the answer.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn call(self) -> Result<Answer, RpcError> {
        let client = self.client;
        client.inner.wait(self.begin(Sink::Fetched(None))?)
    }

    /// Calls, and does not wait.
    ///
    /// # Errors
    /// [`RpcError`]: the call was not made.
    pub fn start(self) -> Result<Pending, RpcError> {
        let client = self.client.clone();
        let call = self.begin(Sink::Fetched(None))?;
        Ok(Pending { client, call, fetched: false })
    }

    /// Calls, and has this run when the answer, or an error, is there: in a call of the client from
    /// whatever thread, at the latest by [`Client::poll`] after the deadline. It may call in turn,
    /// and should not wait. If it says [`Then::NotNow`] it runs again later.
    ///
    /// [`Client::poll`]: crate::Client::poll
    ///
    /// # Errors
    /// [`RpcError`]: the call was not made, and this will not run.
    pub fn then(
        self,
        continuation: impl FnMut(&mut Result<Answer, RpcError>) -> Then + Send + 'static,
    ) -> Result<(), RpcError> {
        self.begin(Sink::Then(Box::new(continuation))).map(drop)
    }

    fn begin(self, sink: Sink) -> Result<Begun, RpcError> {
        let Request { client, method, arguments, bulk, landing, in_frame, timeout } = self;
        let inner = &*client.inner;
        let service = || inner.service.clone();
        inner.must_be_here()?;
        let at = inner.clock.about_now(timeout);
        let deadline = Deadline(at + timeout);
        let buffer = inner.arm(landing)?;
        let token = buffer.as_ref().map(TokenBuffer::token);
        let id = {
            let mut known = inner.known();
            let key = known.keys.next().map_err(|e| RpcError::System { service: service(), why: e.to_string() })?;
            let waits = Waits { method, timeout, buffer, in_frame, begun: Vec::new(), sink };
            let begun = known.calls.begin(key, deadline.0, waits);
            begun.ok_or_else(|| RpcError::TooManyCalls { service: service() })?
        };
        let head = wire::Request { id, method, left: timeout, token, arguments: arguments.len() as u32 };
        inner.send_request(head, arguments, bulk, timeout).inspect_err(|_| drop(inner.known().calls.end(id)))?;
        inner.background.get().into_iter().for_each(Thread::unpark);
        Ok(Begun { id, at, deadline })
    }
}

impl Pending {
    /// The outcome, if it is there. Takes answers that have come.
    pub fn poll(&mut self) -> Option<Result<Answer, RpcError>> {
        let inner = &*self.client.inner;
        if let Err(error) = inner.must_be_here() {
            return Some(Err(error));
        }
        let outcome = inner.collect(self.call.id).or_else(|| {
            inner.poll();
            inner.collect(self.call.id)
        });
        self.fetched = outcome.is_some();
        outcome
    }

    /// Waits for the outcome until the deadline of the call.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn wait(mut self) -> Result<Answer, RpcError> {
        self.client.inner.must_be_here()?;
        self.fetched = true;
        self.client.inner.wait(self.call)
    }

    /// Takes the outcome, or has this woken when it is there.
    pub(crate) fn collect_or_wake(&mut self, waker: &Waker) -> Option<Outcome> {
        let mut known = self.client.inner.known();
        let outcome = known.calls.collect(self.call.id);
        if let Some(Waits { sink: Sink::Fetched(place), .. }) = known.calls.get_mut(self.call.id) {
            *place = Some(waker.clone());
        }
        self.fetched = outcome.is_some();
        outcome
    }

    /// The outcome, if it is there within this time. If not, the call goes on, until its deadline.
    pub fn wait_within(&mut self, time: Duration) -> Option<Result<Answer, RpcError>> {
        let until = self.client.inner.clock.deadline(time);
        loop {
            if let Some(outcome) = self.poll() {
                return Some(outcome);
            }
            let inner = &*self.client.inner;
            if until.left(inner.now()).is_none_or(|left| left.is_zero()) {
                return None;
            }
            inner.drive(until.min(self.call.deadline));
        }
    }

    /// Withdraws the call: no handler begins that has not begun, and its bulk result reaches
    /// nobody.
    pub fn cancel(self) {}
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.fetched || self.client.inner.must_be_here().is_err() {
            return;
        }
        let (inner, id) = (&*self.client.inner, self.call.id);
        let (withdrawn, outcome) = {
            let mut known = inner.known();
            (known.calls.end(id), known.calls.collect(id))
        };
        drop(outcome);
        if withdrawn.is_some() {
            inner.withdraw(id);
        }
    }
}

impl Bulk {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`]: the range reaches past the result. [`AccessError::Forked`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let len = into.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(AccessError::OutOfBounds { offset, len, size: self.len });
        }
        self.buffer.read(offset, into)
    }

    /// A copy of all of it.
    ///
    /// # Errors
    /// [`AccessError::Forked`].
    pub fn to_vec(&self) -> Result<Vec<u8>, AccessError> {
        let mut copy = vec![0; self.len as usize];
        self.read(0, &mut copy)?;
        Ok(copy)
    }

    /// First byte, for callers that take the responsibility of shared memory themselves: valid
    /// until this is dropped. A server of the same node could write there at any time.
    pub fn as_ptr(&self) -> *const u8 {
        self.buffer.as_ptr()
    }
}
