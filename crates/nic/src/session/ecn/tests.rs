//! What the peer says, and what that leads to: one rule a test.

use super::*;
use proptest::prelude::*;

fn told(ect0: u64, ect1: u64, ce: u64) -> Marks {
    Marks { ect0, ect1, ce }
}

/// One that has sent so many packets, of which as many have arrived.
fn sender(choice: Ecn, packets: u64) -> Notification {
    let mut sender = Notification::new(choice);
    (0..packets).for_each(|number| {
        sender.sent();
        sender.has_arrived(number);
    });
    sender
}

#[test]
fn counts_that_add_up_are_news() {
    let mut sender = sender(Ecn::Classic, 100);
    assert_eq!((sender.state(), sender.codepoint()), (EcnState::Trying, Codepoint::Ect0));
    assert!(matches!(sender.told((1, true), told(98, 0, 2), 100), Ok(Some(News { all: 100, marked: 2 }))));
    assert_eq!(sender.state(), EcnState::InUse);
    (0..10).for_each(|_| sender.sent());
    assert!(matches!(sender.told((2, true), told(98, 0, 12), 110), Ok(Some(News { all: 10, marked: 10 }))));
    let mut sender = self::sender(Ecn::L4s, 10);
    assert_eq!(sender.codepoint(), Codepoint::Ect1);
    assert!(matches!(sender.told((1, true), told(0, 9, 1), 10), Ok(Some(News { all: 10, marked: 1 }))));
}

#[test]
fn counts_of_more_packets_than_there_are_or_that_shrink_are_a_breach_of_protocol() {
    for lie in [told(101, 0, 0), told(50, 0, 51), told(u64::MAX, u64::MAX, u64::MAX), told(0, 101, 0)] {
        assert!(sender(Ecn::Classic, 100).told((1, true), lie, 100).is_err(), "{lie:?}");
        assert!(sender(Ecn::Off, 100).told((1, true), lie, 100).is_err(), "{lie:?}, and nobody asked");
    }
    for lie in [told(49, 0, 10), told(60, 0, 9)] {
        let mut sender = sender(Ecn::Classic, 100);
        assert!(sender.told((7, true), told(50, 0, 10), 100).is_ok());
        assert!(matches!(sender.told((6, true), lie, 100), Ok(None)), "an older packet may come later");
        assert!(sender.told((8, true), lie, 100).is_err(), "{lie:?}");
    }
}

/// As many acknowledgements as may come without a report, and one more.
fn look_often(sender: &mut Notification) {
    (0..=ECN_UNTOLD_MAX).for_each(|_| sender.look());
}

#[test]
fn a_path_that_removes_codepoints_turns_marks_off() {
    // No counts at all.
    let mut sender = sender(Ecn::Classic, ECN_UNSEEN_MAX);
    look_often(&mut sender);
    assert_eq!(sender.state(), EcnState::Trying);
    sender.has_arrived(ECN_UNSEEN_MAX);
    sender.look();
    assert_eq!((sender.state(), sender.codepoint()), (EcnState::Off(EcnOff::Stripped), Codepoint::NotEct));
    // Counts of some: one in eight may be missing.
    for (came, state) in [(350, EcnState::InUse), (349, EcnState::Off(EcnOff::Stripped))] {
        let mut sender = self::sender(Ecn::Classic, 400);
        assert!(sender.told((1, true), told(came, 0, 0), 400).is_ok());
        assert_eq!(sender.state(), state, "{came} of 400");
    }
    // Counts that come no more.
    let mut sender = self::sender(Ecn::Classic, 100);
    assert!(sender.told((1, true), told(100, 0, 0), 100).is_ok());
    (0..=ECN_UNSEEN_MAX).for_each(|number| sender.has_arrived(100 + number));
    (0..ECN_UNTOLD_MAX).for_each(|_| sender.look());
    assert_eq!(sender.state(), EcnState::InUse, "one acknowledgement may tell of many packets");
    sender.look();
    assert_eq!(sender.state(), EcnState::Off(EcnOff::Stripped));
}

#[test]
fn packets_that_went_again_untold_are_not_held_against_the_path() {
    let mut sender = sender(Ecn::Classic, 100);
    sender.goes_again(200);
    (100..200).for_each(|number| sender.has_arrived(number));
    assert!(sender.told((1, true), told(100, 0, 0), 100).is_ok());
    assert_eq!(sender.state(), EcnState::InUse, "how many of those have arrived nobody knows");
}

#[test]
fn codepoints_that_were_not_sent_turn_marks_off_and_are_no_breach() {
    let cases = [(Ecn::Classic, told(90, 1, 0)), (Ecn::L4s, told(1, 90, 0)), (Ecn::Classic, told(0, 0, 101))];
    for (choice, told) in cases {
        let mut sender = sender(choice, 100);
        // Packets without a codepoint have gone out as well.
        assert!(matches!(sender.told((1, true), told, 150), Ok(None)), "{told:?}");
        assert_eq!(sender.state(), EcnState::Off(EcnOff::Altered), "{told:?}");
    }
}

#[test]
fn a_path_on_which_nothing_gets_through_turns_marks_off() {
    let mut sender = sender(Ecn::Classic, 10);
    sender.timed_out();
    sender.has_arrived(11);
    sender.timed_out();
    assert_eq!(sender.state(), EcnState::Trying, "one timeout is a loss");
    sender.timed_out();
    assert_eq!(sender.state(), EcnState::Off(EcnOff::Unanswered));
    // What only acknowledges hears of it by what comes again and again.
    let mut receiver = self::sender(Ecn::Classic, 10);
    [true, true, true, false, true, true, true].into_iter().for_each(|duplicate| receiver.came(duplicate));
    assert_eq!(receiver.state(), EcnState::Trying);
    receiver.came(true);
    assert_eq!(receiver.state(), EcnState::Off(EcnOff::Unanswered));
    // Where marks have come through, timeouts are something else.
    let mut known = self::sender(Ecn::Classic, 10);
    assert!(known.told((1, true), told(10, 0, 0), 10).is_ok());
    (0..5).for_each(|_| known.timed_out());
    (0..9).for_each(|_| known.came(true));
    assert_eq!(known.state(), EcnState::InUse);
}

#[test]
fn another_path_is_another_try() {
    let mut sender = sender(Ecn::Classic, 300);
    look_often(&mut sender);
    assert_eq!(sender.state(), EcnState::Off(EcnOff::Stripped));
    sender.try_again(300);
    assert_eq!(sender.state(), EcnState::Trying);
    // What was sent before the change says nothing about the new path.
    (0..300).for_each(|number| sender.has_arrived(number));
    sender.look();
    assert_eq!(sender.state(), EcnState::Trying);
    sender.sent();
    sender.has_arrived(300);
    assert!(matches!(sender.told((1, true), told(1, 0, 0), 301), Ok(Some(News { all: 1, marked: 0 }))));
    let mut off = Notification::new(Ecn::Off);
    off.try_again(7);
    assert_eq!(off.state(), EcnState::Off(EcnOff::Chosen));
}

#[test]
fn what_has_come_is_reported_at_first_at_marks_and_now_and_then() {
    let mut receiver = Notification::new(Ecn::Off);
    assert!(!receiver.count(Codepoint::NotEct) && receiver.due().is_none());
    assert!(!receiver.count(Codepoint::Ect0));
    assert_eq!(receiver.echo(), told(1, 0, 0), "the first at once");
    for _ in 1..ECN_ECHO_EVERY {
        receiver.count(Codepoint::Ect0);
        assert!(receiver.due().is_none());
    }
    receiver.count(Codepoint::Ect1);
    assert_eq!(receiver.due(), Some(&told(ECN_ECHO_EVERY, 1, 0)));
    receiver.echo();
    assert!(receiver.count(Codepoint::Ce));
    assert_eq!(receiver.due(), Some(&told(ECN_ECHO_EVERY, 1, 1)));
    let begins: Vec<bool> = [true, true, false, true].into_iter().map(|marked| receiver.begins(marked)).collect();
    assert_eq!(begins, [true, false, false, true]);
}

proptest! {
    /// A path that marks and loses, reports that get lost or overtake each other: marks stay on, no
    /// report is a breach, and each mark that is reported is told once.
    #[test]
    fn an_honest_peer_is_never_taken_for_another(
        fates in proptest::collection::vec((0u8..20, 0u8..10, any::<bool>()), 1..2_000),
    ) {
        let (mut sender, mut receiver) = (Notification::new(Ecn::Classic), Notification::new(Ecn::Off));
        let (mut news, mut reports, mut late) = (0, 0u64, None);
        for (number, (fate, report, overtaken)) in (0u64..).zip(fates) {
            sender.sent();
            match fate {
                0 => continue,
                1 | 2 => _ = receiver.count(Codepoint::Ce),
                _ => _ = receiver.count(Codepoint::Ect0),
            }
            sender.has_arrived(number);
            sender.look();
            if report > 7 || receiver.due().is_none() {
                continue;
            }
            let newest = (reports, receiver.echo());
            reports += 1;
            let old = if overtaken { late.replace(newest) } else { Some(newest) };
            for (packet, counts) in old.into_iter().chain(late.take_if(|_| !overtaken)) {
                let told = sender.told((packet, packet + 1 == reports), counts, number + 1);
                prop_assert!(told.is_ok());
                news += told.ok().flatten().map_or(0, |news| news.marked);
            }
        }
        prop_assert!(!matches!(sender.state(), EcnState::Off(_)), "{:?}", sender.state());
        prop_assert_eq!(news, sender.told.ce);
    }

    /// Whatever a peer says: no panic, and at most as many marks as packets.
    #[test]
    fn no_report_is_believed_beyond_what_was_sent(
        reports in proptest::collection::vec((0u64..20, any::<[u16; 3]>(), 0u8..30, any::<bool>()), 1..200),
    ) {
        let (mut sender, mut sent, mut marked) = (Notification::new(Ecn::L4s), 0u64, 0);
        for (packet, [ect0, ect1, ce], shift, path) in reports {
            (0..50).for_each(|_| sender.sent());
            sent += 50;
            sender.has_arrived(sent);
            sender.look();
            if path && shift == 0 {
                sender.try_again(sent);
            }
            let counts = told(u64::from(ect0) >> shift, u64::from(ect1) >> (shift % 9), u64::from(ce) >> (shift % 11));
            if let Ok(Some(news)) = sender.told((packet, path), counts, sent) {
                marked += news.marked;
                prop_assert!(news.marked <= news.all);
            }
            prop_assert!(marked <= sent);
        }
    }
}
