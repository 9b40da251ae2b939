//! Calls as futures, of any executor, and a thread that takes answers for them.
//!
//! The first future of a client that is polled starts the thread; it ends with the client. While no
//! call is under way it sleeps.
//!
//! Invariant: whoever waits by a future is woken by whichever thread takes the answer, or finds
//! that the time is over. Source: [GMS §3] deferred continuations, which a thread of their own
//! runs.

use crate::client::{Answer, Client, Inner, Pending};
use crate::error::RpcError;
use crate::limits::LIVENESS_EVERY;
use crate::typed::Typed;
use serde::de::DeserializeOwned;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use vmmc_host::{Deadline, Nanos};

impl Client {
    /// Starts a thread that takes answers and runs continuations, so that nobody need poll or wait.
    /// It ends when the last clone of the client is dropped. Starts one at most; a future of the
    /// client starts it too.
    ///
    /// # Errors
    /// [`RpcError::System`]: no thread can be had.
    pub fn background(&self) -> Result<(), RpcError> {
        self.inner.must_be_here()?;
        let _starting = self.inner.starting.lock().expect("no panic while the lock is held");
        if self.inner.background.get().is_none() {
            let inner = Arc::downgrade(&self.inner);
            let thread = std::thread::Builder::new().name("vmmc-rpc-answers".into()).spawn(move || run(&inner));
            let service = || self.service().to_string();
            let thread = thread.map_err(|e| RpcError::System { service: service(), why: e.to_string() })?;
            let _ = self.inner.background.set(thread.thread().clone());
        }
        Ok(())
    }
}

fn run(inner: &Weak<Inner>) {
    while let Some(inner) = inner.upgrade() {
        if inner.is_idle() {
            drop(inner);
            // A call that begins unparks it.
            std::thread::park_timeout(LIVENESS_EVERY);
        } else {
            inner.drive(Deadline(Nanos::MAX));
        }
    }
}

impl Future for Pending {
    type Output = Result<Answer, RpcError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.client.background() {
            return Poll::Ready(Err(error));
        }
        match self.collect_or_wake(context.waker()) {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}

impl<T: DeserializeOwned> Future for Typed<T> {
    type Output = Result<T, RpcError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        Pin::new(&mut this.pending)
            .poll(context)
            .map(|outcome| outcome.and_then(|answer| this.client.decode(this.method, &answer.result)))
    }
}
