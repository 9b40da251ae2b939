//! Token tables: buffers that each take one payload, from whoever has the token of it.
//!
//! Invariant: a buffer is given out again only when no payload is on its way into it. What stands
//! in an entry is read as a claim of the sender: the place of a buffer is known here. Source: [GMS
//! §2] incoming payload table.

use crate::error::{AccessError, ExportError, TokenError, WaitError};
use crate::export::{Export, ExportBuilder};
use crate::limits::{TOKEN_BYTES_MAX, TOKEN_REGIONS_MAX, TOKEN_TABLES_MAX, TOKENS_MAX};
use crate::session::Session;
use crate::token_region::TokenRegion;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use vmmc_host::Deadline;
use vmmc_host::control::Access;
use vmmc_host::os::RandomWords;
use vmmc_nic::{ExportId, TOKEN_ENTRY_BYTES, TokenState, TokenWords};

/// Buffers begin at a multiple of this, bytes.
const BUFFER_ALIGN: u64 = 64;

/// Buffers that each take one payload. Dropping it ends it when the last of its buffers is dropped.
///
/// A token names a buffer; whoever has it, on any node, may send one payload there, and so may
/// whoever it is passed on to. The owner can cancel it until something comes.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-tokens").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc::Rights;
/// let table = session.token_table(4, 64 << 10).create()?;
/// let buffer = table.arm()?.expect("four are free");
/// let token = buffer.token(); // goes to another process, which may pass it on
///
/// let import = session.import_id(token.table).rights(Rights::WRITE).open()?;
/// import.send_token(token, 77, b"the answer")?;
/// import.send_token(token, 78, b"another one")?; // dropped: a token is for one payload
/// let arrival = buffer.wait()?;
/// assert_eq!((arrival.tag, arrival.len), (77, 10));
/// assert_eq!(buffer.to_vec()?, b"the answer");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Within a node a sender maps the table: tokens then guard against mistakes and races, and not
/// against a hostile process that the access list admits. Where that matters,
/// [`mappable(false)`](TokenTableBuilder::mappable) has the node check each payload, as it does
/// between nodes.
///
/// Source: [GMS §2].
#[derive(Clone)]
pub struct TokenTable {
    table: Arc<Table>,
    bytes: u64,
}

/// Entries, and the memory that they are of.
pub(crate) struct Table {
    export: Export,
    count: u32,
    /// Of the buffer that each entry was armed for last.
    capacities: Box<[AtomicU64]>,
    places: Mutex<Places>,
}

pub(crate) struct Places {
    free: Vec<u32>,
    /// Given back while a payload was on its way there.
    filling: Vec<u32>,
    /// Which bytes of the export each entry that is not free is for.
    taken: Vec<Range<u64>>,
    keys: RandomWords,
}

/// Choices for a token table; made by [`Session::token_table`](crate::Session::token_table).
#[must_use = "there is no table before `create`"]
pub struct TokenTableBuilder {
    export: ExportBuilder,
    count: u64,
    bytes: u64,
}

/// Names a buffer of a token table, for one payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PayloadToken {
    /// The table: an export of the owner's node.
    pub table: ExportId,
    /// Which of its buffers.
    pub index: u32,
    /// What lets the payload in.
    pub key: u64,
}

impl PayloadToken {
    /// Bytes of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 20;

    /// As it travels in messages.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.table.to_u64().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..].copy_from_slice(&self.index.to_le_bytes());
        bytes
    }

    /// The inverse of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> PayloadToken {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let index = u32::from_le_bytes(std::array::from_fn(|i| bytes[16 + i]));
        PayloadToken { table: ExportId::from_u64(word(0)), index, key: word(8) }
    }
}

/// A buffer of a token table that waits for a payload, or has it. Dropping it cancels its token, if
/// nothing has come, and gives the buffer back.
pub struct TokenBuffer {
    table: Arc<Table>,
    index: u32,
    key: u64,
    /// Where in the export it begins.
    at: u64,
    bytes: u64,
}

/// A payload that has come by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// What its sender said.
    pub tag: u64,
    /// Its bytes.
    pub len: u64,
}

/// A payload that a message says it has sent by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByToken {
    /// Which token.
    pub token: PayloadToken,
    /// Bytes of the payload, which is in the buffer of the token; or why it was dropped.
    pub len: Result<u64, TokenRefused>,
}

/// Why a payload was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefused {
    /// The token is none that is awaited here.
    #[error("its token is none that is awaited here")]
    Wrong,
    /// The payload was longer than the buffer.
    #[error("it has {len} bytes, and the buffer {max}")]
    TooLong {
        /// Bytes of the payload.
        len: u64,
        /// Bytes of the buffer.
        max: u64,
    },
    /// Another payload has come by the token.
    #[error("its token has let another payload in")]
    Used,
    /// The owner has cancelled the token.
    #[error("its token was cancelled")]
    Cancelled,
}

impl TokenTableBuilder {
    pub(crate) fn new(session: &Session, count: u64, bytes: u64) -> TokenTableBuilder {
        let size = first_buffer(count).saturating_add(stride(bytes).saturating_mul(count));
        let entries = u32::try_from(count).unwrap_or(u32::MAX);
        TokenTableBuilder { export: session.export(size).tokens(entries), count, bytes }
    }

    /// Who may send by token; default processes of the same user.
    pub fn access(self, access: Access) -> Self {
        TokenTableBuilder { export: self.export.access(access), ..self }
    }

    /// Whether senders of this node may map the table; default true. Without, the node checks and
    /// moves each payload.
    pub fn mappable(self, mappable: bool) -> Self {
        TokenTableBuilder { export: self.export.mappable(mappable), ..self }
    }

    /// Makes the table.
    ///
    /// # Errors
    /// [`ExportError`]. [`ExportError::Tokens`]: there are no such tables.
    pub fn create(self) -> Result<TokenTable, ExportError> {
        let TokenTableBuilder { export, count, bytes } = self;
        if count == 0 || count > TOKENS_MAX || bytes == 0 || bytes > TOKEN_BYTES_MAX {
            return Err(ExportError::Tokens { count, bytes });
        }
        Ok(TokenTable { table: Arc::new(Table::new(export.create()?, count as u32)), bytes })
    }
}

/// Bytes from the start of a buffer to the next.
fn stride(bytes: u64) -> u64 {
    bytes.saturating_add(BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN
}

/// Where the buffers begin.
fn first_buffer(count: u64) -> u64 {
    count.saturating_mul(TOKEN_ENTRY_BYTES)
}

impl TokenTable {
    /// Id for importers, which every token carries.
    pub fn id(&self) -> ExportId {
        self.table.export.id()
    }

    /// Buffers.
    pub fn count(&self) -> u64 {
        self.table.count.into()
    }

    /// Bytes of each.
    pub fn buffer_bytes(&self) -> u64 {
        self.bytes
    }

    /// Buffers that were given back while a payload was on its way there, and that wait for its
    /// end. A sender that died in the middle never ends it: when these are many, make a new table.
    pub fn filling(&self) -> u64 {
        self.table.filling()
    }

    /// A free buffer, with a new token. None: all are in use.
    ///
    /// # Errors
    /// [`TokenError::Access`]: the process was forked. [`TokenError::NoKeys`]: the kernel gives no
    /// random bytes.
    pub fn arm(&self) -> Result<Option<TokenBuffer>, TokenError> {
        let (count, bytes) = (self.table.count.into(), self.bytes);
        let buffer_at = |index: u32| first_buffer(count) + u64::from(index) * stride(bytes);
        self.table.arm(|_, index| Ok((buffer_at(index), bytes)))
    }
}

impl Table {
    pub(crate) fn new(export: Export, count: u32) -> Table {
        let places = Places {
            free: (0..count).rev().collect(),
            filling: Vec::new(),
            taken: vec![0..0; count as usize],
            keys: RandomWords::default(),
        };
        let capacities = (0..count).map(|_| AtomicU64::new(0)).collect();
        Table { export, count, capacities, places: Mutex::new(places) }
    }

    pub(crate) fn export(&self) -> &Export {
        &self.export
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.into()
    }

    /// Arms a free entry, if there is one, for the buffer that `place` gives for it: where in the
    /// export that begins, and its bytes.
    pub(crate) fn arm(
        self: &Arc<Self>,
        place: impl FnOnce(&Places, u32) -> Result<(u64, u64), TokenError>,
    ) -> Result<Option<TokenBuffer>, TokenError> {
        // Not in the child of a fork, which would arm the parent's.
        self.words(0).map_err(TokenError::Access)?;
        let mut places = self.places();
        if places.free.is_empty() || !places.filling.is_empty() {
            self.reclaim(&mut places);
        }
        // Only the two lowest bits count for nothing.
        let key = places.keys.next().map_err(|e| TokenError::NoKeys { why: e.kind() })? & !3;
        let Some(&index) = places.free.last() else { return Ok(None) };
        let (at, bytes) = place(&places, index)?;
        places.free.pop();
        places.taken[index as usize] = at..at + bytes;
        drop(places);
        let buffer = TokenBuffer { table: self.clone(), index, key, at, bytes };
        self.capacities[index as usize].store(bytes, Ordering::Relaxed);
        self.words(index).map_err(TokenError::Access)?.arm(key, at, bytes);
        Ok(Some(buffer))
    }

    /// Bytes of the payload, of which a sender says that it has sent `len` with this tag; or why
    /// they are not there.
    pub(crate) fn came(&self, token: PayloadToken, tag: u64, len: u64) -> Result<u64, TokenRefused> {
        let Some(max) = self.capacities.get(token.index as usize) else { return Err(TokenRefused::Wrong) };
        let max = max.load(Ordering::Relaxed);
        let Ok(mut words) = self.words(token.index) else { return Err(TokenRefused::Wrong) };
        let (key, state) = words.state();
        match state {
            _ if key != token.key => Err(TokenRefused::Wrong),
            TokenState::Cancelled => Err(TokenRefused::Cancelled),
            TokenState::Armed if len > max => Err(TokenRefused::TooLong { len, max }),
            TokenState::Armed => Err(TokenRefused::Wrong),
            TokenState::Done => match words.payload() {
                (of, len) if of == tag => Ok(len.min(max)),
                _ => Err(TokenRefused::Used),
            },
            TokenState::Filling => Err(TokenRefused::Used),
        }
    }
}

impl Places {
    /// Whether a payload may be, or is on its way to, some of these bytes of the export.
    pub(crate) fn are_taken(&self, bytes: &Range<u64>) -> bool {
        let common = |taken: &Range<u64>| taken.start.max(bytes.start)..taken.end.min(bytes.end);
        self.taken.iter().any(|taken| !common(taken).is_empty())
    }

    fn give_back(&mut self, index: u32) {
        self.taken[index as usize] = 0..0;
        self.free.push(index);
    }
}

/// The buffers of an endpoint for payloads by token, for any thread; see
/// [`Endpoint::token_buffer`](crate::Endpoint::token_buffer).
#[derive(Clone)]
pub struct TokenPool {
    session: Session,
    endpoint: String,
    access: Access,
    mappable: bool,
    tables: Arc<Mutex<Pooled>>,
}

struct Pooled {
    /// The last one is armed, buffers of the others are out.
    tables: Vec<TokenTable>,
    regions: Vec<(ExportId, Weak<Table>)>,
}

impl TokenPool {
    pub(crate) fn new(
        session: &Session,
        endpoint: &str,
        (access, mappable): (&Access, bool),
        count: u64,
        bytes: u64,
    ) -> Result<TokenPool, ExportError> {
        let table = session.token_table(count, bytes).access(access.clone()).mappable(mappable).create()?;
        let (session, endpoint, access) = (session.clone(), endpoint.to_string(), access.clone());
        let pooled = Pooled { tables: vec![table], regions: Vec::new() };
        Ok(TokenPool { session, endpoint, access, mappable, tables: Arc::new(Mutex::new(pooled)) })
    }

    /// As [`Endpoint::token_buffer`](crate::Endpoint::token_buffer).
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn arm(&self) -> Result<TokenBuffer, TokenError> {
        let endpoint = || self.endpoint.clone();
        // Before the lock, which another thread may have held when this process was forked.
        self.session.must_be_here().map_err(TokenError::Access)?;
        let Pooled { tables, .. } = &mut *self.pooled();
        let table = tables.last().expect("it was made with one");
        if let Some(buffer) = table.arm()? {
            return Ok(buffer);
        }
        let (count, bytes) = (table.count(), table.buffer_bytes());
        if table.filling() * 2 < count || tables.len() >= TOKEN_TABLES_MAX {
            return Err(TokenError::InUse { endpoint: endpoint(), count });
        }
        // Senders that died in mid-payload have it: a new one is in its place.
        let table = self.session.token_table(count, bytes).access(self.access.clone()).mappable(self.mappable);
        let table = table.create().map_err(|error| TokenError::Table(Box::new(error)))?;
        tables.retain(|table| Arc::strong_count(&table.table) > 1);
        let armed = table.arm()?;
        tables.push(table);
        Ok(armed.expect("all of it is free"))
    }

    /// A region of so many bytes for payloads to this endpoint, up to so many of them at a time:
    /// who may send to the endpoint may send there by token, and the endpoint tells of those that
    /// have come ([`Message::by_token`](crate::Message::by_token)). An endpoint has up to
    /// [`TOKEN_REGIONS_MAX`].
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn region(&self, ranges: u64, bytes: u64) -> Result<TokenRegion, TokenError> {
        self.session.must_be_here().map_err(TokenError::Access)?;
        let full = |pooled: &mut Pooled| {
            pooled.regions.retain(|(_, table)| table.strong_count() > 0);
            pooled.regions.len() >= TOKEN_REGIONS_MAX
        };
        let too_many = || TokenError::Regions { endpoint: self.endpoint.clone(), max: TOKEN_REGIONS_MAX };
        if full(&mut self.pooled()) {
            return Err(too_many());
        }
        // Not under the lock, which every payload takes.
        let region = self.session.token_region(ranges, bytes).access(self.access.clone()).mappable(self.mappable);
        let region = region.create().map_err(|error| TokenError::Table(Box::new(error)))?;
        let mut pooled = self.pooled();
        if full(&mut pooled) {
            return Err(too_many());
        }
        pooled.regions.push((region.id(), region.table()));
        Ok(region)
    }

    /// Arms a range of a region of this endpoint, [`TokenRegion::arm`].
    ///
    /// # Errors
    /// As for that; [`TokenError::Foreign`]: the region is none of [`region`](Self::region), so the
    /// endpoint would not tell of what comes there.
    pub fn arm_region(&self, region: &TokenRegion, range: Range<u64>) -> Result<TokenBuffer, TokenError> {
        self.session.must_be_here().map_err(TokenError::Access)?;
        let ours = self.pooled().regions.iter().any(|(id, _)| *id == region.id());
        if ours { region.arm(range) } else { Err(TokenError::Foreign { endpoint: self.endpoint.clone() }) }
    }

    /// As [`Table::came`].
    pub(crate) fn came(&self, token: PayloadToken, tag: u64, len: u64) -> Result<u64, TokenRefused> {
        let pooled = self.pooled();
        if let Some(table) = pooled.tables.iter().find(|table| table.id() == token.table) {
            return table.table.came(token, tag, len);
        }
        let region = pooled.regions.iter().find(|(id, _)| *id == token.table);
        let region = region.and_then(|(_, table)| table.upgrade());
        // It may be the last one, and its end is a call to the node.
        drop(pooled);
        region.map_or(Err(TokenRefused::Wrong), |table| table.came(token, tag, len))
    }

    fn pooled(&self) -> MutexGuard<'_, Pooled> {
        self.tables.lock().expect("no panic while the lock is held")
    }
}

impl Table {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().expect("no panic while the lock is held")
    }

    fn entry(&self, index: u32) -> u64 {
        u64::from(index) * TOKEN_ENTRY_BYTES
    }

    pub(crate) fn filling(&self) -> u64 {
        let mut places = self.places();
        self.reclaim(&mut places);
        places.filling.len() as u64
    }

    fn words(&self, index: u32) -> Result<EntryWords<'_>, AccessError> {
        self.export.words(self.entry(index), EntryWords::COUNT).map(EntryWords)
    }

    /// Buffers whose payload has ended meanwhile are free again.
    fn reclaim(&self, places: &mut Places) {
        let mut filling = std::mem::take(&mut places.filling);
        filling.retain(|index| {
            let ended = self.words(*index).is_ok_and(|mut words| words.state().1 == TokenState::Done);
            if ended {
                places.give_back(*index);
            }
            !ended
        });
        places.filling = filling;
    }
}

impl TokenBuffer {
    /// What names it, for one payload.
    pub fn token(&self) -> PayloadToken {
        PayloadToken { table: self.table.export.id(), index: self.index, key: self.key }
    }

    /// Bytes that a payload can have.
    pub fn capacity(&self) -> u64 {
        self.bytes
    }

    /// The payload, if it has come. Steps an embedded node.
    ///
    /// # Errors
    /// [`AccessError::Forked`].
    pub fn poll(&self) -> Result<Option<Arrival>, AccessError> {
        let arrival = self.arrival()?;
        if arrival.is_none() {
            self.table.export.core().step();
            return self.arrival();
        }
        Ok(arrival)
    }

    /// Waits the session's timeout for the payload.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&self) -> Result<Arrival, WaitError> {
        self.wait_by(self.table.export.core().default_deadline())
    }

    /// Waits until the deadline for the payload.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait_by(&self, deadline: Deadline) -> Result<Arrival, WaitError> {
        let done = TokenState::Done.word(self.key);
        self.table.export.wait_word_by(self.table.entry(self.index), |word| word == done, deadline)?;
        Ok(self.arrival()?.expect("nothing changes the state after that"))
    }

    /// Cancels the token. True: nothing has come, and nothing will; false: a payload has come, or
    /// is coming.
    ///
    /// # Errors
    /// [`AccessError::Forked`].
    pub fn cancel(&self) -> Result<bool, AccessError> {
        Ok(self.table.words(self.index)?.cancel(self.key))
    }

    /// Copies bytes out of the buffer. Before the payload has come they mean nothing.
    ///
    /// # Errors
    /// [`AccessError::OutOfBounds`], [`AccessError::Forked`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let len = into.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.bytes) {
            return Err(AccessError::OutOfBounds { offset, len, size: self.bytes });
        }
        self.table.export.read(self.at + offset, into)
    }

    /// A copy of the payload; empty if none has come.
    ///
    /// # Errors
    /// [`AccessError::Forked`].
    pub fn to_vec(&self) -> Result<Vec<u8>, AccessError> {
        let mut copy = vec![0; self.arrival()?.map_or(0, |arrival| arrival.len) as usize];
        self.read(0, &mut copy)?;
        Ok(copy)
    }

    /// First byte, for callers that take the responsibility of shared memory themselves: valid
    /// until this is dropped. A sender that maps the table could write there at any time.
    pub fn as_ptr(&self) -> *const u8 {
        self.table.export.as_ptr().wrapping_add(self.at as usize)
    }

    fn arrival(&self) -> Result<Option<Arrival>, AccessError> {
        let mut words = self.table.words(self.index)?;
        let came = words.state() == (self.key, TokenState::Done);
        Ok(came.then(|| words.payload()).map(|(tag, len)| Arrival { tag, len: len.min(self.bytes) }))
    }
}

/// The words of an entry in memory that is mapped here.
pub(crate) struct EntryWords<'a>(pub(crate) &'a [AtomicU64]);

impl EntryWords<'_> {
    pub(crate) const COUNT: usize = 5;
}

impl TokenWords for EntryWords<'_> {
    #[inline]
    fn load(&mut self, word: usize, order: Ordering) -> u64 {
        self.0[word].load(order)
    }

    #[inline]
    fn store(&mut self, word: usize, value: u64, order: Ordering) {
        self.0[word].store(value, order);
    }

    #[inline]
    fn compare_swap(&mut self, expected: u64, desired: u64, [done, not]: [Ordering; 2]) -> Result<u64, u64> {
        self.0[0].compare_exchange(expected, desired, done, not)
    }
}

impl Drop for TokenBuffer {
    fn drop(&mut self) {
        // In the child of a fork it is the parent's.
        let Ok(mut words) = self.table.words(self.index) else { return };
        // Mostly its payload has come, and then the entry stays as it is.
        let ended = words.state().1 == TokenState::Done || words.cancel(self.key);
        let mut places = self.table.places();
        if ended { places.give_back(self.index) } else { places.filling.push(self.index) }
    }
}

impl std::fmt::Debug for TokenTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, count) = (self.id(), self.count());
        f.debug_struct("TokenTable").field("id", &id).field("count", &count).field("bytes", &self.bytes).finish()
    }
}

impl std::fmt::Debug for TokenPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenPool").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for TokenBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenBuffer").field("table", &self.table.export.id()).field("index", &self.index).finish()
    }
}
