//! The way from a server to one of its callers, for answers from any thread.
//!
//! Invariant: answers go in the order in which they were given. One that finds no room waits here,
//! and nobody waits for it: a caller that takes no answers holds up itself.

use crate::limits::{ANSWERS_UNCONNECTED_BYTES_MAX, ANSWERS_WAITING_BYTES_MAX, ANSWERS_WAITING_MAX};
use crate::wire::{ANSWER_INLINE_BYTES_MAX, CallId, Message, Origin, Status};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vmmc::{Connection, MessageError, PayloadToken};

/// A process: session of its node, and number there.
pub(crate) type Asker = (u32, u32);

/// See the module page.
pub(crate) struct Link {
    /// By which the server knows the caller.
    pub(crate) number: u64,
    pub(crate) origin: Origin,
    /// Who had it made: the caller, or a server that passed a call of it on.
    pub(crate) asker: Asker,
    /// The way to that server, which is told of answers that cannot be given.
    via: Option<Arc<Link>>,
    out: Mutex<Out>,
    /// It cannot be reached any more, or does not take its answers.
    dead: AtomicBool,
    /// Answers wait for room.
    waits: AtomicBool,
    /// Tells the server that answers wait, to one caller or another.
    push: Arc<AtomicBool>,
}

struct Out {
    /// None: it is being connected.
    connection: Option<Connection>,
    waiting: VecDeque<Answer>,
    waiting_bytes: usize,
}

/// An answer that waits.
struct Answer {
    /// None: a greeting.
    id: Option<CallId>,
    control: Vec<u8>,
    payload: Vec<u8>,
    token: Option<PayloadToken>,
}

/// A bulk result, for the buffer of the caller's token.
pub(crate) type BulkResult<'a> = Option<(PayloadToken, &'a [u8])>;

impl Link {
    pub(crate) fn new(
        number: u64,
        origin: Origin,
        asker: Asker,
        via: Option<Arc<Link>>,
        push: Arc<AtomicBool>,
    ) -> Link {
        let out = Out { connection: None, waiting: VecDeque::new(), waiting_bytes: 0 };
        Link {
            number,
            origin,
            asker,
            via,
            out: Mutex::new(out),
            dead: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            push,
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn fail(&self) {
        let mut out = self.out();
        self.give_up(&mut out);
    }

    fn give_up(&self, out: &mut Out) {
        self.dead.store(true, Ordering::Release);
        out.waiting_bytes = 0;
        out.waiting.drain(..).filter_map(|answer| answer.id).for_each(|id| self.undelivered(id));
    }

    /// The caller cannot be told: whoever passed the call on can.
    fn undelivered(&self, id: CallId) {
        if let Some(via) = &self.via {
            let Origin { node, endpoint, .. } = &self.origin;
            let why = format!("it cannot reach {endpoint} on node {node}");
            via.answer(id, Status::DelegateLost, why.as_bytes(), None);
        }
    }

    /// Whether answers wait for room.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// It is connected now: what waited goes out.
    pub(crate) fn connected(&self, connection: Connection) {
        self.out().connection = Some(connection);
        self.push();
    }

    /// Greets the caller.
    pub(crate) fn welcome(&self, version: u16) {
        let control = Message::Welcome { version }.encode();
        self.send(None, control.bytes(), &[], None);
    }

    /// Tells how a call ended. False: the result does not fit.
    pub(crate) fn answer(&self, id: CallId, status: Status, result: &[u8], bulk: BulkResult<'_>) -> bool {
        let inline = result.len() <= ANSWER_INLINE_BYTES_MAX;
        // The payload of a message is one: what goes by token, or a long result.
        if !inline && bulk.is_some() {
            return false;
        }
        let (body, payload) = if inline { (result, &[][..]) } else { (&[][..], result) };
        let control = Message::Answer { id, status, body }.encode();
        self.send(Some(id), control.bytes(), payload, bulk)
    }

    /// False: the payload is too long.
    fn send(&self, id: Option<CallId>, control: &[u8], payload: &[u8], bulk: BulkResult<'_>) -> bool {
        let mut out = self.out();
        if self.is_dead() {
            id.into_iter().for_each(|id| self.undelivered(id));
            return true;
        }
        if let (true, Some(connection)) = (out.waiting.is_empty(), out.connection.as_mut()) {
            let sent = match bulk {
                Some((token, bulk)) => connection.send_by_token_within(control, token, bulk, Duration::ZERO),
                None => connection.send_within(control, payload, Duration::ZERO),
            };
            match sent {
                Ok(()) => return true,
                Err(MessageError::Full { .. }) => {}
                Err(MessageError::PayloadTooLong { .. }) => return false,
                Err(_) => {
                    self.give_up(&mut out);
                    return true;
                }
            }
        }
        let most = match out.connection {
            Some(_) => ANSWERS_WAITING_BYTES_MAX,
            None => ANSWERS_UNCONNECTED_BYTES_MAX,
        };
        let bytes = bulk.map_or(payload.len(), |(_, bulk)| bulk.len());
        // One that is long by itself may wait, if somebody is there to take it.
        let alone = out.connection.is_some() && out.waiting.is_empty();
        let over = out.waiting_bytes + bytes > most && !alone;
        if over || out.waiting.len() >= ANSWERS_WAITING_MAX {
            self.give_up(&mut out);
            return true;
        }
        out.waiting_bytes += bytes;
        let (payload, token) = match bulk {
            Some((token, bulk)) => (bulk.to_vec(), Some(token)),
            None => (payload.to_vec(), None),
        };
        out.waiting.push_back(Answer { id, control: control.to_vec(), payload, token });
        self.waits.store(true, Ordering::Relaxed);
        self.push.store(true, Ordering::Relaxed);
        true
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn push(&self) {
        let mut out = self.out();
        loop {
            let Out { connection: Some(connection), waiting, waiting_bytes } = &mut *out else { return };
            let Some(Answer { control, payload, token, .. }) = waiting.front() else { break };
            let sent = match token {
                Some(token) => connection.send_by_token_within(control, *token, payload, Duration::ZERO),
                None => connection.send_within(control, payload, Duration::ZERO),
            };
            match sent {
                Err(MessageError::Full { .. }) => return,
                Ok(()) => {
                    *waiting_bytes -= payload.len();
                    waiting.pop_front();
                }
                Err(_) => self.give_up(&mut out),
            }
        }
        self.waits.store(false, Ordering::Relaxed);
    }

    /// Looks whether the caller is still there.
    pub(crate) fn look(&self) {
        let mut out = self.out();
        if out.connection.as_ref().is_some_and(|connection| connection.broken().is_some()) {
            self.give_up(&mut out);
        }
    }

    fn out(&self) -> std::sync::MutexGuard<'_, Out> {
        self.out.lock().expect("no panic while the lock is held")
    }
}
