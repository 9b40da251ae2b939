//! What two threads, or a node in the middle of a call, make of an end that the kernel has spoken
//! of.
//!
//! Invariant: each test is one interleaving, of which real programs show one in thousands.

use super::super::simulation::ME;
use super::*;
use crate::core::{Early, EndWords, Receiving};
use std::cell::Cell;
use std::io::IoSliceMut;
use std::sync::Arc;
use vmmc_host::stores::Store;
use vmmc_stream::{End, Flags, Left, Shape, Slab, Slot};

/// A kernel's socket on which the other end has ended; `during` happens while a receive is in it,
/// `at_look` while it is asked about the other end.
struct Ended<'a> {
    look: Cell<End>,
    during: &'a dyn Fn(),
    at_look: &'a dyn Fn(),
}

impl Kernel for Ended<'_> {
    fn send_now(&self, _: &[IoSlice<'_>]) -> Result<usize, Errno> {
        Err(Errno::PIPE)
    }
    fn receive_now(&self, _: &mut [IoSliceMut<'_>], _: bool) -> Result<usize, Errno> {
        (self.during)();
        Ok(0)
    }
    fn sent(&self) -> Option<u64> {
        Some(0)
    }
    fn received(&self) -> Option<(u64, u64)> {
        Some((0, 0))
    }
    fn peek(&self) -> End {
        (self.at_look)();
        // As SO_ERROR is: told once.
        self.look.replace(End::Ended)
    }
    fn peer_ended(&self) -> bool {
        true
    }
    fn no_delay(&self) {}
}

/// End 1 of a connection, which has answered the request of end 0 for the ring.
fn end() -> (Upgraded, Slot) {
    let slot = Slab::create(Shape { slots: 1, small_bytes: 4096, large_bytes: 4096 }).unwrap().slot(0).unwrap();
    slot.words().between.store(1, Ordering::Relaxed);
    slot.words().ends.iter().for_each(|end| end.attached.store(EndWords::YES, Ordering::Relaxed));
    slot.words().ends[0].soon.store(1, Ordering::Relaxed);
    slot.words().ends[1].ready.store(1, Ordering::Relaxed);
    (Upgraded::new(slot.clone(), 1, Arc::<Early>::default()), slot)
}

#[test]
fn a_connection_at_rest_hears_of_another_verdict() {
    let (_, slot) = end();
    slot.words().ends[0].soon.store(0, Ordering::Relaxed);
    slot.words().ends[1].ready.store(0, Ordering::Relaxed);
    let mut core = Upgraded::new(slot, JUDGE, Arc::<Early>::default());
    let choice = Arc::<Choice>::default();
    core.share_choice(choice.clone());
    core.rest(10);
    assert!(core.rest_sending());
    choice.decide(true);
    assert!(!core.rest_sending());
    choice.decide(false);
    assert!(!core.rest_sending(), "and is awake until it has looked");
}

fn receive(core: &Upgraded, kernel: &Ended<'_>) -> Receiving {
    core.receive(ME, kernel, &mut [IoSliceMut::new(&mut [0; 10])], true).0
}

/// The other node's word that all is here.
fn complete(slot: &Slot) {
    slot.words().complete.store(1, Ordering::SeqCst);
    slot.words().ends[1].hint.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn what_comes_by_the_ring_while_a_receive_hears_of_the_end_is_received() {
    let (core, slot) = end();
    let nothing = Ended { look: Cell::new(End::Ended), during: &|| (), at_look: &|| () };
    assert_eq!(receive(&core, &nothing), Receiving::Empty, "the ring may be next");
    assert!(core.takes_question());
    let words = &slot.words().directions[0];
    let first = Cell::new(true);
    let during = || {
        if first.replace(false) {
            slot.copy_in((0, false), 0, &[IoSlice::new(b"abc")], 0, 3, Store::Cached);
            words.change(0);
            words.publish(3);
            words.sender_flags.store(Flags::END, Ordering::SeqCst);
            complete(&slot);
        }
    };
    let kernel = Ended { look: Cell::new(End::Ended), during: &during, at_look: &|| () };
    assert_eq!(receive(&core, &kernel), Receiving::Done(3));
    assert_eq!(receive(&core, &kernel), Receiving::Done(0));
}

#[test]
fn a_thread_that_waits_for_the_rest_goes_on_when_another_thread_has_learned_first_that_all_is_here() {
    let (core, slot) = end();
    let kernel = Ended { look: Cell::new(End::Ended), during: &|| (), at_look: &|| () };
    assert_eq!(receive(&core, &kernel), Receiving::Empty);
    assert!(core.waits_for_the_rest() && !core.ends_sleep());
    complete(&slot);
    // What a poll, a send or an event loop does.
    core.follow_hints(&kernel);
    assert!(core.ends_sleep(), "the end is to be received");
    assert_eq!(receive(&core, &kernel), Receiving::Done(0));
}

#[test]
fn nobody_waits_for_the_word_of_a_node_that_is_out_of_reach() {
    let (core, slot) = end();
    let kernel = Ended { look: Cell::new(End::Ended), during: &|| (), at_look: &|| () };
    assert_eq!(receive(&core, &kernel), Receiving::Empty);
    assert!(core.waits_for_the_rest() && !core.ends_sleep());
    slot.words().ends[0].soon.store(0, Ordering::Relaxed);
    slot.words().broken.store(1, Ordering::SeqCst);
    assert!(core.ends_sleep(), "neither direction had left the kernel, which has ended");
    assert_eq!(receive(&core, &kernel), Receiving::Kernel, "a plain call of TCP");
}

#[test]
fn a_reset_that_the_kernel_told_to_a_peek_is_told_to_the_next_receive() {
    let (core, slot) = end();
    complete(&slot);
    let kernel = Ended { look: Cell::new(End::Reset(Errno::CONNRESET)), during: &|| (), at_look: &|| () };
    core.follow_hints(&kernel);
    assert_eq!(receive(&core, &kernel), Receiving::Failed(Errno::CONNRESET));
    assert_eq!(receive(&core, &kernel), Receiving::Done(0), "once");
}

#[test]
fn a_receive_of_no_bytes_says_nothing_of_an_end() {
    let (core, _slot) = end();
    let kernel = Ended { look: Cell::new(End::Open), during: &|| (), at_look: &|| () };
    assert_eq!(core.receive(ME, &kernel, &mut [], true).0, Receiving::Done(0));
    assert!(!core.takes_question());
}

#[test]
fn a_peer_that_ended_its_direction_in_the_kernel_behind_the_ring_still_receives() {
    let (core, slot) = end();
    let kernel = Ended { look: Cell::new(End::Bytes), during: &|| (), at_look: &|| () };
    let words = &slot.words().directions[0];
    words.change(0);
    core.follow(ME, &kernel);
    assert!(words.reads_ring());
    // It left the ring, sent the rest by the kernel and shut it down, and all of that came before
    // anybody here looked.
    words.change(0);
    complete(&slot);
    core.follow_hints(&kernel);
    assert!(!core.is_gone());
}

#[test]
fn a_receive_does_not_keep_its_own_end_from_the_ring_that_it_requests() {
    let (core, slot) = end();
    let [other, own] = &slot.words().ends;
    other.soon.store(0, Ordering::SeqCst);
    own.ready.store(0, Ordering::SeqCst);
    assert!(core.begin_kernel_receive() && core.is_deaf(), "a plain call of TCP");
    core.end_resting_receive();
    own.soon.store(1, Ordering::SeqCst);
    assert!(!core.begin_kernel_receive() && !core.is_deaf(), "a look");
}

#[test]
fn who_asks_the_kernel_while_another_thread_follows_the_end_into_it_finds_no_death() {
    // Libraries of an earlier release do not announce an end that the kernel's socket reports.
    for announces in [true, false] {
        let (core, slot) = end();
        let words = &slot.words().directions[0];
        words.change(0);
        let nothing = Ended { look: Cell::new(End::Open), during: &|| (), at_look: &|| () };
        core.follow(ME, &nothing);
        assert!(core.incoming().reads_ring());
        // The other end leaves the ring, and ends.
        words.begin_change();
        words.leave_ring(Left { from: 0, whole: true });
        if announces {
            slot.words().directions[1].receiver_flags.store(Flags::ENDED, Ordering::SeqCst);
        }
        complete(&slot);
        let follows = || core.follow(ME, &nothing);
        core.follow_hints(&Ended { look: Cell::new(End::Ended), during: &|| (), at_look: &follows });
        assert!(!core.incoming().reads_ring(), "the other thread has followed");
        assert!(!core.is_gone(), "an end is no death: what this end sends is read");
    }
}
