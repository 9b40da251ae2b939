//! The way from a server to one of its callers, for answers from any thread.
//!
//! Invariant: answers go in the order in which they were given. One that finds no room waits here,
//! and nobody waits for it: a caller that takes no answers holds up itself.

use crate::limits::{
    ANSWERS_IN_PLACE_MAX, ANSWERS_UNCONNECTED_BYTES_MAX, ANSWERS_WAITING_BYTES_MAX, ANSWERS_WAITING_MAX, BODY_BYTES_MAX,
};
use crate::server::Shared;
use crate::wire::{ANSWER_INLINE_BYTES_MAX, CallId, Encoded, Message, Origin, Status};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;
use vmmc::{Connection, Copied, MessageError, PayloadToken, Posted, Source, TransferError};

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
    /// The server that it is of.
    pub(crate) server: Arc<Shared>,
}

/// What links tell their server, each of one caller or another.
#[derive(Default)]
pub(crate) struct Signals {
    /// Answers wait for room.
    pub(crate) push: AtomicBool,
    /// A caller cannot be reached any more.
    pub(crate) lost: AtomicBool,
}

struct Out {
    /// None: it is being connected.
    connection: Option<Connection>,
    waiting: VecDeque<Answer>,
    waiting_bytes: usize,
    /// Bulk under way out of its place.
    posted: VecDeque<Posted>,
}

/// An answer that waits.
struct Answer {
    /// None: a greeting.
    id: Option<CallId>,
    control: Vec<u8>,
    /// A result that is too long for the control message, of which so many bytes have gone.
    result: Vec<u8>,
    gone: usize,
    bulk: Option<(PayloadToken, Vec<u8>)>,
}

impl Answer {
    fn len(&self) -> usize {
        self.result.len() + self.bulk.as_ref().map_or(0, |(_, bulk)| bulk.len())
    }

    /// Sends it, or as much of it as there is room for. The payload of a message is one, so a long
    /// result goes before a bulk result.
    fn send(&mut self, connection: &mut Connection) -> Result<(), MessageError> {
        let Answer { id, control, result, gone, bulk } = self;
        let most = connection.frame_bytes() as usize;
        let last = if bulk.is_some() { 0 } else { most };
        while let Some(id) = id.filter(|_| most > 0 && result.len() - *gone > last) {
            let piece = &result[*gone..][..most.min(result.len() - *gone)];
            connection.send_within(Message::Part { id }.encode().bytes(), piece, Duration::ZERO)?;
            *gone += piece.len();
        }
        match bulk {
            Some((token, bulk)) => connection.send_by_token_within(control, *token, &bulk[..], Duration::ZERO),
            None => connection.send_within(control, &result[*gone..], Duration::ZERO),
        }
    }
}

thread_local! {
    /// Whether this thread takes calls of a server.
    static TAKES_CALLS: Cell<bool> = const { Cell::new(false) };
}

/// This thread takes calls from now on, so it waits for no caller.
pub(crate) fn now_takes_calls() {
    TAKES_CALLS.set(true);
}

fn takes_calls() -> bool {
    TAKES_CALLS.get()
}

/// A bulk result, for the buffer of the caller's token.
pub(crate) type BulkResult<B> = Option<(PayloadToken, B)>;
/// None of any kind.
pub(crate) const NO_BULK: BulkResult<Changing<&[u8]>> = None;

/// Memory of a bulk result, and what may become of it when that has been given.
pub(crate) trait Bulk<'a> {
    /// Sends it with an answer, if there is room now.
    fn give(
        &self,
        connection: &mut Connection,
        posted: &mut VecDeque<Posted>,
        control: &[u8],
        token: PayloadToken,
    ) -> Result<(), MessageError>;

    /// A copy, for later. It is inside of its memory.
    fn copied(self) -> Vec<u8>;
}

/// Memory that may be changed.
pub(crate) struct Changing<S>(pub(crate) S);

/// Memory that stays as it is until the caller has it.
pub(crate) struct Staying<S>(pub(crate) S);

impl<'a, S: Source<'a>> Bulk<'a> for Changing<S> {
    fn give(
        &self,
        connection: &mut Connection,
        _: &mut VecDeque<Posted>,
        control: &[u8],
        token: PayloadToken,
    ) -> Result<(), MessageError> {
        if takes_calls() {
            // Other callers do not wait for the node of this one.
            return connection.send_by_token_within(control, token, Copied(self.0.clone()), Duration::ZERO);
        }
        connection.send_by_token_within(control, token, self.0.clone(), Duration::ZERO)
    }

    fn copied(self) -> Vec<u8> {
        self.0.copied().expect("it is inside of its memory")
    }
}

impl<S: Source<'static>> Bulk<'static> for Staying<S> {
    fn give(
        &self,
        connection: &mut Connection,
        posted: &mut VecDeque<Posted>,
        control: &[u8],
        token: PayloadToken,
    ) -> Result<(), MessageError> {
        while posted.front().is_some_and(Posted::is_done) {
            posted.pop_front();
        }
        if posted.len() >= ANSWERS_IN_PLACE_MAX {
            return connection.send_by_token_within(control, token, Copied(self.0.clone()), Duration::ZERO);
        }
        let under_way = connection.post_by_token_within(control, token, self.0.clone(), Duration::ZERO)?;
        posted.push_back(under_way);
        Ok(())
    }

    fn copied(self) -> Vec<u8> {
        Changing(self.0).copied()
    }
}

impl Link {
    pub(crate) fn new(number: u64, origin: Origin, asker: Asker, via: Option<Arc<Link>>, server: Arc<Shared>) -> Link {
        let out = Out { connection: None, waiting: VecDeque::new(), waiting_bytes: 0, posted: VecDeque::new() };
        Link {
            number,
            origin,
            asker,
            via,
            out: Mutex::new(out),
            dead: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            server,
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
        // Last: who sees this finds that it is dead.
        self.server.signals.lost.store(true, Ordering::Release);
        out.waiting_bytes = 0;
        out.waiting.drain(..).filter_map(|answer| answer.id).for_each(|id| self.undelivered(id));
    }

    /// The caller cannot be told: whoever passed the call on can.
    fn undelivered(&self, id: CallId) {
        if let Some(via) = &self.via {
            let Origin { node, endpoint, .. } = &self.origin;
            let why = format!("it cannot reach {endpoint} on node {node}");
            via.answer(id, Status::DelegateLost, why.as_bytes());
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
        self.send(None, control.bytes(), &[], NO_BULK);
    }

    /// Tells how a call ended. False: the result does not fit.
    pub(crate) fn answer(&self, id: CallId, status: Status, result: &[u8]) -> bool {
        self.answer_with_bulk(id, status, result, NO_BULK)
    }

    /// The same; the bulk is inside of its memory.
    pub(crate) fn answer_with_bulk<'a>(
        &self,
        id: CallId,
        status: Status,
        result: &[u8],
        bulk: BulkResult<impl Bulk<'a>>,
    ) -> bool {
        let inline = result.len() <= ANSWER_INLINE_BYTES_MAX;
        let (body, long) = if inline { (result, &[][..]) } else { (&[][..], result) };
        let mut control = Encoded::default();
        Message::Answer { id, status, body }.encode_into(&mut control);
        result.len() as u64 <= BODY_BYTES_MAX && self.send(Some(id), control.bytes(), long, bulk)
    }

    /// False: the caller takes no long results.
    fn send<'a>(&self, id: Option<CallId>, control: &[u8], result: &[u8], bulk: BulkResult<impl Bulk<'a>>) -> bool {
        let mut out = self.out();
        if self.is_dead() {
            id.into_iter().for_each(|id| self.undelivered(id));
            return true;
        }
        let direct = out.waiting.is_empty();
        if let Out { connection: Some(connection), posted, .. } = &mut *out {
            let most = connection.frame_bytes() as usize;
            if most == 0 && !result.is_empty() {
                return false;
            }
            let sent = match &bulk {
                _ if !direct => None,
                Some((token, bulk)) if result.is_empty() => Some(bulk.give(connection, posted, control, *token)),
                None if result.len() <= most => Some(connection.send_within(control, result, Duration::ZERO)),
                // It goes in pieces.
                _ => None,
            };
            match sent {
                None | Some(Err(MessageError::Full { .. })) => {}
                // Its memory is of another session: a copy goes.
                Some(Err(MessageError::Transfer { error: TransferError::ForeignBuffer { .. }, .. })) => {}
                Some(Ok(())) => return true,
                Some(Err(_)) => {
                    self.give_up(&mut out);
                    return true;
                }
            }
        }
        let most = match out.connection {
            Some(_) => ANSWERS_WAITING_BYTES_MAX,
            None => ANSWERS_UNCONNECTED_BYTES_MAX,
        };
        let bulk = bulk.map(|(token, bulk)| (token, bulk.copied()));
        let bytes = result.len() + bulk.as_ref().map_or(0, |(_, bulk)| bulk.len());
        // One that is long by itself may wait, if somebody is there to take it.
        let alone = out.connection.is_some() && direct;
        let over = out.waiting_bytes + bytes > most && !alone;
        if over || out.waiting.len() >= ANSWERS_WAITING_MAX {
            self.give_up(&mut out);
            return true;
        }
        out.waiting_bytes += bytes;
        out.waiting.push_back(Answer { id, control: control.to_vec(), result: result.to_vec(), gone: 0, bulk });
        if direct {
            // What goes in pieces begins to go now.
            self.push_from(&mut out);
        }
        if !out.waiting.is_empty() {
            self.waits.store(true, Ordering::Relaxed);
            self.server.signals.push.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Sends what waits, as far as there is room; says whether there was some.
    pub(crate) fn push(&self) -> bool {
        let Some(mut out) = self.out_now() else { return false };
        let moved = self.push_from(&mut out);
        if out.waiting.is_empty() {
            self.waits.store(false, Ordering::Relaxed);
        }
        moved
    }

    fn push_from(&self, out: &mut Out) -> bool {
        let mut moved = false;
        while let Out { connection: Some(connection), waiting, waiting_bytes, .. } = &mut *out {
            let Some(answer) = waiting.front_mut() else { break };
            let gone = answer.gone;
            let sent = answer.send(connection);
            moved |= sent.is_ok() || answer.gone > gone;
            match sent {
                Err(MessageError::Full { .. }) => break,
                Ok(()) => {
                    *waiting_bytes -= answer.len();
                    waiting.pop_front();
                }
                Err(_) => self.give_up(out),
            }
        }
        moved
    }

    /// Looks whether the caller is still there.
    pub(crate) fn look(&self) {
        let Some(mut out) = self.out_now() else { return };
        if out.connection.as_ref().is_some_and(|connection| connection.broken().is_some()) {
            self.give_up(&mut out);
        }
    }

    /// None: another thread gives an answer, from memory that it waits to have back: the server
    /// does not wait with it.
    fn out_now(&self) -> Option<std::sync::MutexGuard<'_, Out>> {
        match self.out.try_lock() {
            Ok(out) => Some(out),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("no panic while the lock is held"),
        }
    }

    fn out(&self) -> std::sync::MutexGuard<'_, Out> {
        self.out.lock().expect("no panic while the lock is held")
    }
}
