//! Endpoints: where messages of many senders come in, each with a short control message and, if
//! its sender likes, a payload.
//!
//! ```text
//!  connect ── record ─────▶ ring of calls ── accept ──▶ a channel: slots, frames     one for each sender
//!  send    ── payload ────▶ frame ┐
//!          ── message ────▶ slot  ┘── poll ──▶ Message, its Frame ── drop ──▶ the frame is free again
//!          ── mark, if the channel is quiet ──▶ board, a byte for each channel
//! ```
//!
//! Invariants: a sender writes its own channel and nothing of others but hints on the board; what
//! the board says, or fails to say, costs time and no message. A message is taken once, whole, and
//! in the order of its sender; senders take turns. A sender never writes over what was not taken.
//! Everything stands on exports, imports and sends, so the node takes no part within a machine.
//! Source: [GMS §2] send ring, receive ring.

mod builder;
mod channel;
mod connection;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod layout;

use crate::core::Core;
use crate::error::{AccessError, ExportError, TokenError, WaitError};
use crate::export::{Export, ExportBuilder};
use crate::limits::{
    BOARD_POLL_EVERY, BOARD_TRUSTED, CONTROL_MESSAGE_BYTES_MAX, ENDPOINT_POLLED_MAX, ENDPOINT_REFUSALS_MAX,
    ENDPOINT_SENDERS_MAX, LOOKS_A_CLOCK, QUIET_AFTER_POLLS, REAP_EVERY, REAPED_AT_ONCE,
};
use crate::notification::Watched;
use crate::ring::{Record, Ring};
use crate::session::Session;
use crate::tokens::{ByToken, TokenBuffer, TokenPool};
pub use builder::EndpointBuilder;
use channel::{Channel, ChannelMemory};
pub use connection::{Connection, ConnectionBuilder};
pub use frame::Frame;
pub use handler::MessageHandler;
use layout::{Call, Shape, VERSION, WELCOME, Welcome};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vmmc_host::control::Access;
use vmmc_host::wait::{Backoff, Manner, Polled, poll};
use vmmc_host::{Deadline, Nanos, Region, RegionError};
use vmmc_nic::{ImportId, ProcessId, Rights, Sender};

/// Where messages of many senders come in. Dropping it ends all its connections.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-endpoint").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// let mut endpoint = session.endpoint("orders").frames(4, 4096).create()?;
/// std::thread::scope(|scope| {
///     // Usually in another process; `.node("beta")` for another node.
///     scope.spawn(|| {
///         let mut orders = session.connect("orders").open().expect("it is there");
///         orders.send(b"two, please", b"and a long letter").expect("there is room");
///     });
///     let message = endpoint.wait()?;
///     assert_eq!(message.control(), b"two, please");
///     assert_eq!(message.payload().expect("it has one").to_vec(), b"and a long letter");
///     Ok::<(), vmmc::WaitError>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Source: [GMS §2].
pub struct Endpoint {
    session: Session,
    name: String,
    access: Access,
    mappable: bool,
    shape: Shape,
    /// The descriptor for event loops, for which senders notify.
    watched: Option<Watched>,
    calls: Ring,
    board: Export,
    /// Its memory: a byte for each sender.
    board_words: Region,
    /// Bits of all regions that senders store in, or have stored in.
    regions: u64,
    /// By their byte of the board.
    senders: Vec<Option<Channel>>,
    /// What each word of the board was when it was polled last.
    marks: Vec<u64>,
    /// Senders that are polled one by one.
    polled: Vec<usize>,
    /// Who of them is first in turn.
    turn: usize,
    /// Polls since the board was polled.
    polls: u32,
    /// Looks of waits since the clock was read.
    looks: AtomicU32,
    all_polled_at: Nanos,
    /// One of those that are not polled one by one has sent something, and no mark shows it.
    all_due: bool,
    /// How waits begin.
    quick_waits: Backoff,
    reaped_at: Nanos,
    /// The sender that is next to be asked for.
    reap_next: usize,
    /// Channels of senders that were refused, until they have read so.
    refused: VecDeque<Export>,
    tokens: Option<TokenPool>,
    counts: EndpointCounts,
}

/// What became of messages and senders of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Messages taken.
    pub messages: u64,
    /// Senders that were let in.
    pub accepted: u64,
    /// Senders that found no room, or speak another version.
    pub refused: u64,
    /// Senders that were cut off, for what they wrote was no message.
    pub misbehaved: u64,
}

/// What a [poll](Endpoint::poll_split) has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// No message.
    Nothing,
    /// One, taken as by [`Endpoint::poll_into`].
    Message,
    /// One, of which the caller has all.
    Split,
}

/// A message that has come; by default an empty one of nobody, for [`Endpoint::wait_into`].
#[derive(Debug)]
pub struct Message {
    control: [u8; CONTROL_MESSAGE_BYTES_MAX],
    len: usize,
    payload: Option<Frame>,
    by_token: Option<ByToken>,
    from: Sender,
}

impl Default for Message {
    fn default() -> Self {
        let from = Sender { session: 0, process: ProcessId(0), import: ImportId::from_u64(0) };
        Message { control: [0; CONTROL_MESSAGE_BYTES_MAX], len: 0, payload: None, by_token: None, from }
    }
}

impl Message {
    /// The control message.
    #[inline]
    pub fn control(&self) -> &[u8] {
        &self.control[..self.len]
    }

    /// The payload, if the sender gave one.
    pub fn payload(&self) -> Option<&Frame> {
        self.payload.as_ref()
    }

    /// Takes the payload out, which then is the caller's until it is dropped.
    #[inline]
    pub fn take_payload(&mut self) -> Option<Frame> {
        // Most have none, and then nothing is moved.
        if self.payload.is_some() { self.payload.take() } else { None }
    }

    /// If its payload went by token: by which, and how many bytes are in the buffer of that; or why
    /// they are not.
    pub fn by_token(&self) -> Option<ByToken> {
        self.by_token
    }

    /// Who sent it: the node vouches for session and process.
    #[inline]
    pub fn from(&self) -> Sender {
        self.from
    }
}

impl Endpoint {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Senders that are connected now.
    pub fn senders(&self) -> usize {
        self.senders.iter().flatten().count()
    }

    /// What became of messages and senders so far.
    pub fn counts(&self) -> EndpointCounts {
        self.counts
    }

    /// The next message, if one is there: senders take turns. Steps an embedded node, and lets
    /// senders in that have asked.
    ///
    /// # Errors
    /// [`AccessError`]: this process was forked, or has written into what is the node's.
    pub fn poll(&mut self) -> Result<Option<Message>, AccessError> {
        Ok(self.find()?.and_then(|at| self.take(at)))
    }

    /// As [`poll`](Self::poll), into a message that is used again, as by
    /// [`wait_into`](Self::wait_into). False: none is there, and the message is as it was, or
    /// empty.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    pub fn poll_into(&mut self, message: &mut Message) -> Result<bool, AccessError> {
        Ok(self.find()?.is_some_and(|at| self.take_into(at, message)))
    }

    /// As [`poll_into`](Self::poll_into), for libraries whose messages have a head of `N` bytes: a
    /// control message that has one, and no payload, is shown to `place`, which gives the memory
    /// for what stands behind the head, of so many bytes, and has it copied there. Where it gives
    /// none, or too little, the message is taken as by [`poll_into`](Self::poll_into), and may then
    /// be another than the one that was shown: its sender can still change it.
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-poll-split").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// use vmmc::{Came, Message};
    /// let mut endpoint = session.endpoint("orders").create()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         let mut orders = session.connect("orders").open().expect("it is there");
    ///         orders.send(b"order 17: two", b"").expect("there is room");
    ///     });
    ///     let (mut message, mut text, mut size) = (Message::default(), [0; 16], 0);
    ///     let mut poll = || {
    ///         endpoint.poll_split(&mut message, |_, head: &[u8; 8], len| {
    ///             size = len;
    ///             (head == b"order 17").then_some(&mut text[..])
    ///         })
    ///     };
    ///     while poll()? != Came::Split {}
    ///     assert_eq!(&text[..size], b": two");
    ///     Ok::<(), vmmc::AccessError>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    #[inline]
    pub fn poll_split<'m, const N: usize>(
        &mut self,
        message: &mut Message,
        place: impl FnOnce(Sender, &[u8; N], usize) -> Option<&'m mut [u8]>,
    ) -> Result<Came, AccessError> {
        let Some(at) = self.find()? else { return Ok(Came::Nothing) };
        if let Some(channel) = self.senders[at].as_mut() {
            let from = channel.from;
            if channel.memory.take_split(|head, len| place(from, head, len)) {
                self.counts.messages += 1;
                message.payload = None;
                return Ok(Came::Split);
            }
        }
        Ok(if self.take_into(at, message) { Came::Message } else { Came::Nothing })
    }

    /// A sender whose next message is there.
    #[inline]
    fn find(&mut self) -> Result<Option<usize>, AccessError> {
        // Not in the child of a fork, which would take the parent's.
        self.session.must_be_here()?;
        let found = self.find_polled();
        self.polls += 1;
        // Senders that are polled do not hold up those that are not, nor those that connect.
        let is_time = self.polls >= BOARD_POLL_EVERY;
        if !is_time && (found.is_some() || !self.polled.is_empty() && self.watched.is_none()) {
            return Ok(found);
        }
        self.poll_others()?;
        Ok(found.or_else(|| self.find_polled()))
    }

    /// Everything but the senders that are polled one by one: who of the others has sent, connects,
    /// or is gone.
    #[inline(never)]
    fn poll_others(&mut self) -> Result<(), AccessError> {
        if let Some(watched) = &self.watched {
            // From here on what comes makes the descriptor readable. Then all that has come before
            // is looked for.
            watched.clear();
            while self.calls.export().take_notification().is_some() {}
            while let Some(mark) = self.board.take_notification() {
                self.poll_from_now(mark.offset as usize);
            }
        }
        self.polls = 0;
        self.session.core().step();
        self.accept()?;
        self.poll_board();
        let now = self.session.core().waiting.waiter.now();
        self.poll_all_now_and_then(now);
        self.reap(now);
        if self.watched.is_some() {
            self.set_all_quiet();
        }
        Ok(())
    }

    /// A free buffer for a payload by token. Its [token](TokenBuffer::token) goes to whoever is to
    /// send the payload, be it through others; that one needs a connection to this endpoint, and
    /// sends with [`Connection::send_by_token`]. The message says so,
    /// [`Message::by_token`](Message::by_token).
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-token-buffer").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// let mut endpoint = session.endpoint("answers").tokens(8, 64 << 10).create()?;
    /// let buffer = endpoint.token_buffer()?;
    /// let token = buffer.token(); // goes out in a message
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         let mut answers = session.connect("answers").open().expect("it is there");
    ///         let sent = answers.send_by_token(b"here it is", token, b"a long answer");
    ///         sent.expect("there is room");
    ///     });
    ///     let message = endpoint.wait()?;
    ///     let by_token = message.by_token().expect("it has one");
    ///     assert_eq!((by_token.token, by_token.len), (token, Ok(13)));
    ///     Ok::<(), vmmc::WaitError>(())
    /// })?;
    /// assert_eq!(buffer.to_vec()?, b"a long answer");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn token_buffer(&self) -> Result<TokenBuffer, TokenError> {
        match &self.tokens {
            Some(pool) => pool.arm(),
            None => Err(TokenError::None { endpoint: self.name.clone() }),
        }
    }

    /// The buffers for payloads by token, if it was made with some: for threads that arm them while
    /// this one waits.
    pub fn token_pool(&self) -> Option<&TokenPool> {
        self.tokens.as_ref()
    }

    /// A descriptor for event loops (poll, epoll): readable when [`poll`](Self::poll) may have a
    /// message, or a sender to let in, and for ever when the node has gone. When it is, poll until
    /// there is nothing more. Only wait for it to be readable; do not read it.
    ///
    /// # Errors
    /// [`WaitError::NotAllowed`]: the endpoint was not made for that; see
    /// [`EndpointBuilder::notify`].
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, WaitError> {
        self.board.must_allow_notifications()?;
        Ok(self.watched.as_ref().expect("it was made with the board").fd())
    }

    /// The next message; waits the session's timeout for it.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&mut self) -> Result<Message, WaitError> {
        self.wait_by(self.session.core().default_deadline())
    }

    /// The next message; waits until the deadline for it.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_by(&mut self, deadline: Deadline) -> Result<Message, WaitError> {
        let mut message = Message::default();
        self.wait_into(&mut message, deadline)?;
        Ok(message)
    }

    /// As [`wait_by`](Self::wait_by), into a message that is used again: for a loop that takes
    /// many, none of which is moved. A payload that it still has is given back when the next one
    /// comes.
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-wait-into").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// use std::time::Duration;
    /// use vmmc::Message;
    /// let mut endpoint = session.endpoint("orders").create()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         let mut orders = session.connect("orders").open().expect("it is there");
    ///         (1..=3u8).for_each(|order| orders.send(&[order], b"").expect("there is room"));
    ///     });
    ///     let (mut message, mut sum) = (Message::default(), 0);
    ///     while sum < 6 {
    ///         endpoint.wait_into(&mut message, session.deadline(Duration::from_secs(5)))?;
    ///         sum += message.control()[0];
    ///     }
    ///     Ok::<(), vmmc::WaitError>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_into(&mut self, message: &mut Message, deadline: Deadline) -> Result<(), WaitError> {
        let came = self.wait_into_unless(message, deadline, || false)?;
        assert!(came, "nothing stops it");
        Ok(())
    }

    /// As [`wait_into`](Self::wait_into); false: there is no message, and `stopped` says that
    /// nobody waits for one any more. It is asked before the thread sleeps, and again after
    /// [`Session::wake_waits`].
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_into_unless(
        &mut self,
        message: &mut Message,
        deadline: Deadline,
        stopped: impl Fn() -> bool,
    ) -> Result<bool, WaitError> {
        while let Some(at) = self.wait_unless(deadline, &stopped)? {
            if self.take_into(at, message) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A sender whose next message is there, once there is one. None: it was stopped, and somebody
    /// has kicked the session's waits.
    #[inline]
    fn wait_unless(&mut self, deadline: Deadline, stopped: impl Fn() -> bool) -> Result<Option<usize>, WaitError> {
        let mut start = None;
        loop {
            if stopped() {
                return Ok(None);
            }
            if let Some(at) = self.find()? {
                return Ok(Some(at));
            }
            if !self.look_quickly() {
                self.wait_for_something(deadline, &mut start, &stopped)?;
            }
        }
    }

    #[cold]
    fn wait_for_something(
        &mut self,
        deadline: Deadline,
        start: &mut Option<Nanos>,
        stopped: &impl Fn() -> bool,
    ) -> Result<(), WaitError> {
        let core = self.session.core().clone();
        let start = *start.get_or_insert_with(|| core.waiting.waiter.now());
        let ready = |announced| {
            let something = stopped() || self.has_something();
            // What was sent without a mark woke nobody if it came before the sleep was announced.
            let unmarked = !something && announced && self.some_sender_has_message();
            (something || unmarked).then_some(unmarked)
        };
        let unmarked = core.wait_announced_words(self.regions, deadline, ready).map_err(|end| {
            let what = format!("wait for a message to endpoint {:?}", self.name);
            core.wait_error(end, &what, core.waiting.waiter.now().since(start))
        })?;
        self.all_due |= unmarked;
        if !self.has_message() {
            // Something else was found: the next poll looks everywhere.
            self.polls = BOARD_POLL_EVERY;
        }
        Ok(())
    }

    /// The beginning of a wait: an answer from another core comes before a wait is set up that can
    /// also sleep. Not where this thread has to step the node meanwhile.
    fn look_quickly(&self) -> bool {
        if self.core().waiting.waiter.steps() {
            return false;
        }
        // Looks are counted: no clock is read.
        let clock = || Nanos(0);
        let mut wait = self.quick_waits.begin(Manner::Spin, Deadline(Nanos::MAX));
        let looked = poll(&mut wait, clock, || self.has_message().then_some(()));
        matches!(looked, Polled::Found(()))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.session.core()
    }

    /// Regions that senders store in, as bits.
    pub(crate) fn regions(&self) -> u64 {
        self.regions
    }

    /// Whether there is something to do, as far as memory tells.
    pub(crate) fn has_something(&self) -> bool {
        self.has_message()
            || self.calls.has_record()
            || self.board_words().any(|(word, mark)| word != mark)
            || self.may_be_time_for_all() && self.some_sender_has_message()
    }

    fn some_sender_has_message(&self) -> bool {
        self.senders.iter().flatten().any(Channel::has_message)
    }

    /// Whether one of the senders that are polled one by one has sent something: a load for each.
    /// For a loop that looks for a moment before it sleeps; false says nothing of other senders,
    /// and nothing after a [`poll`](Self::poll) in vain with [`EndpointBuilder::notify`].
    #[inline]
    pub fn has_message(&self) -> bool {
        self.polled().any(Channel::has_message)
    }

    fn polled(&self) -> impl Iterator<Item = &Channel> {
        self.polled.iter().filter_map(|at| self.senders[*at].as_ref())
    }

    /// Each word of the board, and what it was.
    fn board_words(&self) -> impl Iterator<Item = (u64, u64)> {
        let words = self.board_words.words(0, self.marks.len()).expect("the board has a byte for each sender");
        words.iter().map(|word| word.load(Ordering::Acquire)).zip(self.marks.iter().copied())
    }

    fn board_word(&self, at: u64) -> u64 {
        self.board_words.word(at * 8).expect("the board has a byte for each sender").load(Ordering::Acquire)
    }

    fn is_time_for_all(&self, now: Nanos) -> bool {
        now.since(self.all_polled_at) >= BOARD_TRUSTED
    }

    /// The same for a wait, which looks often: not every look reads the clock.
    fn may_be_time_for_all(&self) -> bool {
        // One thread waits at a time, so no count is lost.
        let looks = (self.looks.load(Ordering::Relaxed) + 1) % LOOKS_A_CLOCK;
        self.looks.store(looks, Ordering::Relaxed);
        looks == 0 && self.is_time_for_all(self.session.core().waiting.waiter.now())
    }

    #[inline]
    fn find_polled(&mut self) -> Option<usize> {
        let count = self.polled.len();
        for _ in 0..count {
            if self.turn >= count {
                self.turn = 0;
            }
            let at = self.polled[self.turn];
            self.turn += 1;
            let Some(channel) = self.senders[at].as_mut() else { continue };
            if channel.has_message() {
                channel.empty = 0;
                return Some(at);
            }
            channel.empty += 1;
        }
        self.sweep();
        None
    }

    /// Takes the next message of a sender, which is there. None: what is there is none.
    fn take(&mut self, at: usize) -> Option<Message> {
        let mut message = Message::default();
        self.take_into(at, &mut message).then_some(message)
    }

    /// The same, into a message that is used again.
    #[inline]
    fn take_into(&mut self, at: usize, message: &mut Message) -> bool {
        let Some(channel) = self.senders[at].as_mut() else { return false };
        let taken = channel.take(self.tokens.as_ref(), message);
        if taken {
            self.counts.messages += 1;
        } else {
            self.counts.misbehaved += 1;
            self.remove(at);
            // Nothing of what was there is left in it.
            *message = Message::default();
        }
        taken
    }

    /// No sender is polled one by one any more: each marks the board, and notifies.
    fn set_all_quiet(&mut self) {
        self.polled().for_each(|channel| channel.set_quiet(true));
        let senders = &self.senders;
        self.polled.retain(|at| senders[*at].as_ref().is_some_and(Channel::has_message));
    }

    /// Those that have sent nothing for long are not polled any more, and those that leave go.
    fn sweep(&mut self) {
        let senders = &mut self.senders;
        self.polled.retain(|at| {
            let Some(channel) = &senders[*at] else { return false };
            // Its last messages were there before it said that it leaves, and have been taken.
            if channel.leaving {
                senders[*at] = None;
                return false;
            }
            if channel.empty < QUIET_AFTER_POLLS {
                return true;
            }
            channel.set_quiet(true);
            let stays = channel.has_message();
            if stays {
                channel.set_quiet(false);
            }
            stays
        });
    }

    /// Polls a sender from now on.
    fn poll_from_now(&mut self, at: usize) {
        let Some(channel) = self.senders.get_mut(at).and_then(Option::as_mut) else { return };
        if self.polled.contains(&at) {
            return;
        }
        channel.empty = 0;
        if self.polled.len() >= ENDPOINT_POLLED_MAX {
            // In place of the one that has sent nothing for longest. What it sends from now on, or
            // has just sent, shows on the board, or when all are polled.
            let longest =
                self.polled.iter().enumerate().max_by_key(|(_, at)| self.senders[**at].as_ref().map(|c| c.empty));
            if let Some((place, _)) = longest {
                let out = self.polled.swap_remove(place);
                if let Some(channel) = &self.senders[out] {
                    channel.set_quiet(true);
                }
            }
        }
        if let Some(channel) = &self.senders[at] {
            channel.set_quiet(false);
        }
        self.polled.push(at);
    }

    fn poll_board(&mut self) {
        if self.board_words().all(|(word, mark)| word == mark) {
            return;
        }
        for at in 0..self.marks.len() {
            let (word, mark) = (self.board_word(at as u64), self.marks[at]);
            if word == mark {
                continue;
            }
            self.marks[at] = word;
            for byte in 0..8 {
                if (word ^ mark) >> (8 * byte) & 0xff != 0 {
                    self.poll_from_now(8 * at + byte);
                }
            }
        }
    }

    /// A hostile sender can take marks of others off the board.
    fn poll_all_now_and_then(&mut self, now: Nanos) {
        if !std::mem::take(&mut self.all_due) && !self.is_time_for_all(now) {
            return;
        }
        self.all_polled_at = now;
        for at in 0..self.senders.len() {
            if self.senders[at].as_ref().is_some_and(Channel::has_message) {
                self.poll_from_now(at);
            }
        }
    }

    /// Forgets senders whose process has died: the node has ended their imports. Those that have
    /// not imported their channel by the second time have died before, or have given up.
    fn reap(&mut self, now: Nanos) {
        if self.senders.is_empty() || now.since(self.reaped_at) < REAP_EVERY {
            return;
        }
        self.reaped_at = now;
        for _ in 0..self.senders.len().min(REAPED_AT_ONCE) {
            self.reap_next = (self.reap_next + 1) % self.senders.len();
            let at = self.reap_next;
            let Some(channel) = self.senders[at].as_mut().filter(|channel| !channel.leaving) else { continue };
            let gone = matches!(channel.export.importers(), Ok(0));
            if gone && channel.imported {
                channel.leaving = true;
                // What it sent before is taken first.
                self.poll_from_now(at);
            } else {
                channel.imported = true;
            }
        }
    }

    /// Lets in those who have asked, and lets go those who leave.
    fn accept(&mut self) -> Result<(), AccessError> {
        while let Some(record) = self.calls.take()? {
            match Call::from_bytes(&record.data) {
                Some(Call::Connect { version, number }) => self.connected(&record, version, number),
                Some(Call::Leave { number }) => self.left(&record, number),
                None => self.counts.refused += 1,
            }
        }
        Ok(())
    }

    fn connected(&mut self, record: &Record, version: u64, number: u64) {
        let at = self.senders.iter().position(Option::is_none).unwrap_or(self.senders.len());
        let same = |channel: &&Channel| is_same_process(&channel.from, &record.from);
        let own = self.senders.iter().flatten().filter(same).count();
        // A process has no more than are then free.
        let free = ENDPOINT_SENDERS_MAX - self.senders();
        let accepted = version == VERSION && own < free;
        let shape = if accepted { self.shape } else { Shape { frames: 0, frame_bytes: 0 } };
        let welcome = Welcome {
            version: VERSION,
            accepted: u64::from(accepted),
            shape,
            board: self.board.id().to_u64(),
            index: at as u64,
            notify: self.watched.is_some(),
        };
        // Nobody is told: the sender waits for the name until its time is over.
        let Ok((export, region)) = self.channel(&welcome, number) else {
            self.counts.refused += 1;
            return;
        };
        if !accepted {
            self.counts.refused += 1;
            self.refused.truncate(ENDPOINT_REFUSALS_MAX - 1);
            self.refused.push_front(export);
            return;
        }
        self.counts.accepted += 1;
        let memory = ChannelMemory::new(region, self.shape);
        let channel = Channel { export, memory, from: record.from, number, empty: 0, leaving: false, imported: false };
        if at == self.senders.len() {
            self.senders.push(None);
            if at % 8 == 0 {
                self.marks.push(self.board_word(at as u64 / 8));
            }
        }
        self.regions |= channel.export.region_bit();
        self.senders[at] = Some(channel);
        self.poll_from_now(at);
    }

    fn channel(&self, welcome: &Welcome, number: u64) -> Result<(Export, Region), ExportError> {
        let name = channel_name(&self.name, number);
        let memory = |error: RegionError| ExportError::Memory { name: name.clone(), error: error.into() };
        let region = Region::create(welcome.shape.channel_bytes()).map_err(memory)?;
        region.write(WELCOME, &welcome.to_bytes()).expect("the head is in the channel");
        let builder: ExportBuilder = self.session.export_region(region.clone());
        let builder = builder.name(&name).access(self.access.clone()).mappable(self.mappable);
        let export = builder.rights(Rights::READ | Rights::WRITE).create()?;
        Ok((export, region))
    }

    fn left(&mut self, record: &Record, number: u64) {
        let leaves = |channel: &Channel| channel.number == number && is_same_process(&channel.from, &record.from);
        let Some(at) = self.senders.iter().position(|channel| channel.as_ref().is_some_and(leaves)) else { return };
        // What it sent before is taken first.
        self.poll_from_now(at);
        if let Some(channel) = &mut self.senders[at] {
            channel.leaving = true;
        }
    }

    fn remove(&mut self, at: usize) {
        self.senders[at] = None;
        self.polled.retain(|polled| *polled != at);
    }
}

/// Name of the export of a channel.
fn channel_name(endpoint: &str, number: u64) -> String {
    format!("{endpoint}.{number:016x}")
}

/// One process may have several connections.
fn is_same_process(one: &Sender, other: &Sender) -> bool {
    (one.session, one.process) == (other.session, other.process)
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let senders = self.senders();
        f.debug_struct("Endpoint").field("name", &self.name).field("senders", &senders).finish_non_exhaustive()
    }
}
