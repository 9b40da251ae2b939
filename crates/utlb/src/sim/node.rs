//! One node: its processes, their tables, the shared cache.
//!
//! Invariants: a page is installed in its table exactly while it is pinned; a translation of a page
//! that is not pinned is not in the cache. Both are checked at the end of a run in debug builds.

use super::config::{Config, ConfigError, Mechanism, Memory};
use super::dynamic;
use super::outcome::{Outcome, ProcessOutcome};
use crate::budget::Budget;
use crate::cache::SharedCache;
use crate::classify::{Classifier, MissKind};
use crate::counters::{CacheCounters, PinCounters};
use crate::hierarchical::HierarchicalTable;
use crate::ids::{Frame, Index, Page, Pages, Process, Tag};
use crate::index_table::IndexTable;
use crate::pinning::{PinRequest, Pinning, Unpin};
use crate::regions::RegionCache;
use crate::trace::{Op, Record};

/// The garbage page. No pinned page has this frame: frames are page numbers here.
const GARBAGE: Frame = Frame(u64::MAX);

#[derive(Debug)]
pub(super) enum Table {
    Hierarchical(HierarchicalTable),
    Index(IndexTable),
    Regions(RegionCache),
    /// The interrupt-based approach has no table: the kernel knows.
    None,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) user: Pinning,
    pub(super) table: Table,
    cache: CacheCounters,
    // Only for regions, whose cache does not count.
    regions: PinCounters,
}

impl Member {
    fn new(config: &Config) -> Member {
        let limit = config.limit();
        let table = match config.mechanism {
            Mechanism::Hierarchical => Table::Hierarchical(HierarchicalTable::new(GARBAGE)),
            Mechanism::Shared | Mechanism::PerProcess(_) => {
                Table::Index(IndexTable::new(limit.unwrap_or(usize::MAX), GARBAGE))
            }
            Mechanism::Interrupt => Table::None,
            Mechanism::Regions => Table::Regions(RegionCache::new(limit)),
        };
        let limit = if matches!(config.memory, Memory::Dynamic(_)) { Some(0) } else { limit };
        let user = Pinning::new(config.policy.build(), config.prepin, limit);
        Member { user, table, cache: CacheCounters::default(), regions: PinCounters::default() }
    }
}

/// The engine's part, apart from the members so that both can be borrowed.
#[derive(Debug)]
pub(super) struct Engine {
    cache: SharedCache,
    classifier: Option<Classifier>,
    prefetch: u32,
    // Per-process tables: the interface has the tables themselves and never misses.
    tables_here: bool,
}

/// A simulation that records are fed to, in the order of time.
///
/// ```
/// use vmmc_utlb::sim::{Config, Simulator};
/// use vmmc_utlb::trace::{Op, Record};
/// use vmmc_utlb::Process;
/// let mut simulator = Simulator::new(Config::default()).unwrap();
/// for time_ns in 0..10 {
///     let (process, op) = (Process(1), Op::Send);
///     simulator.step(&Record { time_ns, process, op, address: 0x1000, len_bytes: 4096 });
/// }
/// let outcome = simulator.finish();
/// assert_eq!((outcome.total.user.check_misses, outcome.total.cache.misses), (1, 1));
/// ```
#[derive(Debug)]
pub struct Simulator {
    config: Config,
    engine: Engine,
    members: Vec<Option<Box<Member>>>,
    budget: Option<Budget>,
    request: PinRequest,
    // Pages of the longest transfer that is pinned at once.
    chunk: u64,
}

impl Simulator {
    /// A node without processes.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn new(config: Config) -> Result<Simulator, ConfigError> {
        config.check()?;
        let budget = match config.memory {
            Memory::Dynamic(pages) => Some(Budget::new(pages, 0)),
            _ => None,
        };
        let classifier = config.classify.then(|| Classifier::new(config.cache.entries()));
        let tables_here = matches!(config.mechanism, Mechanism::PerProcess(_));
        let cache = SharedCache::new(config.cache);
        let engine = Engine { cache, classifier, prefetch: config.prefetch, tables_here };
        let chunk = config.limit().map_or(u64::MAX, |limit| limit as u64);
        Ok(Simulator { config, engine, members: Vec::new(), budget, request: PinRequest::default(), chunk })
    }

    /// One record.
    #[inline]
    pub fn step(&mut self, record: &Record) {
        // Readers refuse addresses out of range; records made by hand that have them are not
        // transfers.
        let Some(pages) = Pages::of_bytes(record.address, u64::from(record.len_bytes)) else { return };
        match record.op {
            Op::Send | Op::Fetch => self.transfer(record.process, pages, record.time_ns),
            // Exported memory is pinned for good by other means and is not looked up [NT §3.1].
            Op::Export => (),
            Op::Unmap => self.unmap(record.process, pages),
        }
    }

    #[inline]
    fn transfer(&mut self, process: Process, pages: Pages, time_ns: u64) {
        if pages.count() == 1 {
            return self.part(process, pages, time_ns);
        }
        let mut first = pages.first();
        let mut left = pages.count();
        while left > 0 {
            let chunk = match &self.budget {
                Some(budget) => left.min((budget.share(process) as u64).max(1)),
                None => left.min(self.chunk),
            };
            let part = Pages::new(first, chunk).expect("a part of pages that exist");
            self.part(process, part, time_ns);
            left -= chunk;
            match first.checked_add(chunk) {
                Some(next) => first = next,
                None => break,
            }
        }
    }

    /// A transfer that may be pinned at once.
    #[inline]
    fn part(&mut self, process: Process, pages: Pages, time_ns: u64) {
        let at = usize::from(process.0);
        if self.members.get(at).is_none_or(Option::is_none) {
            self.join(process);
        }
        if self.config.mechanism == Mechanism::Interrupt {
            return pages.iter().for_each(|page| self.interrupt(process, page));
        }
        let member = self.members[at].as_mut().expect("joined above");
        if let Table::Regions(regions) = &mut member.table {
            return use_region(regions, pages, &mut member.regions, &mut member.cache);
        }
        if !member.user.lookup(pages) {
            self.pin(process, pages, time_ns);
        }
        let member = self.members[at].as_mut().expect("joined above");
        for page in pages.iter() {
            self.engine.look_up(process, page, member);
        }
    }

    #[cold]
    fn join(&mut self, process: Process) {
        let at = usize::from(process.0);
        if self.members.len() <= at {
            self.members.resize_with(at + 1, || None);
        }
        self.members[at] = Some(Box::new(Member::new(&self.config)));
        if let Some(budget) = &mut self.budget {
            budget.attach(process, 0);
        }
    }

    /// The system call at a check miss: unpin, pin, install.
    fn pin(&mut self, process: Process, pages: Pages, time_ns: u64) {
        if let Some(budget) = &mut self.budget {
            dynamic::make_room(budget, &mut self.members, &mut self.engine, process, pages, time_ns);
        }
        let member = self.members[usize::from(process.0)].as_mut().expect("it looks pages up");
        let done = member.user.miss(pages, &mut self.request);
        done.expect("parts of transfers are within the limit and nothing is held");
        for unpin in &self.request.unpin {
            self.engine.unpinned(process, *unpin, &mut member.table);
        }
        for page in &self.request.pin {
            let slot = member.user.pinned(*page);
            match &mut member.table {
                Table::Hierarchical(table) => {
                    table.install(*page, Frame(page.number())).expect("nothing is swapped out in a simulation");
                }
                Table::Index(table) => {
                    let index = Index(slot.0);
                    table
                        .install(index, Frame(page.number()))
                        .expect("slots are below the limit, which is the table's size");
                }
                Table::Regions(_) | Table::None => (),
            }
        }
    }

    /// The interrupt-based approach: one page. [UTLB §6.2]
    fn interrupt(&mut self, process: Process, page: Page) {
        let member = self.members[usize::from(process.0)].as_mut().expect("joined by the caller");
        let pages = Pages::one(page);
        let hit = self.engine.cache.find(process, page).is_some();
        member.cache.lookups += 1;
        self.engine.classify(Tag::new(process, page), !hit, &mut member.cache);
        // The kernel's order of use is the interface's: each lookup counts, as in the paper's
        // simulator.
        let pinned = member.user.lookup(pages);
        debug_assert_eq!(pinned, hit, "pinned means cached in this approach");
        if hit {
            return;
        }
        member.cache.misses += 1;
        member.cache.fetched += 1;
        if let Some(out) = self.engine.cache.fill(process, page, Frame(page.number())) {
            member.cache.displaced += 1;
            let owner = self.members[usize::from(out.process().0)].as_mut().expect("it has an entry");
            owner.user.forget(Pages::one(out.page()), &mut Vec::new());
        }
        let member = self.members[usize::from(process.0)].as_mut().expect("joined by the caller");
        member.user.miss(pages, &mut self.request).expect("one page is within any limit");
        for unpin in &self.request.unpin {
            self.engine.cache.invalidate(process, unpin.page);
            self.engine.forget(Tag::new(process, unpin.page));
        }
        // Pinning ahead needs a user who asks; the kernel pins what missed.
        member.user.pinned(page);
    }

    fn unmap(&mut self, process: Process, pages: Pages) {
        let Some(Some(member)) = self.members.get_mut(usize::from(process.0)) else { return };
        let mut unpinned = Vec::new();
        member.user.forget(pages, &mut unpinned);
        unpinned.iter().for_each(|unpin| self.engine.unpinned(process, *unpin, &mut member.table));
    }

    /// The counts.
    pub fn finish(self) -> Outcome {
        debug_assert!(self.consistent(), "a cached translation of a page that is not pinned");
        let mut total = ProcessOutcome::default();
        let mut processes = Vec::new();
        for (number, member) in self.members.into_iter().enumerate() {
            let Some(member) = member else { continue };
            let regions = matches!(member.table, Table::Regions(_));
            let user = if regions { member.regions } else { member.user.counters().clone() };
            total.user.add(&user);
            total.cache.add(&member.cache);
            let process = Process(u16::try_from(number).expect("members are indexed by process"));
            processes.push((process, ProcessOutcome { user, cache: member.cache }));
        }
        Outcome { config: self.config, total, processes }
    }

    fn consistent(&self) -> bool {
        if !matches!(self.config.mechanism, Mechanism::Hierarchical | Mechanism::Interrupt) {
            return true;
        }
        self.engine.cache.tags().all(|tag| {
            let member = self.members[usize::from(tag.process().0)].as_ref();
            member.is_some_and(|member| member.user.is_pinned(tag.page()))
        })
    }
}

impl Engine {
    /// The interface's lookup of one page that is pinned.
    #[inline]
    fn look_up(&mut self, process: Process, page: Page, member: &mut Member) {
        let counters = &mut member.cache;
        counters.lookups += 1;
        let key = match &member.table {
            Table::Hierarchical(_) => page,
            // The process gives the index; the cache is tagged by it.
            _ if self.tables_here => return,
            _ => match member.user.slot(page) {
                Some(slot) => Page::from_table(u64::from(slot.0)),
                None => return,
            },
        };
        let hit = self.cache.find(process, key).is_some();
        if self.classifier.is_some() {
            self.classify(Tag::new(process, key), !hit, counters);
        }
        if !hit {
            self.fetch(process, key, member);
        }
    }

    fn fetch(&mut self, process: Process, key: Page, member: &mut Member) {
        let Engine { cache, classifier, prefetch, .. } = self;
        let counters = &mut member.cache;
        counters.misses += 1;
        let mut enter = |page: Page, frame: Frame| {
            counters.fetched += 1;
            counters.displaced += u64::from(cache.fill(process, page, frame).is_some());
            if let Some(classifier) = classifier.as_mut().filter(|_| page != key) {
                classifier.fetched(Tag::new(process, page));
            }
        };
        match &member.table {
            Table::Hierarchical(table) => table.fetch(key, *prefetch, &mut enter),
            Table::Index(table) => {
                let index = Index(u32::try_from(key.number()).expect("a slot"));
                table.fetch(index, *prefetch, |index, frame| enter(Page::from_table(u64::from(index.0)), frame));
            }
            Table::Regions(_) | Table::None => (),
        }
    }

    fn classify(&mut self, tag: Tag, missed: bool, counters: &mut CacheCounters) {
        let Some(classifier) = &mut self.classifier else { return };
        match classifier.looked_up(tag, missed) {
            None => (),
            Some(MissKind::Compulsory) => counters.compulsory += 1,
            Some(MissKind::Capacity) => counters.capacity += 1,
            Some(MissKind::Conflict) => counters.conflict += 1,
        }
    }

    fn forget(&mut self, tag: Tag) {
        if let Some(classifier) = &mut self.classifier {
            classifier.invalidated(tag);
        }
    }

    /// The driver unpinned a page: out of the table, out of the cache.
    pub(super) fn unpinned(&mut self, process: Process, unpin: Unpin, table: &mut Table) {
        let key = match table {
            Table::Hierarchical(table) => {
                table.remove(unpin.page).expect("nothing is swapped out in a simulation");
                unpin.page
            }
            Table::Index(table) => {
                table.remove(Index(unpin.slot.0));
                Page::from_table(u64::from(unpin.slot.0))
            }
            Table::Regions(_) | Table::None => unpin.page,
        };
        self.cache.invalidate(process, key);
        self.forget(Tag::new(process, key));
    }
}

fn use_region(regions: &mut RegionCache, pages: Pages, user: &mut PinCounters, cache: &mut CacheCounters) {
    user.transfers += 1;
    user.lookups += pages.count();
    cache.lookups += pages.count();
    let done = regions.use_buffer(pages);
    if done.registered > 0 {
        user.miss_transfers += 1;
        user.check_misses += done.registered.min(pages.count());
        user.pins += done.registered;
        user.pin_call(done.registered);
        user.unpins += done.deregistered;
        user.unpin_calls += done.deregistered_regions;
        user.evictions += done.deregistered;
    }
}
