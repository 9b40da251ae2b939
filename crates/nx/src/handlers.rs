//! Handlers of messages: they run on a thread of their own, one at a time, when a message has gone
//! or come.
//!
//! Invariant: a handler runs once. None begins between `masktrap(true)` and `masktrap(false)`, and
//! none runs when the first of these has returned to another thread than the handler's.

use crate::error::NxError;
use crate::limits::{HANDLER_IDLE, HANDLER_PAUSE_MIN, HANDLER_TIME, PAUSE_MAX};
use crate::nx::{Inner, Nx, locked};
use crate::pending::{Buffer, Done, Payload, Pending};
use crate::select::ANY;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// What is called when a message has gone or come.
type Handler = Box<dyn FnOnce(&Nx, Result<Done, NxError>) + Send>;

#[derive(Default)]
pub(crate) struct Handlers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<(Pending, Handler)>,
    /// Those that the thread looks at just now.
    looked_at: usize,
    masked: bool,
    /// What the handler that runs has said; it is nobody else's, for no other one runs meanwhile.
    masked_inside: bool,
    running: bool,
    closing: bool,
    thread: Option<ThreadId>,
    time: Option<Duration>,
}

impl Nx {
    /// Begins to send a message; the handler is called when the memory is free.
    ///
    /// # Errors
    /// As for [`isend`](Self::isend).
    pub fn hsend(
        &self,
        ty: i64,
        payload: impl Payload,
        node: i64,
        ptype: i64,
        handler: impl FnOnce(&Nx, Result<Done, NxError>) + Send + 'static,
    ) -> Result<(), NxError> {
        self.inner.handle(Box::new(handler), |inner| inner.begin_send(ty, payload, node, ptype))
    }

    /// Begins to receive a message; the handler is called with it when it has come.
    ///
    /// # Errors
    /// As for [`isend`](Self::isend).
    pub fn hrecv(
        &self,
        typesel: i64,
        buffer: impl Buffer,
        handler: impl FnOnce(&Nx, Result<Done, NxError>) + Send + 'static,
    ) -> Result<(), NxError> {
        self.hrecvx(typesel, buffer, ANY, ANY, handler)
    }

    /// The same, of a node and a process type.
    ///
    /// # Errors
    /// As for [`isend`](Self::isend).
    pub fn hrecvx(
        &self,
        typesel: i64,
        buffer: impl Buffer,
        nodesel: i64,
        ptypesel: i64,
        handler: impl FnOnce(&Nx, Result<Done, NxError>) + Send + 'static,
    ) -> Result<(), NxError> {
        self.inner.handle(Box::new(handler), |inner| inner.begin_receive(typesel, buffer, nodesel, ptypesel))
    }

    /// Begins to send a message and to receive another one; the handler is called when both are
    /// over.
    ///
    /// # Errors
    /// As for [`isend`](Self::isend).
    #[allow(clippy::too_many_arguments, reason = "they are those of NX")]
    pub fn hsendrecv(
        &self,
        ty: i64,
        payload: impl Payload,
        node: i64,
        ptype: i64,
        typesel: i64,
        buffer: impl Buffer,
        handler: impl FnOnce(&Nx, Result<Done, NxError>) + Send + 'static,
    ) -> Result<(), NxError> {
        self.inner.handle(Box::new(handler), |inner| {
            let receive = inner.begin_receive(typesel, buffer, ANY, ANY)?;
            Ok(inner.begin_send(ty, payload, node, ptype)?.and(receive))
        })
    }

    /// Has handlers wait, or lets them go on; says what was before. When it has returned with them
    /// waiting, none runs. A handler has a mask of its own, which holds while it runs.
    ///
    /// # Errors
    /// [`NxError::HandlerRuns`]: one runs, and does not return; they do wait.
    pub fn masktrap(&self, masked: bool) -> Result<bool, NxError> {
        let handlers = &self.inner.handlers;
        let mut state = locked(&handlers.state);
        if state.is_handler() {
            return Ok(std::mem::replace(&mut state.masked_inside, masked));
        }
        let before = std::mem::replace(&mut state.masked, masked);
        handlers.changed.notify_all();
        if masked {
            handlers.until_none_runs(state)?;
        }
        Ok(before)
    }

    /// How long [`masktrap`](Self::masktrap) and the end of the process wait for a handler.
    pub fn handler_time(&self, time: Duration) {
        locked(&self.inner.handlers.state).time = Some(time);
    }

    /// Whether the calling thread runs a handler.
    pub fn in_handler(&self) -> bool {
        locked(&self.inner.handlers.state).is_handler()
    }
}

impl State {
    fn is_handler(&self) -> bool {
        self.running && self.thread == Some(std::thread::current().id())
    }
}

impl Handlers {
    fn until_none_runs(&self, mut state: MutexGuard<'_, State>) -> Result<(), NxError> {
        let time = state.time.unwrap_or(HANDLER_TIME);
        let end = Instant::now() + time;
        while state.running {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NxError::HandlerRuns { seconds: time.as_secs() });
            }
            (state, _) = self.changed.wait_timeout(state, left).expect("no panic while the lock is held");
        }
        Ok(())
    }
}

impl Inner {
    fn handle(
        self: &Arc<Self>,
        handler: Handler,
        begin: impl FnOnce(&Inner) -> Result<Pending, NxError>,
    ) -> Result<(), NxError> {
        let others = {
            let state = locked(&self.handlers.state);
            state.waiting.len() + state.looked_at
        };
        locked(&self.ids).has_room(others, &|result| self.told(result))?;
        self.have_a_thread()?;
        let pending = begin(self)?;
        locked(&self.handlers.state).waiting.push((pending, handler));
        self.handlers.changed.notify_all();
        Ok(())
    }

    fn have_a_thread(self: &Arc<Self>) -> Result<(), NxError> {
        let mut state = locked(&self.handlers.state);
        if state.thread.is_none() {
            let (handlers, inner) = (self.handlers.clone(), Arc::downgrade(self));
            let builder = std::thread::Builder::new().name("nx-handlers".into());
            let thread = builder.spawn(move || serve(&handlers, &inner));
            let thread = thread.map_err(|e| NxError::Thread { what: "handlers", why: e.to_string() })?;
            state.thread = Some(thread.thread().id());
        }
        Ok(())
    }

    /// The process ends: handlers that have not run will not. Messages that were to be sent go.
    pub(crate) fn end_handlers(&self) {
        let mut state = locked(&self.handlers.state);
        state.closing = true;
        self.handlers.changed.notify_all();
        let waiting = std::mem::take(&mut state.waiting);
        if !state.is_handler() {
            // One that does not return has the messages until the process has ended.
            let _ = self.handlers.until_none_runs(state);
        } else {
            drop(state);
        }
        let mut ids = locked(&self.ids);
        for (pending, _) in waiting {
            let id = ids.insert(pending);
            let _ = ids.ignore(id);
        }
    }
}

/// The thread: looks at messages, and runs handlers of those that are over.
fn serve(handlers: &Handlers, inner: &Weak<Inner>) {
    let mut pause = HANDLER_PAUSE_MIN;
    loop {
        let mut state = locked(&handlers.state);
        while state.waiting.is_empty() && !state.closing {
            (state, _) = handlers.changed.wait_timeout(state, HANDLER_IDLE).expect("no panic while the lock is held");
            pause = HANDLER_PAUSE_MIN;
        }
        let Some(inner) = inner.upgrade().filter(|_| !state.closing) else { return };
        let looked_at = std::mem::take(&mut state.waiting);
        state.looked_at = looked_at.len();
        drop(state);
        let mut over = Vec::new();
        let mut rest = Vec::new();
        for (mut pending, handler) in looked_at {
            match pending.look(&|result| inner.told(result)) {
                Ok(false) => rest.push((pending, handler)),
                Ok(true) => over.push((Ok(inner.noted(pending.done())), handler)),
                Err(error) => over.push((Err(error), handler)),
            }
        }
        pause = if over.is_empty() { (pause * 2).min(PAUSE_MAX) } else { HANDLER_PAUSE_MIN };
        let mut state = locked(&handlers.state);
        state.looked_at = 0;
        rest.append(&mut state.waiting);
        state.waiting = rest;
        if over.is_empty() {
            drop(inner);
            let _ = handlers.changed.wait_timeout(state, pause).expect("no panic while the lock is held");
            continue;
        }
        drop(state);
        over.into_iter().for_each(|(result, handler)| run(handlers, &inner, result, handler));
    }
}

/// Runs one when none is to wait.
fn run(handlers: &Handlers, inner: &Arc<Inner>, result: Result<Done, NxError>, handler: Handler) {
    let mut state = locked(&handlers.state);
    while state.masked && !state.closing {
        (state, _) = handlers.changed.wait_timeout(state, HANDLER_IDLE).expect("no panic while the lock is held");
    }
    if state.closing {
        return;
    }
    (state.running, state.masked_inside) = (true, false);
    drop(state);
    let nx = Nx::lent(inner.clone());
    // A panic has been printed; the handlers behind it run all the same.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handler(&nx, result)));
    drop(nx);
    locked(&handlers.state).running = false;
    handlers.changed.notify_all();
}
