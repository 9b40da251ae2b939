//! Connections that share processors, and so take each other's time, as the test says.

use super::super::pace::Pace;
use super::super::pace::tests::Clock;
use super::*;

/// The ends that judge of some connections; each has one turn in each round.
struct Crowd {
    clock: Clock,
    choice: Arc<Choice>,
    members: Vec<Member>,
    /// What a round takes with so many turns in the kernel and so many in the ring.
    round_ns: fn(u64, u64) -> u64,
    rounds: u32,
    /// Every so many rounds a connection whose turn is in the kernel has a segment sent again.
    loses_every: u32,
}

struct Member {
    pace: Pace,
    in_ring: bool,
    rests: u32,
    /// Rounds until it enters the ring that it has requested; none: it never will.
    answers_after: Option<u32>,
    asked: u32,
    /// What it takes to answer, beside the rounds.
    pause_ns: u64,
    again: u32,
}

impl Crowd {
    fn new(members: usize, round_ns: fn(u64, u64) -> u64) -> Crowd {
        let mut crowd = Crowd {
            clock: Clock::default(),
            choice: Arc::default(),
            members: Vec::new(),
            round_ns,
            rounds: 0,
            loses_every: 0,
        };
        crowd.clock.now_ns.set(1_000_000_000);
        crowd.join(members);
        crowd
    }

    fn join(&mut self, members: usize) {
        for _ in 0..members {
            let pace = Pace::new(self.choice.clone());
            self.members.push(Member {
                pace,
                in_ring: false,
                rests: 0,
                answers_after: Some(2),
                asked: 0,
                pause_ns: 0,
                again: 0,
            });
        }
    }

    fn in_ring(&self) -> usize {
        self.members.iter().filter(|member| member.in_ring).count()
    }

    /// What so many rounds take on the average, in nanoseconds.
    fn rounds(&mut self, count: u32) -> u64 {
        let begun = self.clock.now_ns.get();
        (0..count).for_each(|_| self.round());
        (self.clock.now_ns.get() - begun) / u64::from(count)
    }

    fn round(&mut self) {
        self.rounds += 1;
        let loses = self.rounds.checked_rem(self.loses_every) == Some(0);
        let (all, in_ring) = (self.members.len() as u64, self.in_ring() as u64);
        let ns = (self.round_ns)(all - in_ring, in_ring);
        for member in &mut self.members {
            let step = ns / all;
            self.clock.now_ns.set(self.clock.now_ns.get() + step);
            self.clock.cpu_ns.set(self.clock.cpu_ns.get() + step);
            if loses && !member.in_ring {
                member.again += 1;
            }
            self.clock.again.set(member.again);
            if member.rests > 0 && !member.pace.has_news() {
                member.rests -= 1;
                continue;
            }
            member.rests = 0;
            let now = self.clock.now_ns.get() - member.pause_ns;
            member.pace.note_receive(|| now);
            member.pace.saw_send(&self.clock, 8, member.in_ring, None);
            let wanted = !member.pace.prefers_kernel();
            member.asked = if wanted && !member.in_ring { member.asked + 1 } else { 0 };
            member.in_ring =
                wanted && (member.in_ring || member.answers_after.is_some_and(|after| member.asked >= after));
            member.rests = if member.in_ring { 0 } else { member.pace.rest(true) };
        }
    }
}

/// The nodes take as long for one message in a packet as for fifty.
fn packets(kernel: u64, ring: u64) -> u64 {
    kernel * 14_000 + ring * 8_000 + if ring > 0 { 100_000 } else { 0 }
}

/// What one in the ring wins it takes from those in the kernel, and fifty have no time left.
fn one_core(kernel: u64, ring: u64) -> u64 {
    let each = if ring > 5 { 20_000 } else { 0 };
    kernel * 14_000 + ring * each
}

#[test]
fn what_pays_for_all_together_is_taken_though_it_pays_for_none_alone() {
    let mut alone = Crowd::new(0, packets);
    let mut crowd = Crowd::new(0, packets);
    for _ in 0..50 {
        alone.choice = Arc::default();
        for crowd in [&mut alone, &mut crowd] {
            crowd.join(1);
            crowd.rounds(50);
        }
    }
    alone.rounds(20_000);
    assert!(alone.in_ring() < 10, "{}: beside the others in the kernel the ring is no faster", alone.in_ring());
    crowd.rounds(20_000);
    let ns = crowd.rounds(20_000);
    assert_eq!(crowd.in_ring(), 50);
    assert!(ns < 505_000, "{ns}: trials of the kernel are few");
}

#[test]
fn what_pays_for_one_alone_is_left_if_it_does_not_pay_for_all_together() {
    let mut crowd = Crowd::new(50, one_core);
    crowd.rounds(20_000);
    let ns = crowd.rounds(20_000);
    assert_eq!(crowd.in_ring(), 0);
    assert!(ns < 702_000, "{ns}: trials of the ring are few");
}

#[test]
fn all_change_together_and_few_turns_lie_between() {
    let mut crowd = Crowd::new(50, packets);
    let mut mixed = 0;
    for _ in 0..40_000 {
        crowd.round();
        mixed += u32::from(!matches!(crowd.in_ring(), 0 | 50));
    }
    assert!(crowd.in_ring() == 50 && mixed < 60, "{mixed}");
}

#[test]
fn those_that_come_into_the_ring_first_do_not_decide_for_the_others() {
    let mut crowd = Crowd::new(50, packets);
    crowd.members[1..].iter_mut().for_each(|member| member.answers_after = Some(25));
    crowd.rounds(150);
    assert_eq!(crowd.in_ring(), 50);
}

#[test]
fn one_that_comes_later_goes_where_the_others_are_once_it_is_known() {
    let mut crowd = Crowd::new(10, |kernel, ring| kernel * 60_000 + ring * 20_000);
    crowd.rounds(1_000);
    assert_eq!(crowd.in_ring(), 10);
    crowd.join(5);
    crowd.rounds(30);
    assert_eq!(crowd.in_ring(), 10, "it is measured in the kernel first");
    crowd.rounds(20);
    assert_eq!(crowd.in_ring(), 15);
}

#[test]
fn a_slow_responder_keeps_to_the_kernel_and_holds_up_nobody() {
    let mut crowd = Crowd::new(10, |kernel, ring| kernel * 60_000 + ring * 20_000);
    crowd.members[3].pause_ns = 10_000_000;
    crowd.rounds(2_000);
    assert_eq!(crowd.in_ring(), 9);
    assert!(!crowd.members[3].in_ring);
}

#[test]
fn ends_that_do_not_answer_are_asked_seldom_and_hold_up_nobody() {
    let mut crowd = Crowd::new(10, |kernel, ring| kernel * 60_000 + ring * 20_000);
    crowd.members[..4].iter_mut().for_each(|member| member.answers_after = None);
    let mut asks = 0;
    for _ in 0..20_000 {
        crowd.round();
        asks += u32::from(crowd.members[0].asked > 0);
    }
    assert_eq!(crowd.in_ring(), 6);
    assert!((32..2_000).contains(&asks), "{asks}");
}

#[test]
fn a_trial_in_which_nobody_comes_ends() {
    let mut crowd = Crowd::new(10, |kernel, ring| kernel * 60_000 + ring * 20_000);
    crowd.members.iter_mut().for_each(|member| member.answers_after = None);
    let mut tried = 0;
    for _ in 0..20_000 {
        crowd.round();
        tried += u32::from(crowd.choice.verdict().ring());
    }
    assert!((32..2_000).contains(&tried), "{tried}");
    crowd.members.iter_mut().for_each(|member| member.answers_after = Some(2));
    crowd.rounds(2_000);
    assert_eq!(crowd.in_ring(), 10, "and others follow");
}

#[test]
fn losses_of_all_are_counted_together() {
    let mut crowd = Crowd::new(50, one_core);
    crowd.rounds(20_000);
    assert_eq!(crowd.in_ring(), 0);
    // 204 ms in 400 turns of which each takes 0.7.
    crowd.loses_every = 400;
    crowd.rounds(20_000);
    assert_eq!(crowd.in_ring(), 50);
    crowd.loses_every = 0;
    crowd.rounds(400_000);
    assert_eq!(crowd.in_ring(), 0, "once they have ended the kernel is taken again");
}

#[test]
fn a_machine_that_is_not_busy_any_more_is_measured_again() {
    let mut crowd = Crowd::new(50, one_core);
    crowd.rounds(50_000);
    crowd.round_ns = packets;
    crowd.rounds(20_000);
    assert_eq!(crowd.in_ring(), 50);
    crowd.round_ns = one_core;
    crowd.rounds(20_000);
    assert_eq!(crowd.in_ring(), 0);
}

#[test]
fn fewer_connections_than_before_are_judged_as_soon_as_as_many() {
    let mut crowd = Crowd::new(200, one_core);
    crowd.rounds(20_000);
    crowd.members.truncate(1);
    crowd.round_ns = |kernel, ring| kernel * 60_000 + ring * 20_000;
    crowd.rounds(1_600);
    assert_eq!(crowd.choice.members.load(Relaxed), 1, "after twice two windows of its own");
    crowd.rounds(17_000);
    assert_eq!(crowd.in_ring(), 1);
}

#[test]
fn of_two_threads_one_changes_the_verdict() {
    let choice = Choice::default();
    let verdict = choice.verdict();
    assert!(choice.change(verdict, true, true));
    let trial = choice.verdict();
    assert!(!choice.change(verdict, false, true), "it is not what it was");
    assert!(choice.verdict() == trial && trial.ring() && trial.is_trial());
    choice.end_trial(trial, true);
    let after = choice.trial_after[RING].load(Relaxed);
    choice.end_trial(trial, false);
    assert!(choice.verdict().ring() && !choice.verdict().is_trial());
    assert_eq!(choice.trial_after[RING].load(Relaxed), after);
}

#[test]
fn there_are_so_many_choices_and_no_more() {
    let choices = Choices::default();
    let of = |i: usize| choices.of(IpAddr::from([10, 0, (i / 256) as u8, (i % 256) as u8]));
    let first: Vec<_> = (0..BETWEEN_CHOICES_MAX).map(of).collect();
    assert!((0..BETWEEN_CHOICES_MAX).all(|i| Arc::ptr_eq(&of(i), &first[i])));
    assert!(!Arc::ptr_eq(&of(BETWEEN_CHOICES_MAX), &of(BETWEEN_CHOICES_MAX)), "one for each connection");
    let _held = choices.0.lock();
    assert_eq!(Arc::strong_count(&choices.of([10, 0, 0, 0].into())), 1, "nobody waits");
}

#[test]
fn a_trial_that_all_leave_has_gone_badly_and_keeps_nobody_away_from_the_next() {
    let mut crowd = Crowd::new(50, |kernel, ring| kernel * 14_000 + ring * 100_000);
    crowd.rounds(100);
    assert_eq!(crowd.in_ring(), 0);
    assert_eq!(crowd.choice.trial_after[KERNEL].load(Relaxed), BETWEEN_TURNS_MIN * BETWEEN_TRIAL_FACTOR);
    crowd.round_ns = packets;
    crowd.rounds(400);
    assert_eq!(crowd.in_ring(), 50);
}
