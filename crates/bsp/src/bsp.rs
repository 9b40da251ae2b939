//! The interface for Rust: areas are arrays that this library keeps, so no pointer is registered.
//!
//! Invariant: an [`Area`] stands for an array of the same [`Bsp`], of its type.

use crate::error::BspError;
use crate::process::{Builder, Process};
use crate::registry::{Place, Places};
use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vmmc::Session;
use vmmc_job::Job;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What areas are arrays of: numbers, and arrays and structs of them without padding.
pub trait Value: FromBytes + IntoBytes + Immutable + Clone + Send + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Clone + Send + 'static> Value for T {}

/// An array of this process that others may reach when it is registered; its content is
/// [`Bsp::read`] and [`Bsp::write`].
#[derive(Debug)]
pub struct Area<T> {
    owner: u64,
    index: usize,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Area<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Area<T> {}

/// An array whose type is not known here.
trait Array: Send {
    fn bytes(&mut self) -> &mut [u8];
    fn any(&self) -> &dyn Any;
    fn any_mut(&mut self) -> &mut dyn Any;
}

impl<T: Value> Array for Vec<T> {
    fn bytes(&mut self) -> &mut [u8] {
        self.as_mut_slice().as_mut_bytes()
    }

    fn any(&self) -> &dyn Any {
        self
    }

    fn any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// All arrays; their names are their places here.
#[derive(Default)]
struct Arrays {
    all: Vec<Box<dyn Array>>,
}

impl Places for Arrays {
    fn bytes(&mut self, place: Place, offset: u64, len: u64) -> Option<&mut [u8]> {
        let array = self.all.get_mut(place.name() as usize)?;
        array.bytes().get_mut(offset as usize..offset.checked_add(len)? as usize)
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its tag, of the size that tags had when it was sent.
    pub tag: &'a [u8],
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// A process of a bulk synchronous parallel program.
///
/// ```
/// use vmmc_bsp::Bsp;
/// let mut bsp = Bsp::attach()?; // under `vmmc run -n 4` one of four; alone, here
/// let next = (bsp.pid() + 1) % bsp.nprocs();
/// let from_left = bsp.area(vec![0u32]);
/// bsp.push_reg(from_left)?;
/// bsp.sync()?; // from here on it is registered
/// bsp.put(next, &[bsp.pid()], from_left, 0)?;
/// bsp.sync()?; // from here on it has arrived
/// assert_eq!(bsp.read(from_left)?, [(bsp.pid() + bsp.nprocs() - 1) % bsp.nprocs()]);
/// bsp.end()?;
/// # Ok::<(), vmmc_bsp::BspError>(())
/// ```
///
/// One that is dropped without [`end`](Bsp::end) makes the next [`sync`](Bsp::sync) of the others
/// an error.
pub struct Bsp {
    process: Process<Arrays>,
    id: u64,
}

impl Builder {
    /// The process.
    ///
    /// # Errors
    /// [`BspError::NoSet`], [`BspError::Export`].
    pub fn create(self) -> Result<Bsp, BspError> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Ok(Bsp { process: self.create_over(Arrays::default())?, id: IDS.fetch_add(1, Ordering::Relaxed) })
    }
}

impl Bsp {
    /// A process of the job that this one was started for, all of whose ranks take part; started
    /// alone, the only one.
    ///
    /// # Errors
    /// [`BspError`].
    pub fn attach() -> Result<Bsp, BspError> {
        let builder = Builder::attach(u32::MAX)?.expect("all ranks take part");
        builder.create()
    }

    /// The ranks of a job, as it is now; each makes one of these, and once.
    pub fn over(job: Arc<Job>) -> Builder {
        Builder::over(job)
    }

    /// Processes or threads that know each other by a name, each with its own session; for each pid
    /// its node's name or `address:port`, none: the node of this process. Nobody tells them of a
    /// process that was killed but the connection to it.
    pub fn among(session: Session, name: &str, pid: u32, nodes: &[Option<String>]) -> Builder {
        Builder::among(session, name, pid, nodes)
    }

    /// This process alone, without a node.
    pub fn alone() -> Builder {
        Builder::alone()
    }

    /// Number of this process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Processes.
    pub fn nprocs(&self) -> u32 {
        self.process.nprocs()
    }

    /// Time since this was made.
    pub fn time(&self) -> Duration {
        self.process.time()
    }

    /// Takes an array over, as an area that can be registered, and that gets can fill. It stays
    /// until the end.
    pub fn area<T: Value>(&mut self, array: Vec<T>) -> Area<T> {
        let arrays = &mut self.process.places.all;
        arrays.push(Box::new(array));
        Area { owner: self.id, index: arrays.len() - 1, kind: PhantomData }
    }

    /// The content of an area.
    ///
    /// # Errors
    /// [`BspError::NoArea`].
    pub fn read<T: Value>(&self, area: Area<T>) -> Result<&[T], BspError> {
        let array = self.index(area).and_then(|index| self.process.places.all.get(index));
        let array = array.and_then(|array| array.any().downcast_ref::<Vec<T>>());
        array.map(Vec::as_slice).ok_or(BspError::NoArea)
    }

    /// The content of an area, to change.
    ///
    /// # Errors
    /// [`BspError::NoArea`].
    pub fn write<T: Value>(&mut self, area: Area<T>) -> Result<&mut [T], BspError> {
        let index = self.index(area);
        let array = index.and_then(|index| self.process.places.all.get_mut(index));
        let array = array.and_then(|array| array.any_mut().downcast_mut::<Vec<T>>());
        array.map(Vec::as_mut_slice).ok_or(BspError::NoArea)
    }

    fn index<T>(&self, area: Area<T>) -> Option<usize> {
        (area.owner == self.id).then_some(area.index)
    }

    fn place<T: Value>(&self, area: Area<T>) -> Result<Place, BspError> {
        let bytes = size_of_val(self.read(area)?);
        Ok(Place::new(area.index as u64, bytes as u64))
    }

    /// Registers an area; others can put into it and get from it after the next sync. All processes
    /// register together, in the same order; areas that belong together may differ in length.
    ///
    /// # Errors
    /// [`BspError`].
    pub fn push_reg<T: Value>(&mut self, area: Area<T>) -> Result<(), BspError> {
        let place = self.place(area)?;
        self.process.push_reg(Some(place))
    }

    /// Takes part in a registration of others, with nothing here.
    ///
    /// # Errors
    /// [`BspError`].
    pub fn push_none(&mut self) -> Result<(), BspError> {
        self.process.push_reg(None)
    }

    /// Ends the last registration of an area, with the next sync; all processes do.
    ///
    /// # Errors
    /// [`BspError`].
    pub fn pop_reg<T: Value>(&mut self, area: Area<T>) -> Result<(), BspError> {
        let place = self.place(area)?;
        self.process.pop_reg(Some(place.name()))
    }

    /// Takes part in the end of a registration in which there is nothing here.
    ///
    /// # Errors
    /// [`BspError`].
    pub fn pop_none(&mut self) -> Result<(), BspError> {
        self.process.pop_reg(None)
    }

    /// Copies values; with the next sync they are written into an area of another process, `at`
    /// values from its beginning. `area` is the one here that was registered together with it.
    /// Where puts overlap, that of the higher number is written last, and of one process its later
    /// one.
    ///
    /// # Errors
    /// [`BspError`].
    #[inline]
    pub fn put<T: Value>(&mut self, to: u32, values: &[T], area: Area<T>, at: usize) -> Result<(), BspError> {
        let name = self.index(area).ok_or(BspError::NoArea)?;
        self.process.put(to, name as u64, bytes_of::<T>(at), values.as_bytes())
    }

    /// Has values of an area of another process come, with the next sync, as they are before
    /// anything is put: `range` of its area, to an area here from its value `at` on, which need not
    /// be registered.
    ///
    /// # Errors
    /// [`BspError`].
    #[inline]
    pub fn get<T: Value>(
        &mut self,
        from: u32,
        area: Area<T>,
        range: Range<usize>,
        into: Area<T>,
        at: usize,
    ) -> Result<(), BspError> {
        let name = self.index(area).ok_or(BspError::NoArea)?;
        let target = (self.place(into)?, bytes_of::<T>(at));
        let count = range.end.saturating_sub(range.start);
        self.process.get(from, (name as u64, bytes_of::<T>(range.start)), target, bytes_of::<T>(count))
    }

    /// Bytes of tags from the next sync on, in all processes the same; gives the number before.
    ///
    /// # Errors
    /// [`BspError`].
    pub fn set_tagsize(&mut self, size: usize) -> Result<usize, BspError> {
        self.process.set_tagsize(size as u64).map(|before| before as usize)
    }

    /// Copies a message for another process, which has it after the next sync.
    ///
    /// # Errors
    /// [`BspError`].
    #[inline]
    pub fn send(&mut self, to: u32, tag: &[u8], bytes: &[u8]) -> Result<(), BspError> {
        self.process.send(to, tag, bytes)
    }

    /// Messages that came with the last sync and were not taken, and their bytes.
    pub fn qsize(&self) -> (u64, u64) {
        self.process.qsize()
    }

    /// The next message, which stays.
    pub fn first(&self) -> Option<Message<'_>> {
        self.process.first().map(|(tag, bytes)| Message { tag, bytes })
    }

    /// Takes the next message. Those that are not taken are lost with the next sync.
    pub fn take(&mut self) -> Option<Message<'_>> {
        self.process.take().map(|(tag, bytes)| Message { tag, bytes })
    }

    /// Ends the superstep, and waits until all processes do so: then what was put is there, what
    /// was got has come, messages are in the queue, and registrations count.
    ///
    /// # Errors
    /// [`BspError`]; this process can then do nothing more with the others.
    pub fn sync(&mut self) -> Result<(), BspError> {
        self.process.sync()
    }

    /// Ends the parallel part, in all processes: without it they are told that this one has gone.
    ///
    /// # Errors
    /// [`BspError`].
    pub fn end(mut self) -> Result<(), BspError> {
        self.process.end()
    }

    /// Ends all: this process, after the text on its standard error; the others, whose `sync` is an
    /// error with the text.
    pub fn abort(mut self, text: &str) -> ! {
        eprintln!("process {} ends all: {text}", self.pid());
        self.process.tell_abort(text);
        std::process::exit(1)
    }
}

impl std::fmt::Debug for Bsp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bsp(process {} of {})", self.pid(), self.nprocs())
    }
}

/// Bytes of so many values; more than there can be is refused later.
fn bytes_of<T>(count: usize) -> u64 {
    (count as u64).saturating_mul(size_of::<T>() as u64)
}
