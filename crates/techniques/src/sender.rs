//! The sending end of a channel.
//!
//! Invariant: a message whose beginning the receiver may have seen is sent to its end or given up
//! by a notice, before anything else is sent. What the receiver wrote is checked before use.
//! Source: [SEMANTICS §2.1].

use crate::in_flight::InFlight;
use crate::limits::{FRAGMENT_BYTES, LENT_FRAGMENT_BYTES, MEMORIES_MAX, MESSAGE_BYTES_MAX};
use crate::posted::Posting;
use crate::protocol::{
    self, CLAIM_AT, Fragment, FragmentKind, Garbled, HEADER_WORDS, HEARD_AT, HEARD_WORDS, Layout, Outgoing, PAGE,
    POSTED_BYTES, VERSION_AT, words,
};
use crate::receiver::{frame_runs, memory_name};
use crate::waiting::{Limit, poll};
use crate::{Error, PageBuffer, Technique};
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;
use vmmc::{Buffer, Import, Pinned, Rights, SendOptions, Session};

/// The sending end of a channel.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-sender").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc_techniques::{Receiver, Sender, Technique};
/// let mut receiver = Receiver::builder(&session, "samples").technique(Technique::Pio).open()?;
/// let mut sender = Sender::builder(&session, "samples").connect()?;
/// let mut samples = *b"1234";
/// sender.send(&samples)?;
/// samples.fill(0); // the memory is free again
/// let mut seen = [0; 4];
/// receiver.receive(&mut seen)?;
/// assert_eq!(&seen, b"1234");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Sender {
    session: Session,
    name: String,
    import: Import,
    layout: Layout,
    outgoing: Outgoing,
    /// The page of each frame, as the receiver said last.
    table: Vec<u32>,
    /// Times that the receiver had exchanged frames when that was read.
    version: u64,
    /// Frames came back since.
    table_is_old: bool,
    /// Memories of the receiver that messages went to, by number.
    memories: HashMap<u64, Import>,
    node: Option<String>,
    /// Memory for messages with DirectDMA; empty with other techniques.
    agreed: Option<Buffer>,
    /// A message was begun and not sent to its end.
    unfinished: bool,
    given_up: bool,
    timeout: Duration,
}

/// Choices for a sender; made by [`Sender::builder`].
#[must_use = "nothing is connected before `connect`"]
#[derive(Debug)]
pub struct SenderBuilder {
    session: Session,
    name: String,
    node: Option<String>,
    owner: Option<u32>,
    wait: Option<Duration>,
    timeout: Duration,
}

impl SenderBuilder {
    /// Name or `address:port` of the receiver's node; default this node.
    pub fn node(mut self, node: &str) -> Self {
        self.node = Some(node.to_string());
        self
    }

    /// Takes the channel of this user only; default as
    /// [`ImportBuilder::owner`](vmmc::ImportBuilder::owner) says.
    pub fn owner(mut self, uid: u32) -> Self {
        self.owner = Some(uid);
        self
    }

    /// Waits this long for a channel that is not open yet; without this it is an error at once.
    pub fn wait(mut self, time: Duration) -> Self {
        self.wait = Some(time);
        self
    }

    /// How long calls wait; default the session's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error::Import`], [`Error::NoChannel`], [`Error::Taken`], [`Error::Transfer`];
    /// [`Error::Buffer`] with DirectDMA.
    pub fn connect(self) -> Result<Sender, Error> {
        let mut builder = self.session.import(&self.name).rights(Rights::ALL);
        if let Some(node) = &self.node {
            builder = builder.node(node);
        }
        if let Some(uid) = self.owner {
            builder = builder.owner(uid);
        }
        if let Some(time) = self.wait {
            builder = builder.wait(time);
        }
        let import = builder.open()?;
        let layout = read_layout(&import).map_err(|why| match why {
            Ok(why) => Error::NoChannel { name: self.name.clone(), why },
            Err(error) => error,
        })?;
        if import.compare_swap(CLAIM_AT, 0, 1)? != 0 {
            return Err(Error::Taken { name: self.name });
        }
        let agreed = (layout.agreed > 0).then(|| self.session.buffer(layout.agreed)).transpose()?;
        Ok(Sender {
            session: self.session,
            name: self.name,
            import,
            outgoing: Outgoing::new(&layout),
            table: layout.first_table(),
            version: 0,
            table_is_old: false,
            memories: HashMap::new(),
            node: self.node,
            layout,
            agreed,
            unfinished: false,
            given_up: false,
            timeout: self.timeout,
        })
    }
}

fn read_layout(import: &Import) -> Result<Layout, Result<&'static str, Error>> {
    let mut header = [0; HEADER_WORDS * 8];
    if import.len() < PAGE {
        return Err(Ok("it is shorter than a header"));
    }
    import.fetch(0, &mut header[..]).map_err(|error| Err(error.into()))?;
    Layout::decode(words(&header), import.len()).map_err(Ok)
}

impl Sender {
    /// The channel of this name.
    pub fn builder(session: &Session, name: &str) -> SenderBuilder {
        SenderBuilder {
            session: session.clone(),
            name: name.to_string(),
            node: None,
            owner: None,
            wait: None,
            timeout: session.timeout(),
        }
    }

    /// How messages move, as the receiver chose.
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

    /// Which path bytes take, and why not a better one.
    pub fn explain(&self) -> vmmc::Explanation {
        self.import.explain()
    }

    /// This side's half of agreed memory: bytes are sent from where they lie here to the same place
    /// at the receiver.
    ///
    /// # Panics
    /// If the channel has no agreed memory: only one with DirectDMA has, unless its receiver says
    /// otherwise.
    pub fn agreed(&self) -> &Buffer {
        self.agreed.as_ref().expect("a channel with agreed memory")
    }

    /// Sends a message, which can be changed or freed when this returns.
    ///
    /// With PIO it waits until the receiver has taken the message before; else while the pool is
    /// full. With PEXDMA it is copied: [`send_pages`](Self::send_pages) lends.
    ///
    /// # Errors
    /// [`Error::WrongTechnique`] with DirectDMA and V2PDMA; [`Error::MessageTooLong`],
    /// [`Error::TimedOut`], [`Error::Transfer`], [`Error::Garbled`], [`Error::GivenUp`]. The
    /// receiver gets nothing of a message whose send failed.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        let len = message.len() as u64;
        let kind = self.kind().ok_or_else(|| self.wrong("send"))?;
        self.parts(len, kind, FRAGMENT_BYTES, |import, to, part| {
            Ok(import.send(to, &message[part.start as usize..part.end as usize])?)
        })
    }

    /// Sends a range of a buffer of pages, which can be written with [`PageBuffer::write`] at once,
    /// or dropped. With PEXDMA, and where the technique is chosen for each message, its pages are
    /// lent for as long as the transfer takes; else they are read before this returns.
    ///
    /// # Errors
    /// [`Error::Outside`]; [`Error::Transfer`] also for a message that this buffer sent before and
    /// that did not arrive; else as [`send`](Self::send).
    pub fn send_pages(&mut self, from: &mut PageBuffer, range: Range<u64>) -> Result<(), Error> {
        let len = range.end.saturating_sub(range.start);
        from.check(range.start, len)?;
        from.take_failure()?;
        let kind = self.kind().ok_or_else(|| self.wrong("send_pages"))?;
        let start = range.start;
        let in_buffer = |part: Range<u64>| start + part.start..start + part.end;
        match self.layout.technique {
            Technique::Auto | Technique::PexDma => {
                let most = self.lent_as_one(len);
                self.parts(len, kind, most, |import, to, part| from.lend(import, to, in_buffer(part)))
            }
            _ => self.parts(len, kind, FRAGMENT_BYTES, |import, to, part| from.send(import, to, in_buffer(part))),
        }
    }

    /// Sends bytes, pinned where they are, to the oldest buffer that the receiver has posted, for
    /// which it waits. They are borrowed until the message is ready. A notice follows then, so let
    /// it become ready before the next message.
    ///
    /// ```compile_fail
    /// # fn overwrite(sender: &mut vmmc_techniques::Sender, mut message: Vec<u8>) {
    /// let sending = sender.send_posted(&message).unwrap();
    /// message.fill(0); // is still being read
    /// sending.wait().unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TooLong`] if the posted buffer is shorter: it stays posted. [`Error::Import`] if
    /// its memory cannot be reached. [`Error::WrongTechnique`] unless the channel has V2PDMA; else
    /// as [`send`](Self::send).
    pub fn send_posted<'a>(&mut self, message: &'a [u8]) -> Result<Posting<'_, 'a>, Error> {
        if self.layout.technique != Technique::V2pDma {
            return Err(self.wrong("send_posted"));
        }
        let (len, limit) = (message.len() as u64, self.begin()?);
        self.wait_for_room(&limit, |outgoing| outgoing.number().is_some() && outgoing.posting().is_some())?;
        let number = self.outgoing.posting().expect("it was waited for");
        let mut record = [0; POSTED_BYTES as usize];
        self.import.fetch(protocol::Posting::at(number), &mut record)?;
        let posting = match protocol::Posting::decode(&record, number) {
            Ok(posting) => posting,
            Err(garbled) => return Err(self.garbled(garbled)),
        };
        if len > posting.len {
            return Err(Error::TooLong { len, room: posting.len });
        }
        let transfer =
            self.memory(posting.memory)?.post_send(posting.offset, Pinned(message), SendOptions::default())?;
        let fragment = Fragment { kind: FragmentKind::Posted, total: len, at: 0, len, place: number };
        Ok(Posting::new(self, transfer, fragment))
    }

    /// A memory of the receiver's: of its user, whatever others have such names.
    fn memory(&mut self, number: u64) -> Result<&Import, Error> {
        if !self.memories.contains_key(&number) {
            if self.memories.len() >= MEMORIES_MAX {
                self.memories.clear();
            }
            let name = memory_name(&self.name, number);
            let mut builder = self.session.import(&name).owner(self.import.owner());
            if let Some(node) = &self.node {
                builder = builder.node(node);
            }
            self.memories.insert(number, builder.open()?);
        }
        Ok(&self.memories[&number])
    }

    /// Tells the receiver of a message that has arrived in posted memory.
    pub(crate) fn tell_posted(&mut self, fragment: &Fragment) -> Result<(), Error> {
        self.notify(fragment)
    }

    /// Nothing more goes through the channel.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Which way a message goes whose memory is free on return; none if the technique has no such.
    fn kind(&self) -> Option<FragmentKind> {
        match self.layout.technique {
            Technique::Pio => Some(FragmentKind::Window),
            Technique::CopyDma | Technique::PexDma | Technique::Auto => Some(FragmentKind::Frames),
            Technique::DirectDma | Technique::V2pDma => None,
        }
    }

    /// Sends a range of [`agreed`](Self::agreed) memory to the same place at the receiver. The
    /// range belongs to the transfer until that is ready.
    ///
    /// Nobody stops this from overwriting a message there that the receiver has not looked at.
    ///
    /// # Errors
    /// [`Error::WrongTechnique`] unless the channel has DirectDMA; [`Error::Outside`]; else as
    /// [`send`](Self::send).
    pub fn send_agreed(&mut self, range: Range<u64>) -> Result<InFlight<'static>, Error> {
        let Some(agreed) = self.agreed.clone().filter(|_| self.layout.technique == Technique::DirectDma) else {
            return Err(self.wrong("send_agreed"));
        };
        let (offset, len) = (range.start, range.end.saturating_sub(range.start));
        if range.end > self.layout.agreed || range.start > range.end {
            return Err(Error::Outside { offset, len, size: self.layout.agreed });
        }
        let limit = self.begin()?;
        self.wait_for_room(&limit, |outgoing| outgoing.number().is_some())?;
        let at = self.layout.agreed_at() + offset;
        let transfer = self.import.post_send(at, agreed.range(range), SendOptions::default())?;
        self.notify(&Fragment { kind: FragmentKind::Agreed, total: len, at: 0, len, place: offset })?;
        Ok(InFlight::new(transfer))
    }

    /// Waits until all that was sent is in the receiver's memory.
    ///
    /// # Errors
    /// [`Error::Transfer`].
    pub fn flush(&self) -> Result<(), Error> {
        Ok(self.import.flush()?)
    }

    /// Says that a message of so many bytes is there, and moves none: for measurements of the
    /// receiver alone.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[doc(hidden)]
    pub fn announce(&mut self, len: u64) -> Result<(), Error> {
        let kind = match self.layout.technique {
            Technique::Pio => FragmentKind::Window,
            Technique::CopyDma | Technique::PexDma | Technique::Auto => FragmentKind::Frames,
            Technique::DirectDma => FragmentKind::Agreed,
            Technique::V2pDma => FragmentKind::Posted,
        };
        self.parts(len, kind, self.lent_as_one(len), |_, _, _| Ok(()))
    }

    /// Bytes of pages of a message that go into frames as one. Long runs cost one mapping in an
    /// exchange; what is copied out stays in the cache meanwhile.
    fn lent_as_one(&self, len: u64) -> u64 {
        if self.layout.exchanges(len) { LENT_FRAGMENT_BYTES } else { FRAGMENT_BYTES }
    }

    fn wrong(&self, call: &'static str) -> Error {
        Error::WrongTechnique { name: self.name.clone(), technique: self.layout.technique, call }
    }

    /// Sends a message by parts: `part` brings a range of it to a place in the channel; `most`
    /// bytes of it go into frames as one.
    fn parts(
        &mut self,
        total: u64,
        kind: FragmentKind,
        most: u64,
        mut part: impl FnMut(&Import, u64, Range<u64>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if total > MESSAGE_BYTES_MAX {
            return Err(Error::MessageTooLong { len: total });
        }
        let limit = self.begin()?;
        let mut at = 0;
        loop {
            let (place, len) = self.place(kind, total - at, most, &limit)?;
            match kind {
                FragmentKind::Frames => {
                    let mut from = at;
                    for run in frame_runs(&self.table, place, len.div_ceil(PAGE)) {
                        let end = (from + run.len() as u64 * PAGE).min(at + len);
                        part(&self.import, u64::from(run[0]) * PAGE, from..end)?;
                        from = end;
                    }
                }
                FragmentKind::Agreed => part(&self.import, self.layout.agreed_at(), at..at + len)?,
                FragmentKind::Posted => {}
                _ => part(&self.import, self.layout.window_at(), at..at + len)?,
            }
            self.notify(&Fragment { kind, total, at, len, place })?;
            at += len;
            self.unfinished = at < total;
            if at == total {
                return Ok(());
            }
        }
    }

    /// Waits for a place for the next bytes of a message; where it is, and how many fit.
    fn place(&mut self, kind: FragmentKind, left: u64, most: u64, limit: &Limit) -> Result<(u64, u64), Error> {
        match kind {
            FragmentKind::Frames => {
                // A fragment may be as long as half of the pool, so that another one is filled
                // while it is taken out.
                let len = left.min(most).min((self.layout.pool / 2).max(1) * PAGE);
                let frames = len.div_ceil(PAGE);
                self.wait_for_room(limit, |outgoing| outgoing.number().is_some() && outgoing.frames().0 >= frames)?;
                let place = self.outgoing.frames().1;
                let pages = frame_runs(&self.table, place, frames).flatten();
                self.layout.check_pages(pages).map_err(|garbled| self.garbled(garbled))?;
                Ok((place, len))
            }
            FragmentKind::Agreed => {
                self.wait_for_room(limit, |outgoing| outgoing.number().is_some())?;
                Ok((0, left.min(self.layout.agreed)))
            }
            FragmentKind::Posted => {
                self.wait_for_room(limit, |o| o.number().is_some() && o.posting().is_some())?;
                Ok((self.outgoing.posting().expect("it was waited for"), left))
            }
            _ => {
                self.wait_for_room(limit, Outgoing::all_taken)?;
                Ok((0, left.min(self.layout.window)))
            }
        }
    }

    /// Before a message: gives up the one before, if that was not sent to its end.
    fn begin(&mut self) -> Result<Limit, Error> {
        if self.given_up {
            return Err(Error::GivenUp { name: self.name.clone() });
        }
        let limit = Limit::within(&self.session, self.timeout);
        if self.unfinished {
            self.wait_for_room(&limit, |outgoing| outgoing.number().is_some())?;
            self.notify(&Fragment::abandon())?;
            self.unfinished = false;
        }
        Ok(limit)
    }

    fn notify(&mut self, fragment: &Fragment) -> Result<(), Error> {
        let number = self.outgoing.number().expect("room was waited for");
        self.import.send(Fragment::notice_at(number), &fragment.encode(number))?;
        self.outgoing.send(fragment);
        Ok(())
    }

    /// Waits until the receiver has made room.
    fn wait_for_room(&mut self, limit: &Limit, has_room: impl Fn(&Outgoing) -> bool) -> Result<(), Error> {
        if has_room(&self.outgoing) {
            return Ok(());
        }
        let session = self.session.clone();
        let heard = poll(&session, limit, || {
            self.listen()?;
            Ok(has_room(&self.outgoing).then_some(()))
        })?;
        heard.ok_or_else(|| limit.error(&session, &self.name, "the receiver took nothing, or posted nothing"))
    }

    /// Reads what the receiver says.
    fn listen(&mut self) -> Result<(), Error> {
        let mut heard = [0; HEARD_WORDS * 8];
        self.import.fetch(HEARD_AT, &mut heard[..])?;
        let came_back = self.outgoing.hear(words(&heard)).map_err(|garbled| self.garbled(garbled))?;
        self.table_is_old |= came_back && self.layout.may_exchange();
        // Read after the frames that came back, so it is no older than they are.
        if self.table_is_old { self.read_table() } else { Ok(()) }
    }

    /// Reads where the frames are, if that has changed. Of those that the receiver is at, an entry
    /// may be old; it is read again when they come back.
    fn read_table(&mut self) -> Result<(), Error> {
        let mut version = [0; 8];
        self.import.fetch(VERSION_AT, &mut version[..])?;
        let version = u64::from_le_bytes(version);
        if version != self.version {
            let mut entries = vec![0; self.table.len() * 4];
            self.import.fetch(self.layout.table_at(), &mut entries[..])?;
            let pages = entries.chunks_exact(4).map(|page| u32::from_le_bytes(page.try_into().expect("four bytes")));
            self.table.iter_mut().zip(pages).for_each(|(entry, page)| *entry = page);
            self.version = version;
        }
        self.table_is_old = false;
        Ok(())
    }

    fn garbled(&mut self, garbled: Garbled) -> Error {
        self.given_up = true;
        Error::Garbled { name: self.name.clone(), garbled }
    }
}
