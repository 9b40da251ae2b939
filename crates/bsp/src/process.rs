//! A process of a program in supersteps, whatever its memory is: what the interfaces of languages
//! stand on.
//!
//! Invariant: after a sync that failed nothing more reaches the others; who ends without `end`
//! tells them why.

use crate::board::Board;
use crate::error::BspError;
use crate::limits::{MEMBERS_MAX, WAIT_DEFAULT};
use crate::members::Members;
use crate::registry::{Place, Places};
use crate::superstep::{Stream, Superstep};
use crate::transport::Transport;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmmc::{Access, Session};
use vmmc_job::{Job, JobError};

/// Choices for a process; made by [`Process::over`](Builder::over) and its like.
#[must_use = "there is no process before `create`"]
pub struct Builder {
    set: Option<(Session, Members)>,
    pid: u32,
    nprocs: u32,
    timeout: Duration,
    access: Access,
}

impl Builder {
    /// The job that this process was started for, of whose ranks the first `most` of the first one
    /// take part; none: this process is not among them. Started alone it is the only one.
    ///
    /// # Errors
    /// [`BspError`].
    pub fn attach(most: u32) -> Result<Option<Builder>, BspError> {
        match Job::attach() {
            Ok(job) => Builder::first(Arc::new(job), most),
            Err(JobError::NoJob { .. }) => Ok(Some(Builder::alone())),
            Err(error) => Err(error.into()),
        }
    }

    /// The first ranks of a job, as many as its rank 0 says; none: this process is not among them.
    /// All ranks call it.
    ///
    /// # Errors
    /// [`BspError`].
    pub fn first(job: Arc<Job>, most: u32) -> Result<Option<Builder>, BspError> {
        let all = job.allgather_by(&most.to_le_bytes(), job.session().deadline(WAIT_DEFAULT))?;
        let said = all.first().and_then(|first| first.first_chunk()).map_or(1, |bytes| u32::from_le_bytes(*bytes));
        let nprocs = said.clamp(1, job.size());
        Ok((job.rank() < nprocs).then(|| Builder { nprocs, ..Builder::over(job) }))
    }

    /// All ranks of a job.
    pub fn over(job: Arc<Job>) -> Builder {
        let (session, pid, nprocs) = (job.session().clone(), job.rank(), job.size());
        Builder { set: Some((session, Members::Job { job, view: 0 })), ..Builder::new(pid, nprocs) }
    }

    /// Those that share a name; see [`Bsp::among`](crate::Bsp::among).
    pub fn among(session: Session, name: &str, pid: u32, nodes: &[Option<String>]) -> Builder {
        let members = Members::Set { name: name.to_string(), nodes: nodes.to_vec() };
        Builder { set: Some((session, members)), ..Builder::new(pid, nodes.len() as u32) }
    }

    /// This process alone.
    pub fn alone() -> Builder {
        Builder::new(0, 1)
    }

    fn new(pid: u32, nprocs: u32) -> Builder {
        Builder { set: None, pid, nprocs, timeout: WAIT_DEFAULT, access: Access::default() }
    }

    /// How long `sync` waits for the others; default [`WAIT_DEFAULT`]. A member that has died is an
    /// error within a second all the same.
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.timeout = timeout;
        self
    }

    /// Who may be a member; default processes of the same user.
    pub fn access(mut self, access: Access) -> Builder {
        self.access = access;
        self
    }

    /// The process, whose memory is this.
    ///
    /// # Errors
    /// [`BspError::NoSet`], [`BspError::Export`].
    pub fn create_over<P: Places>(self, places: P) -> Result<Process<P>, BspError> {
        let Builder { set, pid, nprocs, timeout, access } = self;
        if pid >= nprocs || nprocs as usize > MEMBERS_MAX {
            return Err(BspError::NoSet { pid, nprocs });
        }
        let board = match set {
            Some((session, members)) if nprocs > 1 => {
                Some(Board::new(session, members, (pid, nprocs), access, timeout)?)
            }
            _ => None,
        };
        Ok(Process {
            pid,
            nprocs,
            start: Instant::now(),
            superstep: Superstep::new(pid, nprocs),
            transport: Transport::new(pid, nprocs, board),
            places,
            failed: None,
            ended: false,
        })
    }
}

/// A process of a program in supersteps.
pub struct Process<P> {
    pid: u32,
    nprocs: u32,
    start: Instant,
    superstep: Superstep,
    transport: Transport,
    /// Its memory.
    pub places: P,
    failed: Option<BspError>,
    ended: bool,
}

impl<P: Places> Process<P> {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How many there are.
    pub fn nprocs(&self) -> u32 {
        self.nprocs
    }

    /// Time since it was made.
    pub fn time(&self) -> Duration {
        self.start.elapsed()
    }

    /// An error of an earlier call after which nothing can go on.
    fn check(&self) -> Result<(), BspError> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(BspError::Over(Box::new(error.clone()))),
        }
    }

    /// An error of this process's own memory leaves what goes out in parts.
    fn noted<T>(&mut self, result: Result<T, BspError>) -> Result<T, BspError> {
        if let Err(error @ (BspError::Export(_) | BspError::Access(_))) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    /// Registers memory, or says that this process has none where others do; from the next sync on.
    ///
    /// # Errors
    /// [`BspError::TooManyRegistrations`], [`BspError::Over`].
    pub fn push_reg(&mut self, place: Option<Place>) -> Result<(), BspError> {
        self.check()?;
        self.superstep.push_reg(place)
    }

    /// Ends the last registration under a name; from the next sync on.
    ///
    /// # Errors
    /// [`BspError::NothingToPop`], [`BspError::TooManyRegistrations`], [`BspError::Over`].
    pub fn pop_reg(&mut self, name: Option<u64>) -> Result<(), BspError> {
        self.check()?;
        self.superstep.pop_reg(name)
    }

    /// Bytes of tags from the next sync on; gives what was said before.
    ///
    /// # Errors
    /// [`BspError::TagTooLong`], [`BspError::TooManyRegistrations`], [`BspError::Over`].
    pub fn set_tagsize(&mut self, size: u64) -> Result<u64, BspError> {
        self.check()?;
        self.superstep.set_tag_size(size)
    }

    /// Bytes of the tags of messages that are sent now.
    pub fn tagsize(&self) -> u64 {
        self.superstep.tag_size()
    }

    /// Copies bytes, for the area of another process that is registered here under this name.
    ///
    /// # Errors
    /// [`BspError`]; nothing is put.
    #[inline]
    pub fn put(&mut self, to: u32, name: u64, offset: u64, bytes: &[u8]) -> Result<(), BspError> {
        self.check()?;
        let result = self.superstep.put(self.transport.out(), to, name, offset, bytes);
        self.noted(result)
    }

    /// Has bytes of such an area come to a place of this process, `to` bytes from its beginning.
    ///
    /// # Errors
    /// [`BspError`]; nothing is got.
    #[inline]
    pub fn get(
        &mut self,
        from: u32,
        (name, offset): (u64, u64),
        (place, to): (Place, u64),
        len: u64,
    ) -> Result<(), BspError> {
        self.check()?;
        let result = self.superstep.get(self.transport.out(), from, (name, offset), (place, to), len);
        self.noted(result)
    }

    /// Copies a message for another process.
    ///
    /// # Errors
    /// [`BspError`]; nothing is sent.
    #[inline]
    pub fn send(&mut self, to: u32, tag: &[u8], bytes: &[u8]) -> Result<(), BspError> {
        self.check()?;
        let result = self.superstep.send(self.transport.out(), to, tag, bytes);
        self.noted(result)
    }

    /// Messages that are here, and their bytes.
    pub fn qsize(&self) -> (u64, u64) {
        self.superstep.queue.left()
    }

    /// Tag and bytes of the first message, which stays.
    pub fn first(&self) -> Option<(&[u8], &[u8])> {
        self.superstep.queue.first()
    }

    /// Takes the first message; its tag and bytes stay where they are until the next sync.
    pub fn take(&mut self) -> Option<(&[u8], &[u8])> {
        self.superstep.queue.take()
    }

    /// Ends the superstep.
    ///
    /// # Errors
    /// [`BspError`]; this process can then do nothing more with the others.
    pub fn sync(&mut self) -> Result<(), BspError> {
        self.check()?;
        let result = self.try_sync();
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    fn try_sync(&mut self) -> Result<(), BspError> {
        let Process { superstep, transport, places, .. } = self;
        superstep.close(transport.out())?;
        transport.meet()?;
        transport
            .each(Stream::Requests, |from, incoming, answers| superstep.requests(from, incoming, places, answers))?;
        transport.send_answers()?;
        for from in superstep.asked() {
            transport.answers(from, |incoming| superstep.answers(from, incoming, places))?;
        }
        superstep.begin_data();
        transport.each(Stream::Data, |from, incoming, _| superstep.data(from, incoming, places))?;
        superstep.turn()?;
        transport.turn();
        Ok(())
    }

    /// Waits until all have come to their end.
    ///
    /// # Errors
    /// [`BspError`].
    pub fn end(&mut self) -> Result<(), BspError> {
        self.check()?;
        let result = self.transport.end();
        match &result {
            Ok(()) => self.ended = true,
            Err(error) => self.failed = Some(error.clone()),
        }
        result
    }

    /// Tells all others that it is over, and why: their `sync` is an error that says so.
    pub fn tell_abort(&mut self, text: &str) {
        self.ended = true;
        self.transport.abort(text);
    }
}

impl<P> Drop for Process<P> {
    fn drop(&mut self) {
        match &self.failed {
            _ if self.ended => {}
            // All others learn of these by themselves.
            Some(BspError::Gone { .. } | BspError::Aborted { .. }) => {}
            Some(error) => self.transport.abort(&error.to_string()),
            None => self.transport.abort("it has gone without the call that ends the program's parallel part"),
        }
    }
}
