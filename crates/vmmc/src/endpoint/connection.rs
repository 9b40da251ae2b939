//! The sending side of an endpoint.
//!
//! Invariant: a slot or a frame is written only when the owner has said that it is free; what the
//! owner says is believed only as far as it harms nobody but the two of them. Source: [GMS §2] send
//! ring.

use super::channel_name;
use super::layout::{AGREED, Call, Head, Image, Payload, Shape, VERSION, WELCOME, Welcome, slot_end, store};
use crate::append::AppendOptions;
use crate::error::{ConnectError, MessageError, TransferError};
use crate::import::{Import, SendOptions};
use crate::limits::{
    CONNECTION_TABLES_MAX, CONTROL_MESSAGE_BYTES_MAX, ENDPOINT_FRAMES_MAX, ENDPOINT_SENDERS_MAX, ENDPOINT_SLOTS,
    FRAME_BYTES_MAX, FULL_RETRY_MAX, FULL_RETRY_MIN, MARKED_BEHIND_BYTES, POLLED_AFTER_MARK, POLLED_AFTER_MESSAGE,
    RUN_KEPT, SLOTS_STORED_SOON,
};
use crate::session::Session;
use crate::source::Source;
use crate::token_send::Posted;
use crate::tokens::PayloadToken;
use crate::transfer::Transfer;
use std::collections::VecDeque;
use std::time::Duration;
use vmmc_host::control::RefusalCode;
use vmmc_host::credit::{Credit, QUIET_AT, Run, TAKEN_AT};
use vmmc_host::{Deadline, Nanos, Region};
use vmmc_nic::{ExportId, Rights};

/// What the owner says of credit, bytes.
const CREDIT_BYTES: usize = 16;

/// A way to an endpoint, for one thread at a time. Dropping it lets the endpoint take what was
/// sent, and then forget this sender.
#[derive(Debug)]
pub struct Connection {
    session: Session,
    endpoint: String,
    /// The node of the endpoint, as it was named; none: this one.
    node: Option<String>,
    calls: Import,
    channel: Import,
    board: Import,
    number: u64,
    shape: Shape,
    /// Our byte of the board, and what it is.
    index: u64,
    mark: u8,
    /// When the last message went, and the last mark: of a channel that this process does not map.
    sent_at: Nanos,
    marked_at: Nanos,
    /// Whoever marks the board notifies.
    notify: bool,
    /// What may be sent.
    credit: Credit,
    /// The owner is being asked for more, by a fetch that nobody waits for yet.
    asked: Option<Transfer<'static, Vec<u8>>>,
    /// When a payload that a run of frames is kept for was tried last.
    kept_at: Nanos,
    /// Token tables of the endpoint that payloads went to last.
    tables: VecDeque<Import>,
}

/// Choices for a connection; made by [`Session::connect`](crate::Session::connect).
#[must_use = "there is no connection before `open`"]
pub struct ConnectionBuilder {
    session: Session,
    endpoint: String,
    node: Option<String>,
    owner: Option<u32>,
    timeout: Option<Duration>,
}

impl ConnectionBuilder {
    pub(crate) fn new(session: Session, endpoint: &str) -> ConnectionBuilder {
        ConnectionBuilder { session, endpoint: endpoint.to_string(), node: None, owner: None, timeout: None }
    }

    /// Name or `address:port` of the node of the endpoint; default this node.
    pub fn node(mut self, node: &str) -> Self {
        self.node = Some(node.to_string());
        self
    }

    /// The endpoint of this user only; by default of this process's own user, or else of root.
    pub fn owner(mut self, uid: u32) -> Self {
        self.owner = Some(uid);
        self
    }

    /// How long to wait for the endpoint, and for its answer, instead of the session's timeout. An
    /// endpoint that does not exist yet is waited for too.
    pub fn wait(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Connects: the owner has to poll or wait meanwhile.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn open(self) -> Result<Connection, ConnectError> {
        let ConnectionBuilder { session, endpoint, node, owner, timeout } = self;
        let core = session.core().clone();
        let wait = timeout.unwrap_or_else(|| core.timeout());
        let deadline = core.deadline(wait);
        let left = || deadline.left(core.waiting.waiter.now()).unwrap_or_default();
        let import = |error| ConnectError::Import { endpoint: endpoint.clone(), error };
        let transfer = |error| ConnectError::Transfer { endpoint: endpoint.clone(), error };
        let on_node = |builder: crate::ImportBuilder| match &node {
            Some(node) => builder.node(node),
            None => builder,
        };

        let mut builder = on_node(session.import(&endpoint)).rights(Rights::WRITE);
        builder = owner.into_iter().fold(builder, |builder, uid| builder.owner(uid));
        builder = timeout.into_iter().fold(builder, |builder, wait| builder.wait(wait));
        let calls = builder.open().map_err(import)?;
        let number = vmmc_host::os::random_bytes()
            .map(|bytes| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")))
            .map_err(|e| ConnectError::System { endpoint: endpoint.clone(), why: e.to_string() })?;
        let call = Call::Connect { version: VERSION, number };
        let options = AppendOptions { timeout: Some(left()), notify: true, ..AppendOptions::default() };
        calls.append(&call.to_bytes(), options).map_err(transfer)?;

        let both = Rights::READ | Rights::WRITE;
        let name = channel_name(&endpoint, number);
        let builder = on_node(session.import(&name)).owner(calls.owner()).rights(both).wait(left());
        let channel = builder.open().map_err(|error| match error.refusal() {
            Some(RefusalCode::TimedOut) => {
                ConnectError::TimedOut { endpoint: endpoint.clone(), after_ms: wait.as_millis() as u64 }
            }
            _ => import(error),
        })?;
        let mut bytes = [0; Welcome::BYTES];
        channel.fetch(WELCOME, &mut bytes[..]).map_err(transfer)?;
        let welcome = Welcome::from_bytes(&bytes);
        check(&endpoint, &welcome, channel.len())?;
        let board =
            on_node(session.import_id(ExportId::from_u64(welcome.board))).rights(both).open().map_err(import)?;
        Ok(Connection {
            shape: welcome.shape,
            index: welcome.index,
            session,
            endpoint,
            node,
            calls,
            channel,
            board,
            number,
            mark: 0,
            sent_at: Nanos::default(),
            marked_at: Nanos::default(),
            notify: welcome.notify,
            credit: Credit::new(ENDPOINT_SLOTS, welcome.shape.frames),
            asked: None,
            kept_at: Nanos::default(),
            tables: VecDeque::new(),
        })
    }
}

/// What the owner says of a channel of so many bytes is a claim.
pub(super) fn check(endpoint: &str, welcome: &Welcome, bytes: u64) -> Result<(), ConnectError> {
    let endpoint = endpoint.to_string();
    let Welcome { version, accepted, shape, index, .. } = *welcome;
    if version != VERSION {
        return Err(ConnectError::Version { endpoint, theirs: version, ours: VERSION });
    }
    if accepted == 0 {
        return Err(ConnectError::Full { endpoint });
    }
    let few = shape.frames <= ENDPOINT_FRAMES_MAX && shape.frame_bytes <= FRAME_BYTES_MAX;
    if !few || shape.channel_bytes() > bytes || index >= ENDPOINT_SENDERS_MAX as u64 {
        let Shape { frames, frame_bytes } = shape;
        let what = format!("{frames} frames of {frame_bytes} bytes in {bytes} bytes, place {index}");
        return Err(ConnectError::Protocol { endpoint, what });
    }
    Ok(())
}

impl Connection {
    /// Name of the endpoint.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Bytes of payload that one message can have: of all frames together; 0 if the endpoint takes
    /// none.
    pub fn payload_bytes_max(&self) -> u64 {
        self.shape.payload_bytes_max()
    }

    /// Bytes of one frame, 0 if the endpoint has none. A payload that is longer takes several side
    /// by side, and waits until so many are free there.
    pub fn frame_bytes(&self) -> u64 {
        if self.shape.frames == 0 { 0 } else { self.shape.frame_bytes }
    }

    /// How messages go, as of [`Import::explain`].
    pub fn explain(&self) -> crate::Explanation {
        self.channel.explain()
    }

    /// Sends a control message of up to 128 bytes, and a payload (`b""`: none), and waits the
    /// session's timeout for room. On return both have been copied, or are on their way; messages
    /// come in the order of these calls, each behind its payload.
    ///
    /// A payload that is longer than a frame takes several side by side. If it finds none such, it
    /// has some kept for it, which shorter payloads leave alone until it was sent, or has not been
    /// tried for [`RUN_KEPT`](crate::limits::RUN_KEPT): so it waits for those frames that the owner
    /// has, and for no later message.
    ///
    /// # Errors
    /// [`MessageError`]: nothing was sent. Between nodes a connection that has broken is told by a
    /// later call.
    pub fn send<'a>(&mut self, control: &[u8], payload: impl Source<'a>) -> Result<(), MessageError> {
        let timeout = self.session.core().timeout();
        self.send_within(control, payload, timeout)
    }

    /// As [`send`](Self::send), within this time; none: only if there is room now.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    #[inline]
    pub fn send_within<'a>(
        &mut self,
        control: &[u8],
        payload: impl Source<'a>,
        timeout: Duration,
    ) -> Result<(), MessageError> {
        let len = payload.len_bytes();
        // Where a message is stored at once no result is moved, which would wait for its stores.
        if len == 0 && self.send_at_once(&[], control) {
            return Ok(());
        }
        self.send_with_room(control, payload, len, timeout)
    }

    /// The same of what has a payload, goes through the node, or finds no room yet.
    fn send_with_room<'a>(
        &mut self,
        control: &[u8],
        payload: impl Source<'a>,
        len: u64,
        timeout: Duration,
    ) -> Result<(), MessageError> {
        if control.len() > CONTROL_MESSAGE_BYTES_MAX {
            return Err(MessageError::ControlTooLong { endpoint: self.endpoint.clone(), len: control.len() as u64 });
        }
        if len > self.payload_bytes_max() {
            let (endpoint, max) = (self.endpoint.clone(), self.payload_bytes_max());
            return Err(MessageError::PayloadTooLong { endpoint, len, max });
        }
        let frames = if len == 0 { 0 } else { self.shape.frames_of(len) };
        let run = match self.credit.room(frames) {
            Some(run) => run,
            None => self.wait_for_room(frames, timeout)?,
        };
        let sent = self.put(control, payload, run.map(|run| (run, len)));
        sent.map_err(|error| self.transfer_error(error))
    }

    /// Sends a control message that is these two parts, without a payload, if it can be stored in
    /// the owner's memory now. False: nothing was sent; [`send_within`](Self::send_within) says
    /// why, or sends it. For libraries whose messages have a head: the parts are copied once.
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-send-at-once").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// let mut endpoint = session.endpoint("orders").create()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         let mut orders = session.connect("orders").open().expect("it is there");
    ///         assert!(orders.send_at_once(b"order 17", b"two, please"));
    ///     });
    ///     assert_eq!(endpoint.wait()?.control(), b"order 17two, please");
    ///     Ok::<(), vmmc::WaitError>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn send_at_once<const N: usize>(&mut self, first: &[u8; N], rest: &[u8]) -> bool {
        let len = N.saturating_add(rest.len());
        if len > CONTROL_MESSAGE_BYTES_MAX || self.credit.room(0).is_none() {
            return false;
        }
        let head = Head { control: len, payload: Payload::None };
        matches!(self.store_message((first, rest), head, None), Some(Ok(())))
    }

    /// Sends a control message of up to 128 bytes, and a payload to the buffer of a token that
    /// comes from the owner of the endpoint, by whatever way; waits the session's timeout for room.
    /// A token that lets nothing in does not hold up the control message, which says then that the
    /// payload was dropped ([`Message::by_token`](crate::Message::by_token)).
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn send_by_token<'a>(
        &mut self,
        control: &[u8],
        token: PayloadToken,
        payload: impl Source<'a>,
    ) -> Result<(), MessageError> {
        let timeout = self.session.core().timeout();
        self.send_by_token_within(control, token, payload, timeout)
    }

    /// As [`send_by_token`](Self::send_by_token), and waits this long for room; none: only if there
    /// is room now.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn send_by_token_within<'a>(
        &mut self,
        control: &[u8],
        token: PayloadToken,
        payload: impl Source<'a>,
        timeout: Duration,
    ) -> Result<(), MessageError> {
        let mut posted = Posted::default();
        let sent = self.put_by_token(control, token, payload, timeout, (&mut posted, true));
        // The message is on its way meanwhile; whatever became of it, the source is in use.
        let ended = self.unless_revoked(token, posted.wait());
        sent.and(ended)
    }

    /// As [`send_by_token_within`](Self::send_by_token_within), but does not wait until another
    /// node has the payload: until it is done, what is registered of it may still be read.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn post_by_token_within(
        &mut self,
        control: &[u8],
        token: PayloadToken,
        payload: impl Source<'static>,
        timeout: Duration,
    ) -> Result<Posted, MessageError> {
        let mut posted = Posted::default();
        self.put_by_token(control, token, payload, timeout, (&mut posted, false)).map(|()| posted)
    }

    fn transfer_error(&self, error: TransferError) -> MessageError {
        MessageError::Transfer { endpoint: self.endpoint.clone(), error }
    }

    /// Sends a payload by token, or posts it, and the message that says so. `waits`: the source is
    /// waited for next.
    fn put_by_token<'a>(
        &mut self,
        control: &[u8],
        token: PayloadToken,
        payload: impl Source<'a>,
        timeout: Duration,
        (posted, waits): (&mut Posted, bool),
    ) -> Result<(), MessageError> {
        let len = payload.len_bytes();
        let tag = self.room_by_token(control, token, timeout)?;
        self.put_payload(token, tag, payload, posted)?;
        self.put_message_by_token(control, (token, tag, len), (posted, waits))
    }

    /// Waits for room for a message by token; gives the tag of its payload.
    fn room_by_token(&mut self, control: &[u8], token: PayloadToken, timeout: Duration) -> Result<u64, MessageError> {
        if control.len() > CONTROL_MESSAGE_BYTES_MAX {
            return Err(MessageError::ControlTooLong { endpoint: self.endpoint.clone(), len: control.len() as u64 });
        }
        if let Some(table) = self.known_table(token).and_then(|at| self.tables.get(at)) {
            table.expect_token(token);
        }
        if self.credit.room(0).is_none() {
            self.wait_for_room(0, timeout)?;
        }
        Ok(self.number.wrapping_add(self.credit.sent()))
    }

    fn put_message_by_token(
        &mut self,
        control: &[u8],
        (token, tag, len): (PayloadToken, u64, u64),
        (posted, waits): (&mut Posted, bool),
    ) -> Result<(), MessageError> {
        let head = Head { control: control.len(), payload: Payload::ByToken(len) };
        let sent = if waits && posted.is_under_way() {
            let core = self.session.core().clone();
            let sent = core.corked(|| self.put_message(control, head, Some((token, tag))));
            // Unasked it comes too, but later.
            if posted.ask().is_err() {
                core.step();
            }
            sent
        } else {
            self.put_message(control, head, Some((token, tag)))
        };
        sent.map_err(|error| self.transfer_error(error))
    }

    /// Sends a payload by token, or posts it, unless the token is of no table that is there.
    fn put_payload<'a>(
        &mut self,
        token: PayloadToken,
        tag: u64,
        payload: impl Source<'a>,
        posted: &mut Posted,
    ) -> Result<(), MessageError> {
        let Some(at) = self.table(token)? else { return Ok(()) };
        let table = &self.tables[at];
        let sent = self.session.core().corked(|| table.begin_token(token, tag, payload, posted));
        self.end_of_payload(token, at, sent)
    }

    /// What went by the table at that place goes before the message.
    fn end_of_payload(
        &mut self,
        token: PayloadToken,
        at: usize,
        sent: Result<(), TransferError>,
    ) -> Result<(), MessageError> {
        let table = &self.tables[at];
        let sent = sent.and_then(|()| match table.as_ptr() {
            // The message does not go through the node, so the payload comes first.
            None if self.is_mapped() => table.flush(),
            _ => Ok(()),
        });
        self.unless_revoked(token, sent)
    }

    /// Forgets a table that its owner has replaced; it says so of the payload.
    fn unless_revoked(&mut self, token: PayloadToken, sent: Result<(), TransferError>) -> Result<(), MessageError> {
        match sent {
            Err(TransferError::Revoked { .. }) => {
                self.tables.retain(|table| table.export_id() != token.table);
                Ok(())
            }
            sent => sent.map_err(|error| self.transfer_error(error)),
        }
    }

    /// Where among the tables that of a token is, if it has been imported.
    fn known_table(&self, token: PayloadToken) -> Option<usize> {
        self.tables.iter().position(|table| table.export_id() == token.table)
    }

    /// The same; it is imported at its first use. None: there is none that this process may send
    /// to.
    fn table(&mut self, token: PayloadToken) -> Result<Option<usize>, MessageError> {
        if let Some(at) = self.known_table(token) {
            return Ok(Some(at));
        }
        let builder = self.session.import_id(token.table).owner(self.calls.owner()).rights(Rights::WRITE);
        let builder = self.node.iter().fold(builder, |builder, node| builder.node(node));
        let table = match builder.open() {
            Ok(table) => table,
            Err(error) if error.refusal().is_some_and(|code| code != RefusalCode::TimedOut) => return Ok(None),
            Err(error) => return Err(MessageError::Import { endpoint: self.endpoint.clone(), error }),
        };
        if self.tables.len() >= CONNECTION_TABLES_MAX {
            self.tables.pop_front();
        }
        self.tables.push_back(table);
        Ok(Some(self.tables.len() - 1))
    }

    /// Whether messages are stored into the owner's memory, without the node: it is a process of
    /// this node, and what it exports may be mapped.
    pub fn is_mapped(&self) -> bool {
        self.channel.as_ptr().is_some()
    }

    /// Why it cannot be used any more, if so.
    pub fn broken(&self) -> Option<TransferError> {
        self.channel.broken()
    }

    /// Waits until all that was sent is visible to the owner, who may not have taken it yet.
    ///
    /// # Errors
    /// [`MessageError::Transfer`].
    pub fn flush(&self) -> Result<(), MessageError> {
        self.channel.flush().map_err(|error| MessageError::Transfer { endpoint: self.endpoint.clone(), error })
    }

    /// Messages sent that the owner has not taken yet, by what it says now; between nodes it is
    /// asked, which takes a round trip. What is sent is copied, or on its way, when the send
    /// returns; this is for a sender that wants to know how far the owner is. Source: [GMS §2]
    /// transmit complete.
    ///
    /// # Errors
    /// [`MessageError::Transfer`].
    pub fn outstanding(&mut self) -> Result<u64, MessageError> {
        self.ask().map_err(|error| self.transfer_error(error))?;
        Ok(self.credit.outstanding())
    }

    fn put<'a>(
        &mut self,
        control: &[u8],
        payload: impl Source<'a>,
        into: Option<(Run, u64)>,
    ) -> Result<(), TransferError> {
        if let Some((run, _)) = into {
            let frame = self.shape.frame(run.first);
            self.session.core().corked(|| self.channel.send(frame, payload))?;
        }
        let payload = into.map_or(Payload::None, |(run, bytes)| Payload::Frames(run, bytes));
        self.put_message(control, Head { control: control.len(), payload }, None)
    }

    fn put_message(
        &mut self,
        control: &[u8],
        head: Head,
        token: Option<(PayloadToken, u64)>,
    ) -> Result<(), TransferError> {
        if let Some(stored) = self.store_message((&[], control), head, token) {
            return stored;
        }
        let sent = self.credit.sent();
        let mut image = Image::new();
        image.fill(control, head, token, sent + 1);
        let at = slot_end(sent) - head.slot_bytes();
        if self.is_polled(head) {
            self.channel.send_bytes(at, image.bytes())?;
        } else {
            // Message and mark share a packet, where that can be.
            self.session.core().corked(|| self.channel.send_bytes(at, image.bytes()))?;
            // That the board has gone since is of no harm to the message, which goes without it
            // then. A later call says so.
            if self.mark_board().is_err() {
                self.session.core().step();
            }
        }
        self.spend(head);
        self.ask_early();
        Ok(())
    }

    /// Stores a message in the memory of the owner. None: it is not mapped.
    #[inline]
    fn store_message<const N: usize>(
        &mut self,
        control: (&[u8; N], &[u8]),
        head: Head,
        token: Option<(PayloadToken, u64)>,
    ) -> Option<Result<(), TransferError>> {
        let mapped = self.channel.mapped_both_ways()?;
        let sent = self.credit.sent();
        let store = |region: &Region| store(region, slot_end(sent), control, head, token, sent + 1);
        let quiet = match mapped.send_then_load(control.1, head.slot_bytes(), store, AGREED + QUIET_AT) {
            Ok(quiet) => quiet,
            Err(fault) => return Some(Err(self.channel.fault(fault))),
        };
        mapped.prefetch(slot_end(sent + SLOTS_STORED_SOON) - 8);
        self.spend(head);
        if quiet != 0 {
            // As in `put_message`.
            let _ = self.mark_board();
        }
        Some(Ok(()))
    }

    #[inline]
    fn spend(&mut self, head: Head) {
        self.credit.spend(match head.payload {
            Payload::Frames(run, _) => Some(run),
            Payload::None | Payload::ByToken(_) => None,
        });
    }

    /// Whether the owner is taken for one that polls this channel, which is not mapped: he does for
    /// a moment after each message, if this one is not behind a long payload. To ask would be to
    /// wait for the answer. What this is wrong about the owner finds when he polls all senders.
    fn is_polled(&mut self, head: Head) -> bool {
        if self.notify {
            return false;
        }
        let behind = match head.payload {
            Payload::None => 0,
            Payload::Frames(_, bytes) | Payload::ByToken(bytes) => bytes,
        };
        let now = self.session.core().waiting.waiter.now();
        let before = std::mem::replace(&mut self.sent_at, now);
        let polled = behind < MARKED_BEHIND_BYTES
            && now.since(before) < POLLED_AFTER_MESSAGE
            && now.since(self.marked_at) < POLLED_AFTER_MARK;
        if !polled {
            self.marked_at = now;
        }
        polled
    }

    /// Marks the board, for the owner may not poll this channel.
    #[inline(never)]
    fn mark_board(&mut self) -> Result<(), TransferError> {
        self.mark = self.mark.wrapping_add(1);
        let options = SendOptions { notify: self.notify.then_some(0), ..SendOptions::default() };
        self.board.send_with(self.index, &[self.mark], options)
    }

    /// Asks the owner's memory what is free now.
    fn ask(&mut self) -> Result<(), TransferError> {
        // Answers are heard in the order in which they were asked for.
        self.hear_asked()?;
        let mut words = [0; CREDIT_BYTES];
        self.channel.fetch(AGREED + TAKEN_AT, &mut words[..])?;
        self.hear(&words);
        Ok(())
    }

    fn hear(&mut self, words: &[u8]) {
        let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().expect("eight bytes"));
        self.credit.hear([word(0), word(8)]);
    }

    /// Asks while there is still room, and hears what came of it at a later message: so a stream
    /// of them does not stand for a round trip each time that all is used up.
    fn ask_early(&mut self) {
        if self.asked.as_mut().is_some_and(|asked| asked.poll().is_some()) {
            // Why it failed shows where room is waited for.
            let _ = self.hear_asked();
        } else if self.asked.is_none() && self.credit.is_low() {
            self.asked = self.channel.post_fetch(AGREED + TAKEN_AT, vec![0; CREDIT_BYTES]).ok();
        }
    }

    /// Waits for the answer to what was asked early, if something was.
    fn hear_asked(&mut self) -> Result<(), TransferError> {
        let Some(mut asked) = self.asked.take() else { return Ok(()) };
        asked.wait()?;
        self.hear(&asked.into_inner());
        Ok(())
    }

    /// Waits for room for a message, with a payload of so many frames.
    fn wait_for_room(&mut self, frames: u64, timeout: Duration) -> Result<Option<Run>, MessageError> {
        let core = self.session.core().clone();
        let deadline = core.deadline(timeout);
        let mut pause = FULL_RETRY_MIN;
        loop {
            let heard = self.hear_asked().and_then(|()| match self.credit.room(frames) {
                // What was asked early may be enough, and says nothing if it is not.
                Some(_) => Ok(()),
                None => self.ask(),
            });
            heard.map_err(|error| self.transfer_error(error))?;
            let now = core.waiting.waiter.now();
            self.forget_kept(now);
            if let Some(run) = self.credit.room(frames) {
                return Ok(run);
            }
            if frames > 1 && self.credit.keep(frames) {
                self.kept_at = now;
            }
            if deadline.left(now).is_none_or(|left| left.is_zero()) {
                let after_ms = timeout.as_millis() as u64;
                return Err(MessageError::Full { endpoint: self.endpoint.clone(), after_ms });
            }
            // Nobody says when there is room: the owner may be on another node.
            let again: Deadline = core.deadline(pause).min(deadline);
            let _ = core.wait_unannounced(again, || None::<()>);
            pause = (pause * 2).min(FULL_RETRY_MAX);
        }
    }

    /// Keeps no frames for a long payload that nobody sends any more.
    fn forget_kept(&mut self, now: Nanos) {
        if self.credit.keeps() && now.since(self.kept_at) >= RUN_KEPT {
            self.credit.keep_none();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // If there is no room for it, or no node, the owner learns it from its node.
        let call = Call::Leave { number: self.number };
        let options = AppendOptions { timeout: Some(Duration::ZERO), notify: true, ..AppendOptions::default() };
        let _ = self.calls.try_append(&call.to_bytes(), options);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endpoint;
    use vmmc_node::{Embedded, KeySource, NodeConfig};

    /// Two sessions of a node.
    fn sessions(name: &str) -> [Session; 2] {
        let node = Embedded::start(NodeConfig::new(name).key(KeySource::Plain)).expect("the node starts");
        [(); 2].map(|()| Session::over(node.attach().expect("it lets us in")).expect("a session"))
    }

    fn connect(sender: &Session, endpoint: &mut Endpoint) -> Connection {
        let name = endpoint.name().to_string();
        std::thread::scope(|scope| {
            let connected = scope.spawn(|| sender.connect(&name).open().expect("it is let in"));
            while !connected.is_finished() {
                assert!(endpoint.poll().expect("the owner is here").is_none());
            }
            connected.join().expect("no panic")
        })
    }

    #[test]
    fn what_is_behind_a_long_payload_marks_the_board_whenever_another_one_went() {
        let [owner, sender] = sessions("connection-marks");
        let builder = owner.endpoint("marks").mappable(false);
        let mut endpoint = builder.tokens(2, 2 * MARKED_BEHIND_BYTES).create().expect("an endpoint");
        let mut connection = connect(&sender, &mut endpoint);
        let memory = sender.buffer(MARKED_BEHIND_BYTES).expect("memory");
        let mut marked = [0; 2];
        for _ in 0..50 {
            for (len, marked) in [MARKED_BEHIND_BYTES - 1, MARKED_BEHIND_BYTES].into_iter().zip(&mut marked) {
                let buffer = endpoint.token_buffer().expect("one is free");
                let before = connection.mark;
                // So soon behind another one that no time has passed.
                (connection.sent_at, connection.marked_at) = [connection.session.core().waiting.waiter.now(); 2].into();
                connection.send_by_token(b"here it is", buffer.token(), memory.range(0..len)).expect("there is room");
                *marked += u32::from(connection.mark != before);
                assert_eq!(endpoint.wait().expect("it comes").by_token().expect("by token").len, Ok(len));
            }
        }
        assert!(marked[0] < 50 && marked[1] == 50, "{marked:?}");
    }

    #[test]
    fn a_message_to_another_node_goes_although_the_board_has_gone() {
        let config = |name: &str| {
            let listen = "127.0.0.1:0".parse().expect("an address");
            NodeConfig::new(name).listen(listen).key(KeySource::Plain).plain_trust_users()
        };
        let near = Embedded::start(config("connection-near")).expect("the node starts");
        let far = Embedded::start(config("connection-far").peer(&near.addresses())).expect("the node starts");
        let session = |node: &Embedded| Session::over(node.attach().expect("it lets us in")).expect("a session");
        let (owner, sender) = (session(&near), session(&far));
        let mut endpoint = owner.endpoint("without").create().expect("an endpoint");
        let mut connection = std::thread::scope(|scope| {
            let connected = scope.spawn(|| sender.connect("without").node(&near.name()).open().expect("it is let in"));
            while !connected.is_finished() {
                assert!(endpoint.poll().expect("the owner is here").is_none());
            }
            connected.join().expect("no panic")
        });
        let board = owner.export(64).create().expect("an export");
        let polled = std::sync::atomic::AtomicBool::new(true);
        connection.board = std::thread::scope(|scope| {
            scope.spawn(|| {
                while polled.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(endpoint.poll().expect("the owner is here").is_none());
                }
            });
            let import = sender.import_id(board.id()).node(&near.name()).rights(Rights::WRITE).open();
            polled.store(false, std::sync::atomic::Ordering::Relaxed);
            import.expect("an import")
        });
        board.unexport().expect("it ends");
        std::thread::sleep(Duration::from_millis(20));
        let _ = connection.board.broken();
        assert!(connection.board.broken().is_some(), "the sender knows");
        connection.send(b"it goes", b"").expect("it is on its way");
        // Nobody steps the sender's node before its keeper does, after a second.
        let soon = owner.deadline(Duration::from_millis(500));
        let message = endpoint.wait_by(soon).expect("it has gone by itself");
        assert_eq!(message.control(), b"it goes");
    }

    #[test]
    fn a_message_that_has_arrived_is_sent_although_its_owner_goes_before_it_is_told() {
        let [owner, sender] = sessions("connection-board");
        let mut endpoint = owner.endpoint("goes").create().expect("an endpoint");
        let mut connection = connect(&sender, &mut endpoint);
        // The owner polls the sender no more, so the board is to be marked; and that has gone.
        let mut quiet = [0; 8];
        while quiet == [0; 8] {
            connection.channel.fetch(AGREED + QUIET_AT, &mut quiet[..]).expect("it is there");
            assert!(endpoint.poll().expect("the owner is here").is_none());
        }
        let board = owner.export(64).create().expect("an export");
        connection.board = sender.import_id(board.id()).rights(Rights::WRITE).open().expect("an import");
        board.unexport().expect("it ends");
        connection.send(b"it is there", b"").expect("it has arrived");
        let message = endpoint.wait().expect("it is found without a mark");
        assert_eq!(message.control(), b"it is there");
    }
}
