//! What pinning costs: first and later use of memory by pages, beside the papers' Tables 1 and 2
//! and beside other ways to reach it. [UTLB §5]
//!
//! Invariant: what is compared is measured in turns, in one process. Medians; a first use is
//! measured on pages that nothing has touched since they were filled.

pub(crate) mod tracing;

use super::nodes::order;
use super::pair::TemporaryNode;
use crate::failure::Failure;
use std::hint::black_box;
use std::time::Instant;
use vmmc::{Buffer, Import, PinOptions, Pinned, Session};
use vmmc_host::pin::{PinSpace, costs};
use vmmc_node::{Embedded, KeySource, NodeConfig};
use vmmc_utlb::{
    CacheShape, Frame, HierarchicalTable, Page, Pages, Pinning, PolicyKind, Prepin, Process, SharedCache, Translation,
};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages of the papers' tables.
pub(crate) const COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// First uses measured for a number of pages.
const FIRSTS: usize = 25;
/// Rounds of later uses, each of [`BATCH`] transfers of either kind.
const ROUNDS: usize = 21;
const BATCH: usize = 100;
/// Lookups in one measurement.
const LOOKUPS: usize = 20_000;

/// Medians, ns, for a number of pages.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct Row {
    pub(crate) pages: usize,
    /// A first send from memory: take, tell the node, send.
    pub(crate) first_ns: f64,
    /// Of it, taking the pages over in place.
    pub(crate) take_ns: f64,
    /// A later send of a plain slice: a few pages are copied.
    pub(crate) later_ns: f64,
    /// The same where all is pinned, so that the kernel is asked.
    pub(crate) asking_ns: f64,
    /// The same from lent memory.
    pub(crate) lent_ns: f64,
    /// The same by index, from a table that the program fills.
    pub(crate) index_ns: f64,
    /// The same by a session that trusts the program.
    pub(crate) trusting_ns: f64,
    /// The same send from memory of the library.
    pub(crate) library_ns: f64,
    /// The same send by way of a copy.
    pub(crate) copied_ns: f64,
    /// Making the memory private again.
    pub(crate) forget_ns: f64,
    /// The user's lookup in its table.
    pub(crate) lookup_ns: f64,
    /// The engine's lookup in its cache.
    pub(crate) cache_ns: f64,
    /// A miss there: so many entries read from the table.
    pub(crate) fetch_ns: f64,
    pub(crate) mlock_ns: f64,
    pub(crate) munlock_ns: f64,
    /// io_uring registration, and its end; none where it is forbidden.
    pub(crate) uring_ns: Option<f64>,
    pub(crate) uring_end_ns: Option<f64>,
    /// process_vm_readv.
    pub(crate) read_ns: f64,
    /// Registering as much memory of the library's own.
    pub(crate) buffer_ns: f64,
}

/// All rows, and what does not depend on pages.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Costs {
    pub(crate) rows: Vec<Row>,
    /// The same uses by a process attached to a daemon.
    pub(crate) daemon: Vec<Row>,
    /// An empty system call.
    pub(crate) call_ns: f64,
    /// Waking a thread that sleeps.
    pub(crate) wake_ns: f64,
    /// What recording costs.
    pub(crate) tracing: Vec<tracing::Traced>,
}

/// A node in this process, an export, and an import of it through the engine.
struct Bed {
    /// Pins whatever can be pinned.
    user: Session,
    import: Import,
    trusting: Import,
    plain: Import,
    _export: vmmc::Export,
    _owner: Session,
    _node: Serving,
    /// What was used first of all; freed, its pages would be somebody else's first use.
    warm: Option<Memory>,
}

enum Serving {
    Here { _node: Embedded },
    Daemon { _node: TemporaryNode },
}

impl Bed {
    /// With a node in this process.
    fn embedded() -> Result<Bed, Failure> {
        let mut config = NodeConfig::new(&format!("bench-utlb-{}", std::process::id())).key(KeySource::Plain);
        config.poller = false;
        let node = Embedded::start(config).map_err(Failure::new)?;
        let attach = || Session::over(node.attach().map_err(Failure::new)?).map_err(Failure::from);
        let sessions = [attach()?, attach()?, attach()?, attach()?];
        Bed::new(sessions, Serving::Here { _node: node })
    }

    /// Attached to a daemon.
    fn attached() -> Result<Bed, Failure> {
        let node = TemporaryNode::start(order("utlb", None, &[]), None).map_err(Failure::new)?;
        let attach = || Session::builder().node(&node.name).attach().map_err(Failure::from);
        let sessions = [attach()?, attach()?, attach()?, attach()?];
        Bed::new(sessions, Serving::Daemon { _node: node })
    }

    fn new([owner, user, trusting, plain]: [Session; 4], node: Serving) -> Result<Bed, Failure> {
        let len = (COUNTS[COUNTS.len() - 1] * PAGE) as u64;
        let export = owner.export(len).name("bench-utlb").mappable(false).create().map_err(Failure::new)?;
        user.set_pinning(PinOptions::default().copied_up_to(0));
        trusting.set_pinning(PinOptions::default().trusting());
        let open = |session: &Session| session.import("bench-utlb").open().map_err(Failure::from);
        let (import, trusting, plain) = (open(&user)?, open(&trusting)?, open(&plain)?);
        Ok(Bed { user, import, trusting, plain, _export: export, _owner: owner, _node: node, warm: None })
    }
}

/// Touched private memory of whole pages.
struct Memory {
    bytes: Vec<u8>,
    skip: usize,
}

impl Memory {
    fn new(pages: usize) -> Memory {
        let bytes: Vec<u8> = (0..(pages + 1) * PAGE).map(|i| (i >> 7) as u8).collect();
        let skip = bytes.as_ptr().align_offset(PAGE);
        Memory { bytes, skip }
    }

    fn pages(&mut self, from: usize, count: usize) -> &mut [u8] {
        &mut self.bytes[self.skip + from * PAGE..self.skip + (from + count) * PAGE]
    }
}

/// Measures everything.
pub(crate) fn measure(progress: impl Fn()) -> Result<Costs, Failure> {
    PinSpace::of_process().map_err(Failure::new)?;
    let bed = warm(Bed::embedded()?)?;
    let rows = COUNTS.iter().map(|pages| {
        let row = row(&bed, *pages);
        progress();
        row
    });
    let rows = rows.collect::<Result<_, _>>()?;
    drop(bed);
    let bed = warm(Bed::attached()?)?;
    let daemon = COUNTS.iter().map(|pages| {
        let mut row = Row { pages: *pages, ..Row::default() };
        first_uses(&bed, &mut row)?;
        later_uses(&bed, &mut row)?;
        Ok(row)
    });
    let daemon = daemon.collect::<Result<_, Failure>>()?;
    drop(bed);
    let call_ns = per_call(LOOKUPS, || _ = black_box(rustix::process::getppid()));
    Ok(Costs { rows, daemon, call_ns, wake_ns: wake(), tracing: tracing::measure()? })
}

/// The first use of all makes rings, arenas and threads.
fn warm(mut bed: Bed) -> Result<Bed, Failure> {
    let mut memory = Memory::new(16);
    for import in [&bed.import, &bed.trusting, &bed.plain] {
        import.send(0, Pinned(&*memory.pages(0, 16))).map_err(Failure::new)?;
    }
    bed.warm = Some(memory);
    Ok(bed)
}

fn row(bed: &Bed, pages: usize) -> Result<Row, Failure> {
    let mut row = Row { pages, ..Row::default() };
    first_uses(bed, &mut row)?;
    later_uses(bed, &mut row)?;
    lookups(&mut row);
    others(bed, &mut row)?;
    Ok(row)
}

fn first_uses(bed: &Bed, row: &mut Row) -> Result<(), Failure> {
    let (pages, mut memory, mut other) = (row.pages, Memory::new(row.pages * FIRSTS), Memory::new(row.pages * FIRSTS));
    let space = PinSpace::of_process().map_err(Failure::new)?;
    let (mut first, mut take, mut forget) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..FIRSTS {
        let body = &*memory.pages(i * pages, pages);
        first.push(timed(|| bed.import.send(0, Pinned(body))).map_err(Failure::new)?);
        take.push(timed(|| space.take(other.pages(i * pages, pages))).map_err(Failure::new)?);
    }
    for i in 0..FIRSTS {
        forget.push(timed(|| bed.user.forget(memory.pages(i * pages, pages))).map_err(Failure::new)?);
        space.give_private(other.pages(i * pages, pages)).map_err(Failure::new)?;
    }
    (row.first_ns, row.take_ns, row.forget_ns) = (median(first), median(take), median(forget));
    Ok(())
}

fn later_uses(bed: &Bed, row: &mut Row) -> Result<(), Failure> {
    let len = (row.pages * PAGE) as u64;
    let mut memory = Memory::new(row.pages);
    let body = &*memory.pages(0, row.pages);
    let buffer: Buffer = bed.user.buffer(len).map_err(Failure::new)?;
    buffer.write(0, body).map_err(Failure::new)?;
    bed.import.send(0, Pinned(body)).map_err(Failure::new)?;
    bed.trusting.send(0, Pinned(body)).map_err(Failure::new)?;
    let [mut later, mut asking, mut lent, mut index, mut trusting, mut library, mut copied] = [const { Vec::new() }; 7];
    let memory = bed.user.lend(body);
    let mut table = bed.user.pinned_table(row.pages as u32).map_err(Failure::new)?;
    table.place(0, memory).map_err(Failure::new)?;
    let mut failed = Ok(());
    for _ in 0..ROUNDS {
        library.push(per_call(BATCH, || keep(&mut failed, bed.import.send(0, buffer.range(0..len)))));
        // What returns before it has arrived is waited for in the end.
        later.push(
            per_call(1, || {
                (0..BATCH).for_each(|_| keep(&mut failed, bed.plain.send(0, Pinned(body))));
                keep(&mut failed, bed.plain.flush());
            }) / BATCH as f64,
        );
        asking.push(per_call(BATCH, || keep(&mut failed, bed.import.send(0, Pinned(body)))));
        lent.push(per_call(BATCH, || keep(&mut failed, bed.import.send(0, memory.range(0..body.len())))));
        index.push(per_call(BATCH, || keep(&mut failed, bed.import.send(0, table.range(0, 0..body.len())))));
        trusting.push(per_call(BATCH, || keep(&mut failed, bed.trusting.send(0, Pinned(body)))));
        copied.push(per_call(BATCH, || {
            let sent = bed.import.post_send(0, body, vmmc::SendOptions::default());
            keep(&mut failed, sent.and_then(|mut transfer| transfer.wait()).map(drop));
        }));
    }
    failed.map_err(Failure::new)?;
    (row.later_ns, row.asking_ns) = (median(later), median(asking));
    (row.lent_ns, row.index_ns, row.trusting_ns) = (median(lent), median(index), median(trusting));
    (row.library_ns, row.copied_ns) = (median(library), median(copied));
    Ok(())
}

/// The tables alone, with 4096 pages in them.
fn lookups(row: &mut Row) {
    const FIRST: u64 = 0x7f00_0000;
    let at = |i: u64, count: u64| Pages::new(Page::new(FIRST + i % 4064).expect("small"), count).expect("small");
    let (me, count) = (Process(1), row.pages as u64);
    let mut pinning = Pinning::new(PolicyKind::Lru.build(), Prepin::Fixed(1), None);
    let mut table = HierarchicalTable::new(Frame(0));
    let mut cache = SharedCache::new(CacheShape::PAPER);
    for page in at(0, 4096).iter() {
        pinning.pinned(page);
        table.install(page, Frame(page.number())).expect("in memory");
    }
    let mut i = 0;
    row.lookup_ns = per_call(LOOKUPS, || {
        i += 7;
        black_box(pinning.lookup(at(i, count)));
    });
    row.fetch_ns = per_call(LOOKUPS, || {
        i += 7;
        let first = at(i, 1).first();
        if let Translation::Frame(frame) = table.translate(first) {
            black_box(frame);
        }
        table.fetch(first, count as u32, |page, frame| _ = cache.fill(me, page, frame));
    });
    at(0, 4096).iter().for_each(|page| _ = cache.fill(me, page, Frame(page.number())));
    row.cache_ns = per_call(LOOKUPS, || {
        i += 7;
        at(i, count).iter().for_each(|page| _ = black_box(cache.find(me, page)));
    });
}

fn others(bed: &Bed, row: &mut Row) -> Result<(), Failure> {
    let mut memory = Memory::new(row.pages * FIRSTS);
    let mut to = vec![0u8; row.pages * PAGE];
    let pages = row.pages;
    let each = |what: &mut dyn FnMut(usize) -> std::io::Result<()>| -> std::io::Result<f64> {
        (0..FIRSTS).map(|i| timed(|| what(i * pages))).collect::<Result<Vec<_>, _>>().map(median)
    };
    row.mlock_ns = each(&mut |at| costs::lock(memory.pages(at, pages))).map_err(Failure::new)?;
    row.munlock_ns = each(&mut |at| costs::unlock(memory.pages(at, pages))).map_err(Failure::new)?;
    row.read_ns = each(&mut |at| costs::read_by_address(memory.pages(at, pages), &mut to)).map_err(Failure::new)?;
    if let Ok(ring) = costs::FixedBuffers::new() {
        let (mut begin, mut end) = (Vec::new(), Vec::new());
        for i in 0..FIRSTS {
            begin.push(timed(|| ring.register(memory.pages(i * pages, pages))).map_err(Failure::new)?);
            end.push(timed(|| ring.unregister()).map_err(Failure::new)?);
        }
        (row.uring_ns, row.uring_end_ns) = (Some(median(begin)), Some(median(end)));
    }
    let buffers = (0..FIRSTS).map(|_| timed(|| bed.user.buffer((pages * PAGE) as u64).map(drop)));
    row.buffer_ns = buffers.collect::<Result<Vec<_>, _>>().map(median).map_err(Failure::new)?;
    Ok(())
}

/// Waking a thread that sleeps in the kernel, one way.
fn wake() -> f64 {
    let main = std::thread::current();
    let other = std::thread::spawn(move || {
        for _ in 0..FIRSTS {
            std::thread::park();
            main.unpark();
        }
    });
    let mut times = Vec::new();
    for _ in 0..FIRSTS {
        // Time to fall asleep.
        std::thread::sleep(std::time::Duration::from_millis(1));
        let start = Instant::now();
        other.thread().unpark();
        std::thread::park();
        times.push(start.elapsed().as_nanos() as f64 / 2.0);
    }
    // It has woken us as often as we have woken it.
    let _ = other.join();
    median(times)
}

fn keep<E>(first: &mut Result<(), E>, result: Result<(), E>) {
    if first.is_ok() {
        *first = result;
    }
}

fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<f64, E> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as f64)
}

fn per_call(calls: usize, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / calls as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
