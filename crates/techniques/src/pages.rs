//! Buffers of whole pages, which are lent while they are sent and exchanged when something comes.
//!
//! ```text
//!  view     │ 0 │ 1 │ 2 │              │ 0 │ 5 │ 2 │        5 was spare
//!             │   │   │     write(1)     │   ╎   │
//!  lent       ▼   ▼   ▼   ──────────▶    ▼   ▼   ▼          1 is spare when it comes back
//!  transfer │ 0   1   2 │              │ 0   1   2 │
//! ```
//!
//! Invariant: a page that is lent is written by nobody: a write copies it to a spare one, which
//! takes its place in the view, before it stores. A page that has left the view while it was lent
//! is spare when the last transfer of it is over. Each page is in the view, spare, or left; never
//! two of them. Source: [SEMANTICS §2.1], PEXDMA: copy on write, the old page freed after the
//! transfer.

use crate::Error;
use crate::limits::SPARE_PAGES_MAX;
use crate::protocol::PAGE;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use vmmc::{Buffer, Deadline, Import, Region, SendOptions, Session, Transfer, TransferError};
use vmmc_host::page_view::PageView;

/// Memory of whole pages, to send from without a copy and to receive into by exchange of pages.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-pages").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc_techniques::{PageBuffer, Receiver, Sender, Technique};
/// let mut receiver = Receiver::builder(&session, "tiles").technique(Technique::PexDma).open()?;
/// let mut sender = Sender::builder(&session, "tiles").connect()?;
/// let mut tile = PageBuffer::new(&session, 8192)?;
/// tile.write(0, &[7; 8192])?;
/// sender.send_pages(&mut tile, 0..8192)?;
/// tile.write(0, &[0; 8192])?; // copied first, where it is still lent
/// let mut place = receiver.page_buffer(8192)?;
/// let received = receiver.receive_pages(&mut place, 0)?;
/// assert_eq!((received.len, received.pages_exchanged), (8192, 2));
/// let mut last = [0];
/// place.read(8191, &mut last)?;
/// assert_eq!(last, [7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PageBuffer {
    session: Session,
    buffer: Buffer,
    region: Region,
    view: PageView,
    len: u64,
    /// Transfers under way, oldest first, and the pages that each reads.
    loans: VecDeque<Loan>,
    /// How many transfers read a page; none that is not read.
    lent: HashMap<u32, u32>,
    /// Pages that have left the view and are still read.
    left: HashSet<u32>,
    spare: Vec<u32>,
    /// Where the pages go in the end, if they are a receiver's.
    home: Option<Arc<Mutex<Vec<u32>>>>,
    /// Pages that were copied because they were lent.
    copied: u64,
    failed: Option<TransferError>,
}

struct Loan {
    transfer: Transfer<'static>,
    pages: Vec<u32>,
}

impl std::fmt::Debug for Loan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Loan({:?})", self.pages)
    }
}

impl PageBuffer {
    /// A buffer of so many bytes of zeros, to send from. For as many pages again, up to
    /// [`SPARE_PAGES_MAX`], there is memory to copy to.
    ///
    /// # Errors
    /// [`Error::Buffer`]: no memory, or the node is gone. [`Error::Pages`].
    pub fn new(session: &Session, len: u64) -> Result<PageBuffer, Error> {
        let pages = len.div_ceil(PAGE);
        let spare = pages.min(SPARE_PAGES_MAX);
        let bytes = (pages + spare).saturating_mul(PAGE);
        let region = Region::create(bytes).map_err(vmmc::BufferError::from)?;
        let buffer = session.buffer_region(region)?;
        let number = |page: u64| page as u32;
        let shown = (0..pages).map(number).collect();
        PageBuffer::of(session, buffer, shown, len, (pages..pages + spare).map(number).collect(), None)
    }

    /// A buffer on pages of a region.
    pub(crate) fn of(
        session: &Session,
        buffer: Buffer,
        shown: Vec<u32>,
        len: u64,
        spare: Vec<u32>,
        home: Option<Arc<Mutex<Vec<u32>>>>,
    ) -> Result<PageBuffer, Error> {
        let region = buffer.memory();
        let view = PageView::new(&region, shown)?;
        Ok(PageBuffer {
            session: session.clone(),
            buffer,
            region,
            view,
            len,
            loans: VecDeque::new(),
            lent: HashMap::new(),
            left: HashSet::new(),
            spare,
            home,
            copied: 0,
            failed: None,
        })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> u64 {
        self.len
    }

    /// First byte, on a page, for callers that take the responsibility of shared memory themselves:
    /// valid as long as the buffer lives. Stores through it copy nothing, so they are for pages
    /// that are not lent: see [`wait`](Self::wait).
    pub fn as_ptr(&self) -> *mut u8 {
        self.view.as_ptr()
    }

    /// Pages that were copied so far because they were written while they were lent.
    pub fn pages_copied(&self) -> u64 {
        self.copied
    }

    /// Pages that are lent now.
    pub fn pages_lent(&mut self) -> usize {
        self.settle();
        self.lent.len()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.check(offset, into.len() as u64)?;
        Ok(self.view.read(offset, into)?)
    }

    /// Copies bytes in, at any time: pages that are lent are copied first, and the transfer sends
    /// what they held. Where no page is left to copy to it waits, up to the session's timeout, for
    /// the oldest transfer.
    ///
    /// # Errors
    /// [`Error::Outside`]; [`Error::Transfer`] with `TimedOut` of that wait; [`Error::Pages`] if
    /// the kernel has no room for another mapping. Bytes before the page in question are written.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.check(offset, data.len() as u64)?;
        if !self.loans.is_empty() {
            self.settle();
            let pages = offset / PAGE..(offset + data.len() as u64).div_ceil(PAGE);
            for page in pages.filter(|_| !data.is_empty()) {
                let whole = page * PAGE >= offset && (page + 1) * PAGE <= offset + data.len() as u64;
                self.own(page as usize, !whole)?;
            }
        }
        Ok(self.view.write(offset, data)?)
    }

    /// Waits the session's timeout until nothing is lent any more.
    ///
    /// # Errors
    /// [`Error::Transfer`]: that took too long, or a message did not arrive.
    pub fn wait(&mut self) -> Result<(), Error> {
        let deadline = self.session.deadline(self.session.timeout());
        while !self.loans.is_empty() {
            self.wait_for_oldest(deadline)?;
        }
        self.take_failure()
    }

    /// The failure of a transfer that nobody was told of.
    pub(crate) fn take_failure(&mut self) -> Result<(), Error> {
        self.settle();
        self.failed.take().map_or(Ok(()), |error| Err(error.into()))
    }

    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::Outside { offset, len, size: self.len }),
        }
    }

    /// Whether its pages are of this region.
    pub(crate) fn is_of(&self, region: &Region) -> bool {
        self.region.address() == region.address()
    }

    /// Sends a range, which was checked, to a place, and waits until it may be changed.
    pub(crate) fn send(&self, import: &Import, to: u64, range: Range<u64>) -> Result<(), Error> {
        let mut to = to;
        for (at, len) in self.view.runs(range) {
            import.send(to, self.buffer.range(at..at + len))?;
            to += len;
        }
        Ok(())
    }

    /// The same without a wait: its pages are lent.
    pub(crate) fn lend(&mut self, import: &Import, to: u64, range: Range<u64>) -> Result<(), Error> {
        let mut to = to;
        let runs: Vec<(u64, u64)> = self.view.runs(range).collect();
        for (at, len) in runs {
            let mut transfer = import.post_send(to, self.buffer.range(at..at + len), SendOptions::default())?;
            to += len;
            // Where this process copies by itself it is over.
            if let Some(result) = transfer.poll() {
                result?;
                continue;
            }
            let pages: Vec<u32> = ((at / PAGE) as u32..(at + len).div_ceil(PAGE) as u32).collect();
            pages.iter().for_each(|page| *self.lent.entry(*page).or_default() += 1);
            self.loans.push_back(Loan { transfer, pages });
        }
        self.settle();
        Ok(())
    }

    /// Exchanges pages, from the one at a byte on, for frames; how many.
    pub(crate) fn exchange(&mut self, offset: u64, frames: &mut [u32]) -> usize {
        debug_assert!(self.loans.is_empty(), "pages that are lent are not given away");
        self.view.exchange((offset / PAGE) as usize, frames)
    }

    /// Copies from a region. No page is lent.
    pub(crate) fn copy_in(&mut self, offset: u64, from: &Region, at: u64, len: u64) -> Result<(), Error> {
        debug_assert!(self.loans.is_empty(), "pages that are lent are not written");
        let mut at = at;
        for (to, len) in self.view.runs(offset..offset + len) {
            let copied = from.copy_to(at, &self.region, to, len);
            copied.expect("the frame was checked, and the view shows pages of its region");
            at += len;
        }
        Ok(())
    }

    /// Makes a page of the view one that nobody reads.
    fn own(&mut self, page: usize, keep: bool) -> Result<(), Error> {
        let old = self.view.pages()[page];
        let deadline = self.session.deadline(self.session.timeout());
        while self.lent.contains_key(&old) {
            let Some(new) = self.spare.pop() else {
                self.wait_for_oldest(deadline)?;
                continue;
            };
            if keep {
                let copied = self.region.copy_to(u64::from(old) * PAGE, &self.region, u64::from(new) * PAGE, PAGE);
                copied.expect("both pages are in the region");
            }
            if self.view.exchange(page, &mut [new]) == 0 {
                self.spare.push(new);
                // No room for a mapping: then the transfer is waited for.
                self.wait_for_oldest(deadline)?;
                continue;
            }
            self.copied += 1;
            self.left.insert(old);
            return Ok(());
        }
        Ok(())
    }

    /// Takes back what transfers that are over have read.
    fn settle(&mut self) {
        while let Some(loan) = self.loans.front_mut() {
            let Some(result) = loan.transfer.poll() else { return };
            self.end_of_oldest(result.err());
        }
    }

    fn wait_for_oldest(&mut self, deadline: Deadline) -> Result<(), Error> {
        let Some(loan) = self.loans.front_mut() else { return Ok(()) };
        match loan.transfer.wait_by(deadline) {
            Err(error @ TransferError::TimedOut { .. }) => return Err(error.into()),
            result => self.end_of_oldest(result.err()),
        }
        Ok(())
    }

    fn end_of_oldest(&mut self, error: Option<TransferError>) {
        let loan = self.loans.pop_front().expect("there is a loan that is over");
        self.failed = self.failed.take().or(error);
        for page in loan.pages {
            let count = self.lent.get_mut(&page).expect("each page of a loan is counted");
            *count -= 1;
            if *count == 0 {
                self.lent.remove(&page);
                if self.left.remove(&page) {
                    self.spare.push(page);
                }
            }
        }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        // Pages that are read yet are not given to others; a transfer that does not end keeps them.
        let _ = self.wait();
        if self.loans.is_empty() {
            let mut home = home.lock().expect("no panic while the lock is held");
            home.extend(self.view.pages().iter().chain(&self.spare));
        }
    }
}
