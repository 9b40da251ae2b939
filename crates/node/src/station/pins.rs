//! The driver's side of pinning: processes ask for translations, the node's limit is shared among
//! them, and a process that has more than its share gives back when others need it.
//! [UTLB §3.1, §3.4]
//!
//! ```text
//!  Pin ──▶ granted ──▶ installed, Done
//!    │ └── asker holds its share ──▶ EvictFirst (it chooses which)
//!    └──── somebody holds more ──▶ Reclaim to that one ──▶ it unpins, or in RECLAIM_TIME the node does ──▶ installed, Done
//! ```
//!
//! Invariant: what the budget says a process has is what its table has installed, plus what is
//! to be reclaimed once no transfer uses it. A process that keeps what it was asked for loses
//! translations that no transfer uses; its later commands with these addresses are refused, and its
//! library pins again.

use super::Station;
use super::refusal::{memory as memory_refusal, refusal};
use crate::limits::{PIN_RUNS_WAITING_MAX, PINNED_PART, PINS_WAITING_MAX, RECLAIM_TIME};
use std::time::Duration;
use vmmc_host::control::{Answer, NodeEvent, PageRun, PinRun, Refusal, RefusalCode};
use vmmc_host::memory::total_bytes;
use vmmc_host::region::PAGE_BYTES;
use vmmc_nic::{ProcessId, Time};
use vmmc_utlb::{Budget, BudgetAction, BudgetError, Decision, Page, Pages, Process as Tagged};

/// The node's pinned memory, and who waits for some.
pub(super) struct Pins {
    budget: Budget,
    waiting: Vec<Waiting>,
    /// Asks under way, or pages to reclaim.
    busy: bool,
    pub(super) asked: u64,
    pub(super) revoked: u64,
}

struct Waiting {
    index: usize,
    number: u64,
    serial: u64,
    process: ProcessId,
    uid: u32,
    pin: Vec<PinRun>,
    pages: u64,
}

/// What may be pinned at a node unless configured.
pub(crate) fn default_pages() -> usize {
    // A machine that does not report its memory gets as much as a small one.
    let bytes = total_bytes().unwrap_or(1 << 30) / PINNED_PART;
    (bytes / PAGE_BYTES as u64) as usize
}

impl Pins {
    pub(super) fn new(pages: usize) -> Pins {
        let budget = Budget::new(pages, RECLAIM_TIME.as_micros() as u64);
        Pins { budget, waiting: Vec::new(), busy: false, asked: 0, revoked: 0 }
    }

    pub(super) fn attach(&mut self, process: ProcessId, uid: u32) {
        self.budget.attach(tagged(process), uid);
        self.busy = true;
    }

    pub(super) fn detach(&mut self, process: ProcessId) {
        self.waiting.retain(|w| w.process != process);
        self.budget.detach(tagged(process));
        self.busy = true;
    }

    /// The first request of a process for so many new pages that waits.
    fn take_waiting(&mut self, process: Tagged, pages: u64) -> Option<Waiting> {
        let at = self.waiting.iter().position(|w| tagged(w.process) == process && w.pages == pages)?;
        Some(self.waiting.remove(at))
    }

    /// Whether another request may wait: what it names is kept meanwhile.
    fn may_wait(&self, process: ProcessId, uid: u32, runs: usize) -> Result<(), Refusal> {
        let own = self.waiting.iter().filter(|w| w.process == process).count();
        let of_user = self.waiting.iter().filter(|w| w.uid == uid).map(|w| w.pin.len()).sum::<usize>();
        if own < PINS_WAITING_MAX && of_user + runs <= PIN_RUNS_WAITING_MAX {
            return Ok(());
        }
        let message = format!("{own} pins of this process wait for memory that others hold; wait for their answers");
        Err(refusal(RefusalCode::Busy, message))
    }

    /// Whether nothing is to be checked.
    pub(super) fn is_idle(&self) -> bool {
        !self.busy
    }

    /// Pages that all processes together may have.
    pub(super) fn free(&self) -> usize {
        self.budget.free()
    }
}

/// Pages that transfers use, in order: a process may have thousands of transfers under way, and
/// millions of pages.
struct Used(Vec<(u64, u64)>);

impl Used {
    fn new(ranges: impl Iterator<Item = Pages>) -> Used {
        let mut sorted: Vec<(u64, u64)> =
            ranges.map(|pages| (pages.first().number(), pages.first().number() + pages.count())).collect();
        sorted.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (start, end) in sorted {
            match joined.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => joined.push((start, end)),
            }
        }
        Used(joined)
    }

    fn contains(&self, page: Page) -> bool {
        let page = page.number();
        let at = self.0.partition_point(|(start, _)| *start <= page);
        at > 0 && page < self.0[at - 1].1
    }
}

fn tagged(process: ProcessId) -> Tagged {
    Tagged(u16::try_from(process.slot()).expect("the engine has fewer processes than 2^16"))
}

impl Station {
    /// A process gives up translations and asks for others; none: the answer comes later.
    pub(super) fn pin(
        &mut self,
        now: Time,
        index: usize,
        serial: u64,
        unpin: &[PageRun],
        pin: Vec<PinRun>,
    ) -> Result<Option<Answer>, Refusal> {
        let process = self.attached_process(index)?.id;
        self.memory.check_pins(process, &pin, unpin).map_err(|e| memory_refusal(&e))?;
        let given = self.memory.unpin(process, unpin);
        if given > 0 {
            self.count_unpinned(process, given, now);
        }
        let (number, uid) = self.connections[index].as_ref().map_or((0, 0), |c| (c.number, c.who.uid));
        let answer = self.request_pins(Waiting { index, number, serial, process, uid, pin, pages: 0 }, now);
        if matches!(answer, Ok(None)) {
            self.serve_pins(now);
        }
        answer
    }

    /// Checks what the budget and the tables say of each other.
    #[cfg(test)]
    pub(crate) fn check_pins_counted(&self) {
        let mut all = 0;
        for process in self.attached.iter().filter_map(|&i| self.connections[i].as_ref()?.process.as_ref()) {
            let pinned = self.memory.table(process.id).map_or(0, |table| table.pages());
            let granted = self.pins.budget.granted(tagged(process.id)) as u64;
            assert!(pinned <= granted + process.pins_to_reclaim, "{pinned} pinned, {granted} granted");
            all += granted;
        }
        assert_eq!(all + self.pins.free() as u64, self.config.pinned_pages_max as u64);
    }

    /// Asks the budget for what is new now of what a process wants; none: the answer comes later.
    fn request_pins(&mut self, waiting: Waiting, now: Time) -> Result<Option<Answer>, Refusal> {
        let process = waiting.process;
        let pages = self.memory.check_pins(process, &waiting.pin, &[]).map_err(|e| memory_refusal(&e))?;
        if pages > 0 {
            self.pins.may_wait(process, waiting.uid, waiting.pin.len())?;
        }
        let decision = self.pins.budget.request(tagged(process), pages as usize, self.pin_time(now));
        self.pins.busy = true;
        match decision {
            Ok(Decision::Granted) => {
                self.install(process, &waiting.pin, pages, now);
                Ok(Some(Answer::Done))
            }
            Ok(Decision::EvictOwn) => Ok(Some(Answer::EvictFirst { pages })),
            Ok(Decision::Wait) => {
                self.pins.waiting.push(Waiting { pages, ..waiting });
                Ok(None)
            }
            Err(error @ BudgetError::TooMuch { .. }) => Err(refusal(RefusalCode::MemoryShort, error.to_string())),
            Err(error) => Err(refusal(RefusalCode::Invalid, error.to_string())),
        }
    }

    /// Installs what was granted. A page that the call names twice, or that is there already, is
    /// not new: its place in the budget is free again.
    fn install(&mut self, process: ProcessId, pin: &[PinRun], granted: u64, now: Time) {
        let unused = granted.saturating_sub(self.memory.pin(process, pin));
        if unused > 0 {
            self.pins.budget.released(tagged(process), unused as usize, self.pin_time(now));
        }
    }

    /// Counts pages that a process has unpinned: first those that the node was to reclaim, which
    /// are counted already.
    fn count_unpinned(&mut self, process: ProcessId, pages: u64, now: Time) {
        let now_us = self.pin_time(now);
        let owner = self.by_slot.get(process.slot()).copied().flatten();
        let to_reclaim =
            owner.and_then(|i| self.connections[i].as_mut()?.process.as_mut()).map(|p| &mut p.pins_to_reclaim);
        let counted = to_reclaim.map_or(0, |left| {
            let counted = pages.min(*left);
            *left -= counted;
            counted
        });
        self.pins.budget.released(tagged(process), (pages - counted) as usize, now_us);
        self.pins.busy = true;
    }

    /// Does what the budget wants done; says whether there was anything.
    pub(super) fn serve_pins(&mut self, now: Time) -> bool {
        let now_us = self.pin_time(now);
        let mut any = false;
        while let Some(action) = self.pins.budget.poll(now_us) {
            any = true;
            match action {
                BudgetAction::Ask { process, pages, .. } => {
                    self.pins.asked += pages as u64;
                    let within_ms = RECLAIM_TIME.as_millis() as u64;
                    if let Some(index) = self.by_slot[usize::from(process.0)] {
                        self.send_event(index, &NodeEvent::Reclaim { pages: pages as u64, within_ms }, Vec::new());
                    }
                }
                BudgetAction::EvictOwn { process, pages } => {
                    if let Some(waiting) = self.pins.take_waiting(process, pages as u64) {
                        self.answer_pin(&waiting, Ok(Answer::EvictFirst { pages: waiting.pages }));
                    }
                }
                BudgetAction::Grant { process, pages } => self.granted(process, pages as u64, now),
                BudgetAction::Revoke { process, pages } => {
                    if let Some(index) = self.by_slot[usize::from(process.0)] {
                        self.add_pins_to_reclaim(index, pages as u64);
                    }
                }
            }
        }
        let unfinished = self.attached.clone().into_iter().filter(|i| self.reclaim_pins(*i)).count();
        self.pins.busy = unfinished > 0 || self.pins.budget.deadline_us().is_some();
        any
    }

    fn granted(&mut self, process: Tagged, pages: u64, now: Time) {
        let Some(waiting) = self.pins.take_waiting(process, pages) else { return };
        // Since it asked, regions may have gone, and pages may have been pinned or given up.
        let result = match self.memory.check_pins(waiting.process, &waiting.pin, &[]) {
            Ok(new) if new <= pages => {
                self.install(waiting.process, &waiting.pin, pages, now);
                Ok(Answer::Done)
            }
            // More than was granted: it asks anew, behind the others.
            Ok(_) => {
                self.pins.budget.released(process, pages as usize, self.pin_time(now));
                let to = Waiting { pin: Vec::new(), ..waiting };
                let Some(result) = self.request_pins(waiting, now).transpose() else { return };
                return self.answer_pin(&to, result);
            }
            Err(error) => {
                self.pins.budget.released(process, pages as usize, self.pin_time(now));
                Err(memory_refusal(&error))
            }
        };
        self.answer_pin(&waiting, result);
    }

    fn answer_pin(&mut self, to: &Waiting, result: Result<Answer, Refusal>) {
        if self.connections[to.index].as_ref().is_some_and(|c| c.number == to.number) {
            self.reply(to.index, to.serial, result, Vec::new());
        }
    }

    fn add_pins_to_reclaim(&mut self, index: usize, pages: u64) {
        if let Some(process) = self.connections[index].as_mut().and_then(|c| c.process.as_mut()) {
            process.pins_to_reclaim += pages;
        }
    }

    /// Reclaims pages of a process that no transfer uses; returns whether there are more to
    /// reclaim.
    fn reclaim_pins(&mut self, index: usize) -> bool {
        let Some(process) = self.connections[index].as_mut().and_then(|c| c.process.as_mut()) else { return false };
        if process.pins_to_reclaim == 0 {
            return false;
        }
        let used = Used::new(process.in_use.iter().map(|(_, pages)| *pages));
        let taken = self.memory.revoke(process.id, process.pins_to_reclaim, |page| used.contains(page));
        self.pins.revoked += taken;
        process.pins_to_reclaim -= taken;
        // Nothing is left to take of a process that has nothing pinned.
        if self.memory.table(process.id).is_none_or(|table| table.pages() == 0) {
            process.pins_to_reclaim = 0;
        }
        process.pins_to_reclaim > 0
    }

    /// When [`serve_pins`](Self::serve_pins) has something to do.
    pub(super) fn pins_due(&self, now: Time) -> Option<Time> {
        let due_us = self.pins.budget.deadline_us()?;
        Some(now + Duration::from_micros(due_us.saturating_sub(self.pin_time(now))))
    }

    fn pin_time(&self, now: Time) -> u64 {
        now.since(self.started).as_micros() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ProcessId = ProcessId(1);
    const TWO: ProcessId = ProcessId(2);
    const UID: u32 = 1000;

    fn pins() -> Pins {
        let mut pins = Pins::new(8);
        [ONE, TWO].into_iter().for_each(|process| pins.attach(process, UID));
        pins
    }

    /// A request that waits; it names so many runs, and so many pages are new.
    fn waiting(process: ProcessId, serial: u64, runs: usize, pages: u64) -> Waiting {
        let run = PinRun { pages: PageRun { page: 7, count: 1 }, region: 0, at: 0 };
        Waiting { index: 0, number: 0, serial, process, uid: UID, pin: vec![run; runs], pages }
    }

    #[test]
    fn what_waits_is_taken_by_its_process_and_pages_the_oldest_first() {
        let mut pins = pins();
        for (process, serial, pages) in [(TWO, 1, 3), (ONE, 2, 5), (ONE, 3, 3), (ONE, 4, 3)] {
            pins.waiting.push(waiting(process, serial, 1, pages));
        }
        let mut take = |process, pages| pins.take_waiting(tagged(process), pages).map(|waiting| waiting.serial);
        assert_eq!([take(ONE, 3), take(ONE, 3), take(ONE, 3)], [Some(3), Some(4), None]);
        assert_eq!([take(TWO, 5), take(ONE, 5), take(TWO, 3)], [None, Some(2), Some(1)]);
    }

    #[test]
    fn a_process_may_have_some_pins_wait_and_its_user_some_runs() {
        let mut pins = pins();
        for serial in 0..PINS_WAITING_MAX as u64 {
            assert_eq!(pins.may_wait(ONE, UID, 1), Ok(()));
            pins.waiting.push(waiting(ONE, serial, 1, 1));
        }
        let refused = pins.may_wait(ONE, UID, 1).unwrap_err();
        assert!(refused.code == RefusalCode::Busy && refused.message.starts_with("8 pins"), "{refused}");
        // The user's other processes may, until they name too much together; other users may.
        let left = PIN_RUNS_WAITING_MAX - PINS_WAITING_MAX;
        assert_eq!(pins.may_wait(TWO, UID, left + 1).map_err(|refusal| refusal.code), Err(RefusalCode::Busy));
        assert_eq!(pins.may_wait(TWO, UID, left), Ok(()));
        pins.waiting.push(waiting(TWO, 0, left, 1));
        assert!(pins.may_wait(TWO, UID, 1).is_err() && pins.may_wait(TWO, UID + 1, 1).is_ok());
    }

    #[test]
    fn who_is_gone_waits_for_nothing_and_leaves_what_it_had() {
        let mut pins = pins();
        assert_eq!(pins.budget.request(tagged(ONE), 4, 0), Ok(Decision::Granted));
        [ONE, TWO, ONE].into_iter().for_each(|process| pins.waiting.push(waiting(process, 1, 1, 1)));
        assert_eq!(pins.free(), 4);
        pins.busy = false;
        pins.detach(ONE);
        assert_eq!(pins.free(), 8);
        assert!(!pins.is_idle(), "others may have their turn");
        assert_eq!(pins.waiting.iter().map(|waiting| waiting.process).collect::<Vec<_>>(), [TWO]);
    }

    #[test]
    fn pages_in_use_are_those_of_any_range() {
        let pages = |first, count| Pages::new(Page::new(first).unwrap(), count).unwrap();
        let ranges = [pages(10, 2), pages(3, 1), pages(11, 5), pages(4, 1), pages(40, 60), pages(50, 1)];
        let used = Used::new(ranges.into_iter());
        for at in 0..120 {
            let page = Page::new(at).unwrap();
            assert_eq!(used.contains(page), ranges.iter().any(|range| range.contains(page)), "page {at}");
        }
        assert_eq!(used.0, [(3, 5), (10, 16), (40, 100)]);
        assert!(!Used::new(std::iter::empty()).contains(Page::new(0).unwrap()));
    }
}
