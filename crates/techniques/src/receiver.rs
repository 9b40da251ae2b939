//! The receiving end of a channel: its memory, and messages out of it.
//!
//! Invariant: words that the sender can write are copied once and checked before use; of the words
//! that this side writes there is a private copy, so what the sender does to them changes nothing
//! here. A message that does not fit is left where it is. Each page of the channel's pages is a
//! frame's, a buffer's or free, and never two of them. Source: [SEMANTICS §2.2].

use crate::limits::{AGREED_BYTES, PEER_LOOK, POOL_BYTES, WINDOW_BYTES};
use crate::protocol::{
    CLAIM_AT, Fragment, FragmentKind, HEARD_AT, Incoming, Layout, NEVER, NOTICE_BYTES, PAGE, Posting, VERSION_AT,
};
use crate::waiting::Limit;
use crate::{Arrived, Error, PageBuffer, PostedMemory, Technique};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vmmc::{Access, CallerMemory, Export, ExportBuilder, Region, Rights, Session, WaitError};

/// The receiving end of a channel.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-receiver").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc_techniques::{Receiver, Sender, Technique};
/// let mut receiver = Receiver::builder(&session, "frames").technique(Technique::CopyDma).open()?;
/// let mut sender = Sender::builder(&session, "frames").connect()?; // usually in another process
/// sender.send(b"buffered until somebody asks")?;
/// let mut text = [0; 100];
/// let len = receiver.receive(&mut text)?;
/// assert_eq!(&text[..len], b"buffered until somebody asks");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Receiver {
    session: Session,
    name: String,
    memory: Export,
    layout: Layout,
    incoming: Incoming,
    /// The page of each frame: what this side says, whatever stands in shared memory.
    table: Vec<u32>,
    /// Times that frames were exchanged.
    version: u64,
    /// Pages for buffers that no buffer has.
    own: Arc<Mutex<Vec<u32>>>,
    /// Ranges that are posted, oldest first.
    posted: VecDeque<(PostedMemory, Range<u64>)>,
    /// Memories made so far, and how they are exported.
    memories: u64,
    access: Access,
    mappable: bool,
    /// A fragment that was looked at and not taken.
    looked_at: Option<Fragment>,
    timeout: Duration,
    /// A sender has been there.
    met: bool,
    given_up: bool,
}

/// Choices for a receiver; made by [`Receiver::builder`].
#[must_use = "no channel is opened before `open`"]
#[derive(Debug)]
pub struct ReceiverBuilder {
    session: Session,
    name: String,
    technique: Technique,
    window: u64,
    pool: u64,
    agreed: Option<u64>,
    pages: Option<u64>,
    access: Access,
    mappable: bool,
    exchange_from: u64,
    timeout: Duration,
}

impl ReceiverBuilder {
    /// How messages move; default CopyDMA.
    pub fn technique(mut self, technique: Technique) -> Self {
        self.technique = technique;
        self
    }

    /// Bytes of the window for PIO; default [`WINDOW_BYTES`]. Rounded up to pages.
    pub fn window(mut self, bytes: u64) -> Self {
        self.window = bytes;
        self
    }

    /// Bytes of frames, which hold what has arrived and nobody has asked for; default
    /// [`POOL_BYTES`]. Rounded up to pages.
    pub fn pool(mut self, bytes: u64) -> Self {
        self.pool = bytes;
        self
    }

    /// Bytes of agreed memory; default [`AGREED_BYTES`] with DirectDMA, else none. Rounded up to
    /// pages.
    pub fn agreed(mut self, bytes: u64) -> Self {
        self.agreed = Some(bytes);
        self
    }

    /// Bytes of pages for [`Receiver::page_buffer`]; default as many as the pool has with PEXDMA
    /// and where the technique is chosen for each message, else none. Rounded up to pages.
    pub fn pages(mut self, bytes: u64) -> Self {
        self.pages = Some(bytes);
        self
    }

    /// Who may be the sender; default processes of the same user.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Whether a sender on this node may map the channel, and copy by itself; default true. Else
    /// the node moves the bytes, also on one machine.
    pub fn mappable(mut self, mappable: bool) -> Self {
        self.mappable = mappable;
        self
    }

    /// From how many bytes on the pages of a message are exchanged with those of a buffer, where
    /// the technique is chosen for each message (PEXDMA exchanges them at any length); default
    /// never. An exchange moves no byte, and each page that is read afterwards faults. So it pays
    /// where messages are passed on without a look at all of their bytes, from some 256 KiB on, and
    /// at no length where they are read (`vmmc bench techniques`). The sender hears of it when it
    /// connects, and lends the pages of such messages in long runs.
    ///
    /// ```no_run
    /// # fn relay(session: &vmmc::Session) -> Result<(), vmmc_techniques::Error> {
    /// use vmmc_techniques::{Receiver, Technique};
    ///
    /// let frames = Receiver::builder(session, "frames").technique(Technique::Auto);
    /// let mut frames = frames.exchange_from(256 << 10).open()?;
    /// let mut frame = frames.page_buffer(1 << 20)?;
    /// let received = frames.receive_pages(&mut frame, 0)?;
    /// println!("{} of {} bytes were exchanged", received.pages_exchanged * 4096, received.len);
    /// # Ok(())
    /// # }
    /// ```
    pub fn exchange_from(mut self, bytes: u64) -> Self {
        self.exchange_from = bytes;
        self
    }

    /// How long calls wait; default the session's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Opens the channel: from here on a sender can connect.
    ///
    /// # Errors
    /// [`Error::TooLarge`]; [`Error::Export`], a name that is taken for example.
    pub fn open(self) -> Result<Receiver, Error> {
        let default_agreed = if self.technique == Technique::DirectDma { AGREED_BYTES } else { 0 };
        let exchanges = matches!(self.technique, Technique::PexDma | Technique::Auto);
        let own = self.pages.unwrap_or(if exchanges { self.pool } else { 0 });
        let pages = |bytes: u64| bytes.div_ceil(PAGE);
        let layout = Layout {
            technique: self.technique,
            window: pages(self.window.max(1)).saturating_mul(PAGE),
            agreed: pages(self.agreed.unwrap_or(default_agreed)).saturating_mul(PAGE),
            pool: pages(self.pool.max(1)),
            own: pages(own),
            exchange_from: self.technique.exchange_from(self.exchange_from),
        };
        let asked = [self.window, self.agreed.unwrap_or(default_agreed), self.pool, own];
        let bytes =
            layout.checked_bytes().ok_or(Error::TooLarge { bytes: asked.into_iter().fold(0, u64::saturating_add) })?;
        // The header is there before anybody can find it.
        let region = Region::create(bytes).map_err(vmmc::BufferError::from)?;
        let table = layout.first_table();
        let entries: Vec<u8> = table.iter().flat_map(|page| page.to_le_bytes()).collect();
        region.write(layout.table_at(), &entries).expect("the layout was checked");
        for (index, word) in layout.encode().into_iter().enumerate() {
            region.word(8 * index as u64).expect("the layout was checked").store(word, Ordering::Release);
        }
        let export = self.session.export_region(region).name(&self.name).rights(Rights::ALL);
        let memory = export.access(self.access.clone()).mappable(self.mappable).create()?;
        Ok(Receiver {
            session: self.session,
            name: self.name,
            memory,
            incoming: Incoming::new(layout),
            layout,
            table,
            version: 0,
            own: Arc::new(Mutex::new(layout.own_pages())),
            posted: VecDeque::new(),
            memories: 0,
            access: self.access,
            mappable: self.mappable,
            looked_at: None,
            timeout: self.timeout,
            met: false,
            given_up: false,
        })
    }
}

/// Where the bytes of a message go.
enum Sink<'s> {
    Bytes(&'s mut [u8]),
    /// From this byte on, and how many pages were exchanged.
    Pages(&'s mut PageBuffer, u64, u64),
    /// They stay where they are.
    Nowhere,
}

impl Sink<'_> {
    fn room(&self) -> u64 {
        match self {
            Sink::Bytes(bytes) => bytes.len() as u64,
            Sink::Pages(buffer, offset, _) => buffer.len().saturating_sub(*offset),
            Sink::Nowhere => u64::MAX,
        }
    }
}

impl Receiver {
    /// A channel of this name, unique among the exports of this user on the node.
    pub fn builder(session: &Session, name: &str) -> ReceiverBuilder {
        ReceiverBuilder {
            session: session.clone(),
            name: name.to_string(),
            technique: Technique::CopyDma,
            window: WINDOW_BYTES,
            pool: POOL_BYTES,
            agreed: None,
            pages: None,
            access: Access::default(),
            mappable: true,
            exchange_from: NEVER,
            timeout: session.timeout(),
        }
    }

    /// How messages move.
    pub fn technique(&self) -> Technique {
        self.layout.technique
    }

    /// Name of the channel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long calls wait from here on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Bytes of agreed memory.
    pub fn agreed_bytes(&self) -> u64 {
        self.layout.agreed
    }

    /// Receives a message into a buffer; its length. With DirectDMA it is copied out of agreed
    /// memory, where [`receive_agreed`](Self::receive_agreed) leaves it.
    ///
    /// After [`Error::TimedOut`] in the middle of a long message, call again with the same buffer:
    /// it goes on where it was.
    ///
    /// # Errors
    /// [`Error::TooLong`]: the message stays, and can be received into a larger buffer.
    /// [`Error::TimedOut`], [`Error::SenderGone`], [`Error::Garbled`], [`Error::GivenUp`],
    /// [`Error::Wait`].
    pub fn receive(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        self.receive_to(&mut Sink::Bytes(into)).map(|len| len as usize)
    }

    /// Receives a message into a buffer of pages, from a byte on. Where the technique exchanges
    /// pages, those that the message fills are exchanged if the byte is the first one of a page and
    /// the buffer is one of [`page_buffer`](Self::page_buffer) of this channel; the rest is copied.
    /// [SEMANTICS §2.2]
    ///
    /// # Errors
    /// [`Error::Outside`] for a byte past the buffer; [`Error::Transfer`] if pages of it stay lent;
    /// else as [`receive`](Self::receive).
    pub fn receive_pages(&mut self, into: &mut PageBuffer, offset: u64) -> Result<Received, Error> {
        into.check(offset, 0)?;
        into.wait()?;
        let mut sink = Sink::Pages(into, offset, 0);
        let len = self.receive_to(&mut sink)?;
        let Sink::Pages(_, _, pages_exchanged) = sink else { unreachable!("it was made as pages") };
        Ok(Received { len, pages_exchanged })
    }

    /// A buffer of so many bytes whose pages can be exchanged for those of messages. Its memory is
    /// memory of the channel, which the sender can write: copy out what must not change.
    ///
    /// # Errors
    /// [`Error::NoPages`]: the channel has no more; [`ReceiverBuilder::pages`] gives it more.
    /// [`Error::Pages`].
    pub fn page_buffer(&self, len: u64) -> Result<PageBuffer, Error> {
        let pages = len.div_ceil(PAGE);
        let mut own = self.own.lock().expect("no panic while the lock is held");
        let Some(kept) = (own.len() as u64).checked_sub(pages) else {
            return Err(Error::NoPages { pages, free: own.len() as u64 });
        };
        // In order, for pages that follow each other are one mapping.
        own.sort_unstable_by(|a, b| b.cmp(a));
        let shown: Vec<u32> = own[kept as usize..].iter().rev().copied().collect();
        let home = Some(self.own.clone());
        let buffer = PageBuffer::of(&self.session, self.memory.buffer(), shown, len, Vec::new(), home)?;
        own.truncate(kept as usize);
        Ok(buffer)
    }

    /// New memory of so many bytes, of which ranges can be posted.
    ///
    /// # Errors
    /// [`Error::WrongTechnique`] unless the channel has V2PDMA; [`Error::Export`].
    pub fn memory(&mut self, len: u64) -> Result<PostedMemory, Error> {
        self.export(self.session.export(len), "memory")
    }

    /// Memory of the caller's, of which ranges can be posted; what that costs
    /// [`Session::export_memory`] says.
    ///
    /// # Errors
    /// As [`memory`](Self::memory).
    pub fn adopt(&mut self, memory: impl Into<CallerMemory>) -> Result<PostedMemory, Error> {
        self.export(self.session.export_memory(memory), "adopt")
    }

    fn export(&mut self, builder: ExportBuilder, call: &'static str) -> Result<PostedMemory, Error> {
        if self.layout.technique != Technique::V2pDma {
            return Err(self.wrong(call));
        }
        let number = self.memories;
        let builder = builder.name(&memory_name(&self.name, number)).access(self.access.clone());
        let export = builder.mappable(self.mappable).create()?;
        self.memories += 1;
        Ok(PostedMemory { export: Arc::new(export), number })
    }

    /// Posts a range for one message, which must fit it; its number, from 0.
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-post").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// use vmmc_techniques::{Receiver, Sender, Technique};
    /// let rows = Receiver::builder(&session, "rows").technique(Technique::V2pDma);
    /// let mut receiver = rows.open()?;
    /// let mut sender = Sender::builder(&session, "rows").connect()?;
    /// let memory = receiver.memory(1 << 20)?;
    /// let number = receiver.post(&memory, 4096..8192)?;
    /// sender.send_posted(b"straight to its place")?.wait()?;
    /// let arrived = receiver.receive_posted()?;
    /// assert_eq!((arrived.number, arrived.range), (number, 4096..4117));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PostedFull`], [`Error::Outside`], [`Error::WrongTechnique`].
    pub fn post(&mut self, memory: &PostedMemory, range: Range<u64>) -> Result<u64, Error> {
        if self.layout.technique != Technique::V2pDma {
            return Err(self.wrong("post"));
        }
        let (offset, len) = (range.start, range.end.saturating_sub(range.start));
        if range.start > range.end || range.end > memory.len() {
            return Err(Error::Outside { offset, len, size: memory.len() });
        }
        let number = self.incoming.posting().ok_or(Error::PostedFull)?;
        let posting = Posting { memory: memory.number, offset, len };
        self.memory.write(Posting::at(number), &posting.encode(number))?;
        self.incoming.post(len);
        self.posted.push_back((memory.clone(), range));
        self.memory.word(HEARD_AT + 16)?.store(self.incoming.posted(), Ordering::Release);
        Ok(number)
    }

    /// Waits for a message in posted memory; where it is.
    ///
    /// # Errors
    /// [`Error::WrongTechnique`] unless the channel has V2PDMA; else as [`discard`](Self::discard).
    pub fn receive_posted(&mut self) -> Result<Arrived, Error> {
        if self.layout.technique != Technique::V2pDma {
            return Err(self.wrong("receive_posted"));
        }
        let fragment = self.look(&self.limit())?;
        let (memory, range) = self.posted.pop_front().expect("checked: a buffer is posted");
        self.take(&fragment);
        Ok(Arrived { memory, range: range.start..range.start + fragment.len, number: fragment.place })
    }

    /// Takes a message and lets go of its bytes; its length.
    ///
    /// # Errors
    /// As [`receive`](Self::receive), without [`Error::TooLong`].
    pub fn discard(&mut self) -> Result<u64, Error> {
        self.receive_to(&mut Sink::Nowhere)
    }

    /// Waits for a message in agreed memory; where it is there. Nothing is copied, and the sender
    /// may write there again at any time.
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-agreed").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// use vmmc_techniques::{Receiver, Sender, Technique};
    /// let board = Receiver::builder(&session, "board").technique(Technique::DirectDma);
    /// let mut receiver = board.open()?;
    /// let mut sender = Sender::builder(&session, "board").connect()?;
    /// sender.agreed().write(100, b"no copy")?;
    /// sender.send_agreed(100..107)?.wait()?; // from here on the range can be written again
    /// let range = receiver.receive_agreed()?;
    /// let mut text = [0; 7];
    /// receiver.read_agreed(range.start, &mut text)?;
    /// assert_eq!((range, &text), (100..107, b"no copy"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongTechnique`] unless the channel has DirectDMA; else as
    /// [`discard`](Self::discard).
    pub fn receive_agreed(&mut self) -> Result<Range<u64>, Error> {
        if self.layout.technique != Technique::DirectDma {
            return Err(self.wrong("receive_agreed"));
        }
        let fragment = self.look(&self.limit())?;
        self.take(&fragment);
        Ok(fragment.place..fragment.place + fragment.len)
    }

    /// Copies bytes out of agreed memory.
    ///
    /// # Errors
    /// [`Error::Outside`], [`Error::Access`].
    pub fn read_agreed(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let (len, size) = (into.len() as u64, self.layout.agreed);
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::Outside { offset, len, size });
        }
        Ok(self.memory.read(self.layout.agreed_at() + offset, into)?)
    }

    fn limit(&self) -> Limit {
        Limit::within(&self.session, self.timeout)
    }

    fn wrong(&self, call: &'static str) -> Error {
        Error::WrongTechnique { name: self.name.clone(), technique: self.layout.technique, call }
    }

    fn receive_to(&mut self, sink: &mut Sink<'_>) -> Result<u64, Error> {
        if self.layout.technique == Technique::V2pDma {
            return Err(self.wrong("receive into a buffer that was not posted"));
        }
        let limit = self.limit();
        loop {
            let fragment = self.look(&limit)?;
            if fragment.total > sink.room() {
                return Err(Error::TooLong { len: fragment.total, room: sink.room() });
            }
            self.move_fragment(&fragment, sink)?;
            if let Some(len) = self.take(&fragment) {
                return Ok(len);
            }
        }
    }

    /// The next fragment of a message, which stays until it is taken.
    fn look(&mut self, limit: &Limit) -> Result<Fragment, Error> {
        if self.given_up {
            return Err(Error::GivenUp { name: self.name.clone() });
        }
        loop {
            let fragment = match self.looked_at {
                Some(fragment) => fragment,
                None => self.next(limit)?,
            };
            if fragment.kind != FragmentKind::Abandon {
                self.looked_at = Some(fragment);
                return Ok(fragment);
            }
            self.take(&fragment);
        }
    }

    /// Waits for the next notice.
    fn next(&mut self, limit: &Limit) -> Result<Fragment, Error> {
        let number = self.incoming.number();
        let at = Fragment::notice_at(number);
        loop {
            let slice = limit.slice(&self.session, PEER_LOOK);
            match self.memory.wait_word_by(at + NOTICE_BYTES - 8, |word| word == number + 1, slice) {
                Ok(_) => break,
                Err(WaitError::TimedOut { .. }) => self.look_at_sender(limit)?,
                Err(error) => return Err(error.into()),
            }
        }
        self.met = true;
        let mut notice = [0; NOTICE_BYTES as usize];
        self.memory.read(at, &mut notice)?;
        let checked = Fragment::decode(&notice).and_then(|fragment| self.incoming.check(&fragment).map(|()| fragment));
        checked.map_err(|garbled| {
            self.given_up = true;
            Error::Garbled { name: self.name.clone(), garbled }
        })
    }

    /// What ends a wait for a notice. A sender that has gone may have left notices behind, so they
    /// are looked at once more when it was seen to be gone.
    fn look_at_sender(&mut self, limit: &Limit) -> Result<(), Error> {
        let is_there = self.memory.importers()? > 0;
        // One that has claimed the channel and died at once was not seen.
        self.met |= is_there || self.memory.word(CLAIM_AT)?.load(Ordering::Relaxed) != 0;
        let number = self.incoming.number();
        let last = self.memory.word(Fragment::notice_at(number) + NOTICE_BYTES - 8)?.load(Ordering::Acquire);
        if last == number + 1 {
            Ok(())
        } else if self.met && !is_there {
            Err(Error::SenderGone { name: self.name.clone() })
        } else if limit.is_over(&self.session) {
            let what = if self.incoming.is_amid() { "the rest of a message did not come" } else { "no message came" };
            Err(limit.error(&self.session, &self.name, what))
        } else {
            Ok(())
        }
    }

    /// Brings the bytes of a fragment to where they belong.
    fn move_fragment(&mut self, fragment: &Fragment, sink: &mut Sink<'_>) -> Result<(), Error> {
        let bytes = match sink {
            Sink::Bytes(bytes) => bytes,
            Sink::Pages(buffer, offset, exchanged) => {
                *exchanged += self.move_to_pages(fragment, buffer, *offset)?;
                return Ok(());
            }
            Sink::Nowhere => return Ok(()),
        };
        // Checked: `at + len <= total`, and the sink has room for all of it.
        let into = &mut bytes[fragment.at as usize..(fragment.at + fragment.len) as usize];
        match fragment.kind {
            FragmentKind::Window => self.memory.read(self.layout.window_at(), into)?,
            FragmentKind::Agreed => self.memory.read(self.layout.agreed_at() + fragment.place, into)?,
            FragmentKind::Frames => {
                let mut rest = into;
                for run in frame_runs(&self.table, fragment.place, fragment.frames()) {
                    let (now, later) = rest.split_at_mut(rest.len().min(run.len() * PAGE as usize));
                    self.memory.read(u64::from(run[0]) * PAGE, now)?;
                    rest = later;
                }
            }
            FragmentKind::Posted | FragmentKind::Abandon => {}
        }
        Ok(())
    }

    /// Exchanges what can be, and copies the rest; how many pages were exchanged.
    fn move_to_pages(&mut self, fragment: &Fragment, into: &mut PageBuffer, offset: u64) -> Result<u64, Error> {
        let to = offset + fragment.at;
        let region = self.memory.region();
        let mut done = 0;
        if fragment.kind == FragmentKind::Frames
            && self.layout.exchanges(fragment.total)
            && to % PAGE == 0
            && into.is_of(&region)
        {
            done = self.exchange(fragment, into, to)?;
        }
        let (mut to, end) = (to + done * PAGE, to + fragment.len);
        let mut copy = |from: u64, room: u64| {
            let len = room.min(end - to);
            into.copy_in(to, &region, from, len)?;
            to += len;
            Ok::<(), Error>(())
        };
        match fragment.kind {
            FragmentKind::Frames => {
                let frames = frame_runs(&self.table, fragment.place + done, fragment.frames() - done);
                for run in frames {
                    copy(u64::from(run[0]) * PAGE, run.len() as u64 * PAGE)?;
                }
            }
            FragmentKind::Window => copy(self.layout.window_at(), fragment.len)?,
            FragmentKind::Agreed => copy(self.layout.agreed_at() + fragment.place, fragment.len)?,
            FragmentKind::Posted | FragmentKind::Abandon => {}
        }
        Ok(done)
    }

    /// Exchanges the frames that a fragment fills, and says so to the sender before they are free.
    fn exchange(&mut self, fragment: &Fragment, into: &mut PageBuffer, to: u64) -> Result<u64, Error> {
        let (whole, size) = (fragment.len / PAGE, self.layout.pool);
        let mut done = 0;
        while done < whole {
            let first = (fragment.place + done) % size;
            let count = (whole - done).min(size - first);
            let frames = &mut self.table[first as usize..(first + count) as usize];
            let exchanged = into.exchange(to + done * PAGE, frames) as u64;
            let entries: Vec<u8> = frames.iter().flat_map(|page| page.to_le_bytes()).collect();
            self.memory.write(self.layout.table_at() + 4 * first, &entries)?;
            done += exchanged;
            if exchanged < count {
                break;
            }
        }
        self.version += u64::from(done > 0);
        self.memory.word(VERSION_AT)?.store(self.version, Ordering::Release);
        Ok(done)
    }

    /// Takes a fragment, and says so to the sender.
    fn take(&mut self, fragment: &Fragment) -> Option<u64> {
        self.looked_at = None;
        let over = self.incoming.take(fragment);
        let heard = [self.incoming.given_back(), self.incoming.number()];
        // Frames first: who sees that a fragment was taken sees that its frames are free.
        for (index, word) in [(1, heard[0]), (0, heard[1])] {
            let at = self.memory.word(HEARD_AT + 8 * index).expect("the header is in the channel");
            at.store(word, Ordering::Release);
        }
        over
    }
}

/// What [`Receiver::receive_pages`] received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes.
    pub len: u64,
    /// Pages of them that were exchanged and not copied, since the call began.
    pub pages_exchanged: u64,
}

/// Name of the export of a receiver's memory.
pub(crate) fn memory_name(channel: &str, number: u64) -> String {
    format!("{channel}/{number}")
}

/// Pages of frames that follow each other: `count` frames from the one with this number on.
pub(crate) fn frame_runs(table: &[u32], first: u64, count: u64) -> impl Iterator<Item = &[u32]> {
    let size = table.len() as u64;
    let start = (first % size) as usize;
    let end = (start as u64 + count).min(size) as usize;
    let wrapped = (count - (end - start) as u64) as usize;
    let parts = [&table[start..end], &table[..wrapped]];
    parts.into_iter().flat_map(|part| part.chunk_by(|a, b| a.checked_add(1) == Some(*b)))
}
