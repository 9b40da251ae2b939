//! Each transition of the search, and what holds for every path.

use super::*;
use proptest::prelude::*;

const WAIT: Duration = Duration::from_millis(100);
const NO_CAP: usize = PACKET_BYTES_MAX;

/// A search and the path it is about.
struct Wire {
    search: Search,
    /// Largest packet that gets through.
    truth: usize,
    /// Largest packet that the driver takes for sendable.
    cap: usize,
    now: Time,
    tokens: u64,
    asked: usize,
}

impl Wire {
    fn new(told: usize, truth: usize) -> Wire {
        let search = Search::new(told, true);
        Wire { search, truth, cap: NO_CAP, now: Time::ZERO, tokens: 0, asked: 0 }
    }

    fn poll(&mut self) -> Option<Ask> {
        let tokens = &mut self.tokens;
        let token = || {
            *tokens += 1;
            *tokens
        };
        self.search.poll(self.now, self.cap, WAIT, token)
    }

    /// Goes to when something is due and does it; false: nothing is, before `end`.
    fn step(&mut self, end: Time, mut lost: impl FnMut() -> bool) -> bool {
        let Some(due) = self.search.due().filter(|due| *due <= end) else { return false };
        self.now = self.now.max(due);
        let Some(ask) = self.poll() else { return true };
        self.asked += 1;
        assert!(ask.size <= self.search.limit().min(self.cap).max(self.search.size()), "{ask:?}");
        if !lost() {
            self.search.answered(ask.small);
        }
        if ask.size <= self.truth && !lost() {
            self.search.answered(ask.token);
        }
        self.check();
        true
    }

    fn check(&self) {
        let size = self.search.size();
        assert!((PACKET_BYTES_MIN..=self.search.limit()).contains(&size) && size <= PACKET_BYTES_MAX, "{size}");
    }

    /// Until nothing is due for a while; what the path loses beside is of no matter.
    fn settle(&mut self) {
        let end = self.now + Duration::from_secs(100);
        for _ in 0..1_000 {
            if !self.step(end, || false) {
                return;
            }
        }
        panic!("the search does not end: {:?}", self.search);
    }

    fn state(&self) -> (MtuState, usize) {
        (self.search.state(), self.search.size())
    }

    /// A round of questions to which only the small one is answered.
    fn only_small_ones_get_through(&mut self) -> Ask {
        let truth = std::mem::replace(&mut self.truth, 0);
        self.now = self.now.max(self.search.due().expect("something is due"));
        let ask = self.poll().expect("something is asked");
        self.search.answered(ask.small);
        self.truth = truth;
        ask
    }
}

#[test]
fn a_path_begins_with_what_its_interface_takes_and_asks_nothing() {
    let mut wire = Wire::new(9_000, 9_000);
    assert_eq!((wire.state(), wire.search.due()), ((MtuState::Complete, 9_000), None));
    assert_eq!(wire.poll(), None);
    wire.search.session_begins(wire.now);
    wire.now = wire.now + MTU_RAISE_AFTER - Duration::from_nanos(1);
    assert_eq!(wire.poll(), None);
}

#[test]
fn the_size_in_use_is_asked_for_every_ten_minutes() {
    let mut wire = Wire::new(9_000, 9_000);
    wire.search.session_begins(wire.now);
    for round in 1..5 {
        assert!(wire.step(Time::MAX, || false) && wire.now == Time::ZERO + round * MTU_RAISE_AFTER);
        assert_eq!((wire.state(), wire.asked), ((MtuState::Complete, 9_000), round as usize));
    }
    wire.truth = 1_500;
    wire.now = wire.search.due().expect("the next time");
    wire.settle();
    assert_eq!(wire.search.black_holes(), 1);
    assert!((1_500 - MTU_STEP_BYTES..=1_500).contains(&wire.search.size()));
}

#[test]
fn a_doubt_that_is_answered_changes_nothing() {
    let mut wire = Wire::new(1_472, 1_472);
    wire.search.doubt(NO_CAP);
    wire.settle();
    assert_eq!((wire.state(), wire.asked, wire.search.black_holes()), ((MtuState::Complete, 1_472), 1, 0));
}

#[test]
fn a_packet_of_that_size_that_arrives_ends_a_doubt_and_no_search() {
    let mut wire = Wire::new(1_472, 1_472);
    wire.search.doubt(NO_CAP);
    wire.only_small_ones_get_through();
    wire.search.proven();
    assert_eq!(wire.state(), (MtuState::Complete, 1_472));
    wire.search.doubt(NO_CAP);
    for _ in 0..=MTU_PROBES_MAX {
        wire.only_small_ones_get_through();
    }
    wire.search.proven();
    wire.step(Time::MAX, || false);
    assert_eq!(wire.state(), (MtuState::Searching, PACKET_BYTES_MIN), "the base was asked for all the same");
}

#[test]
fn three_lost_probes_beside_answered_small_ones_lead_to_the_base() {
    let mut wire = Wire::new(1_472, 1_472);
    wire.search.doubt(NO_CAP);
    for _ in 0..MTU_PROBES_MAX {
        assert_eq!(wire.state(), (MtuState::Complete, 1_472));
        assert_eq!(wire.only_small_ones_get_through().size, 1_472);
    }
    let ask = wire.only_small_ones_get_through();
    assert_eq!((ask.size, wire.state()), (PACKET_BYTES_MIN, (MtuState::Base, PACKET_BYTES_MIN)));
    assert_eq!(wire.search.black_holes(), 1);
}

#[test]
fn the_base_that_gets_through_begins_a_search_and_one_that_does_not_is_an_error() {
    let mut wire = Wire::new(1_472, 1_400);
    wire.search.doubt(NO_CAP);
    for _ in 0..MTU_PROBES_MAX {
        wire.only_small_ones_get_through();
    }
    wire.step(Time::MAX, || false);
    assert_eq!(wire.state(), (MtuState::Searching, PACKET_BYTES_MIN));

    let mut wire = Wire::new(1_472, 500);
    wire.search.doubt(NO_CAP);
    for _ in 0..2 * MTU_PROBES_MAX {
        wire.only_small_ones_get_through();
    }
    // The wait for the last one.
    wire.now = wire.search.due().expect("it waits");
    assert_eq!(wire.poll(), None);
    assert_eq!(wire.state(), (MtuState::Error, PACKET_BYTES_MIN));
    assert_eq!(wire.search.due(), Some(wire.now + MTU_ERROR_RETRY));
}

#[test]
fn a_path_at_the_base_that_takes_less_is_an_error_too() {
    let at_base = |truth| {
        let mut wire = Wire::new(1_300, 1_300);
        wire.search.told(PACKET_BYTES_MIN);
        wire.truth = truth;
        wire.search.doubt(NO_CAP);
        wire
    };
    let mut wire = at_base(900);
    for _ in 0..=MTU_PROBES_MAX {
        wire.step(wire.now + Duration::from_secs(1), || false);
    }
    assert_eq!(wire.state(), (MtuState::Error, PACKET_BYTES_MIN));
    // There is nothing to doubt any more.
    let due = wire.search.due();
    wire.search.doubt(NO_CAP);
    assert_eq!(wire.search.due(), due);
    // One that carries it goes on with its search.
    let mut wire = at_base(1_300);
    wire.settle();
    assert_eq!(wire.state(), (MtuState::Complete, 1_300));
    // An interface of no more than the base is doubted as well.
    let mut wire = Wire::new(PACKET_BYTES_MIN, 900);
    wire.search.doubt(NO_CAP);
    for _ in 0..=MTU_PROBES_MAX {
        wire.step(wire.now + Duration::from_secs(1), || false);
    }
    assert_eq!(wire.state().0, MtuState::Error);
}

#[test]
fn an_old_word_of_the_driver_does_not_take_back_what_was_answered() {
    let mut wire = Wire::new(1_472, 1_472);
    wire.search.told(1_300);
    assert_eq!(wire.state(), (MtuState::Searching, 1_300));
    for _ in 0..20 {
        wire.step(wire.now + Duration::from_secs(1), || false);
        wire.search.told(1_300);
    }
    assert_eq!(wire.state(), (MtuState::Complete, 1_472));
    // A new one does.
    wire.search.told(1_290);
    assert_eq!(wire.state(), (MtuState::Searching, 1_290));
}

#[test]
fn an_error_ends_when_the_base_gets_through_again() {
    let mut wire = Wire::new(1_472, 500);
    wire.search.doubt(NO_CAP);
    for _ in 0..4 * MTU_PROBES_MAX {
        wire.step(Time::MAX, || false);
    }
    assert_eq!(wire.state(), (MtuState::Error, PACKET_BYTES_MIN));
    wire.truth = 1_472;
    wire.settle();
    assert_eq!(wire.state().0, MtuState::Complete);
    assert!(wire.state().1 + MTU_STEP_BYTES >= 1_472, "{:?}", wire.search);
}

#[test]
fn after_an_error_all_is_open_that_the_interface_takes() {
    let mut wire = Wire::new(8_972, 1_400);
    wire.search.doubt(NO_CAP);
    wire.settle();
    wire.truth = 700;
    wire.search.doubt(NO_CAP);
    for _ in 0..4 * MTU_PROBES_MAX {
        wire.step(Time::MAX, || false);
    }
    assert_eq!(wire.state(), (MtuState::Error, PACKET_BYTES_MIN));
    wire.truth = 8_000;
    wire.settle();
    let (state, size) = wire.state();
    assert!(state == MtuState::Complete && size + MTU_STEP_BYTES >= 8_000, "{:?}", wire.search);
}

#[test]
fn a_search_ends_complete_and_begins_again_after_ten_minutes() {
    let mut wire = Wire::new(1_472, 1_400);
    wire.search.doubt(NO_CAP);
    wire.settle();
    let (state, size) = wire.state();
    assert!(state == MtuState::Complete && (1_400 - MTU_STEP_BYTES..=1_400).contains(&size), "{:?}", wire.search);
    let again = wire.search.due().expect("it is to begin again");
    assert!(again > wire.now + MTU_RAISE_AFTER - Duration::from_secs(2));
    wire.truth = 1_472;
    wire.now = again;
    assert_eq!(wire.poll().map(|ask| ask.size), Some(1_472), "the interface's size is tried first");
    assert_eq!(wire.state(), (MtuState::Searching, size));
    wire.settle();
    assert_eq!(wire.state(), (MtuState::Complete, 1_472));
}

#[test]
fn silence_of_small_ones_too_says_nothing() {
    let mut wire = Wire::new(1_472, 1_472);
    wire.search.doubt(NO_CAP);
    let mut last = wire.now;
    for round in 0..50 {
        assert!(wire.step(Time::MAX, || true));
        assert!(round < 2 || wire.now <= last + MTU_PROBE_WAIT_MAX);
        last = wire.now;
    }
    assert_eq!((wire.state(), wire.search.black_holes()), ((MtuState::Complete, 1_472), 0));
    assert!(wire.now > Time::ZERO + 40 * MTU_PROBE_WAIT_MAX, "it asks once a second at most");
}

#[test]
fn the_driver_is_believed_until_it_is_wrong_and_then_only_when_it_says_less() {
    let mut wire = Wire::new(1_472, 9_000);
    wire.search.told(8_972);
    assert_eq!(wire.state(), (MtuState::Complete, 8_972));
    wire.search.told(1_400);
    assert_eq!(wire.state(), (MtuState::Searching, 1_400), "less is taken at once");
    wire.settle();
    assert_eq!(wire.state(), (MtuState::Complete, 8_972), "and was wrong");
    wire.search.told(60_000);
    assert_eq!(wire.state().1, 8_972, "more is to be proven");
    wire.settle();
    assert!((9_000 - MTU_STEP_BYTES..=9_000).contains(&wire.state().1), "{:?}", wire.search);
}

#[test]
fn a_router_that_lies_cannot_push_a_path_below_the_base_nor_keep_it_small() {
    let mut wire = Wire::new(1_472, 1_472);
    for _ in 0..10 {
        wire.search.told(68);
        assert_eq!(wire.state(), (MtuState::Searching, PACKET_BYTES_MIN));
        wire.settle();
        assert_eq!(wire.state(), (MtuState::Complete, 1_472));
        // The kernel has forgotten it, and then hears it again.
        wire.search.told(1_472);
    }
    assert!(wire.asked <= 20, "{}", wire.asked);
}

#[test]
fn a_size_that_the_kernel_names_is_asked_first() {
    let mut wire = Wire::new(1_472, 1_372);
    wire.search.doubt(NO_CAP);
    for _ in 0..MTU_PROBES_MAX {
        wire.only_small_ones_get_through();
    }
    wire.search.told(1_372);
    let (asked, from) = (wire.asked, wire.now);
    wire.step(Time::MAX, || false);
    wire.step(Time::MAX, || false);
    assert_eq!((wire.state(), wire.asked), ((MtuState::Searching, 1_372), asked + 2));
    assert!(wire.now < from + 2 * WAIT);
}

#[test]
fn nothing_larger_than_the_peer_takes_is_asked() {
    let mut wire = Wire::new(9_000, 5_000);
    wire.cap = 4_000;
    wire.search.doubt(wire.cap);
    for _ in 0..=MTU_PROBES_MAX {
        wire.only_small_ones_get_through();
    }
    while wire.step(wire.now + Duration::from_secs(1), || false) {}
    assert!((4_000 - MTU_STEP_BYTES..4_000).contains(&wire.search.size()), "{:?}", wire.search);
}

#[test]
fn an_answer_to_what_was_not_asked_is_none() {
    let mut wire = Wire::new(1_472, 1_472);
    for token in 0..3 {
        assert!(!wire.search.has_asked(token) && !wire.search.answered(token));
    }
    wire.search.doubt(NO_CAP);
    assert!(!wire.search.has_asked(0) && !wire.search.answered(0), "no question has been sent");
    let ask = wire.poll().expect("it is doubted");
    assert!(wire.search.has_asked(ask.token) && wire.search.has_asked(ask.small));
    assert!(!wire.search.answered(ask.token), "nothing grows");
    assert!(!wire.search.has_asked(ask.token));
}

proptest! {
    /// Any size of the path, any word of the driver: the search ends, and within a step of what
    /// gets through; and so after the path has become smaller, and, in time, larger again.
    #[test]
    fn it_finds_what_gets_through(
        told in PACKET_BYTES_MIN..=PACKET_BYTES_MAX,
        sizes in proptest::collection::vec(PACKET_BYTES_MIN..=PACKET_BYTES_MAX, 1..5),
    ) {
        let mut wire = Wire::new(told, told);
        for truth in sizes {
            wire.truth = truth;
            // Larger packets that are lost.
            if wire.search.size() > truth {
                wire.search.doubt(NO_CAP);
            } else if wire.search.size() < told {
                wire.now = wire.now + MTU_RAISE_AFTER;
            }
            wire.settle();
            let (size, most) = (wire.search.size(), told.min(truth));
            prop_assert!(size <= most, "{:?}", wire.search);
            prop_assert!(size + MTU_STEP_BYTES >= most || size == PACKET_BYTES_MIN && truth == PACKET_BYTES_MIN);
        }
    }

    /// Whatever is said, answered, lost and doubted: the size stays within its bounds.
    #[test]
    fn the_size_is_always_within_its_bounds(
        told in 0usize..70_000,
        steps in proptest::collection::vec((0u8..6, 0usize..70_000, any::<[bool; 2]>()), 0..200),
    ) {
        let mut wire = Wire::new(told, 1_500);
        for (what, bytes, lost) in steps {
            match what {
                0 => wire.search.told(bytes),
                1 => wire.search.doubt(wire.cap),
                2 => wire.truth = bytes,
                3 => {
                    wire.cap = bytes.max(PACKET_BYTES_MIN);
                    wire.search.session_begins(wire.now);
                }
                _ => {
                    let mut lost = lost.into_iter();
                    wire.step(Time::MAX, || lost.next().unwrap_or(false));
                }
            }
            wire.check();
        }
    }
}
