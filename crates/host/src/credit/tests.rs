//! Loom explores a channel: slots and frames that are used again, and an owner that sleeps.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Plain memory, as slots and frames are: loom finds accesses that are not ordered.
#[derive(Default)]
struct Plain(UnsafeCell<u64>);

// SAFETY: that no two use it at once is what the models find out.
unsafe impl Sync for Plain {}

impl Plain {
    fn write(&self, value: u64) {
        // SAFETY: as above.
        self.0.with_mut(|at| unsafe { *at = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: as above.
        self.0.with(|at| unsafe { *at })
    }
}

/// What a short payload takes while all frames are free.
const ONE: Run = Run { first: 0, count: 1 };

/// A channel of one slot, and one frame or two.
#[derive(Default)]
struct Channel {
    words: ChannelWords,
    /// The slot: what it says, and its number.
    slot: Plain,
    number: AtomicU64,
    frames: [Plain; 2],
    /// The word of the board that the sender marks.
    board: AtomicU64,
}

impl Channel {
    /// Waits for room as a sender does: by asking now and then.
    fn wait_for_room(&self, credit: &mut Credit, frames: u64) -> Option<Run> {
        loop {
            if let Some(run) = credit.room(frames) {
                return run;
            }
            _ = frames > 1 && credit.keep(frames);
            credit.hear(self.words.credit());
            thread::yield_now();
        }
    }

    fn send(&self, credit: &mut Credit, frames: u64) {
        let run = self.wait_for_room(credit, frames);
        run.iter().for_each(|run| self.frames_of(*run).for_each(|frame| frame.write(credit.sent())));
        self.slot.write(credit.sent());
        self.number.store(credit.sent() + 1, Ordering::Release);
        credit.spend(run);
    }

    fn frames_of(&self, run: Run) -> impl Iterator<Item = &Plain> {
        self.frames[run.first as usize..][..run.count as usize].iter()
    }

    /// Reads a payload to its end, and gives its frames back.
    fn read_payload(&self, of: u64, run: Run) {
        self.frames_of(run).for_each(|frame| assert_eq!(frame.read(), of));
        self.words.give_back(run);
    }

    fn read(&self, taken: u64) {
        assert_eq!(self.slot.read(), taken);
        self.words.take(taken + 1);
    }
}

#[test]
fn loom_no_slot_or_frame_is_written_over_and_no_credit_is_missed() {
    loom::model(|| {
        let channel = Arc::new(Channel::default());
        let theirs = channel.clone();
        let sender = thread::spawn(move || {
            let mut credit = Credit::new(1, 1);
            for frames in [1, 0, 1] {
                theirs.send(&mut credit, frames);
            }
        });
        let mut held = None;
        for message in 0..3 {
            while !is_there(&channel.number, message) {
                thread::yield_now();
            }
            channel.read(message);
            if message == 0 {
                held = Some(message);
            } else if let Some(of) = held.take() {
                // The frame of the first message is the program's until the second one has come.
                channel.read_payload(of, ONE);
            } else {
                channel.read_payload(message, ONE);
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn loom_a_payload_of_two_frames_waits_for_both_and_gives_both_back() {
    loom::model(|| {
        let channel = Arc::new(Channel::default());
        let theirs = channel.clone();
        let sender = thread::spawn(move || {
            let mut credit = Credit::new(1, 2);
            for frames in [1, 2, 1] {
                theirs.send(&mut credit, frames);
            }
        });
        for (message, run) in [ONE, Run { first: 0, count: 2 }, ONE].into_iter().enumerate() {
            let message = message as u64;
            while !is_there(&channel.number, message) {
                thread::yield_now();
            }
            channel.read(message);
            channel.read_payload(message, run);
        }
        sender.join().unwrap();
    });
}

#[test]
fn loom_an_owner_that_sleeps_misses_no_message() {
    loom::model(|| {
        let channel = Arc::new(Channel::default());
        let theirs = channel.clone();
        let sender = thread::spawn(move || {
            let mut credit = Credit::new(1, 0);
            for mark in 1..3 {
                theirs.send(&mut credit, 0);
                if load_after_store(theirs.words.quiet()) != 0 {
                    theirs.board.store(mark, Ordering::Release);
                }
            }
        });
        let mut mark = 0;
        for message in 0..2 {
            while !is_there(&channel.number, message) {
                channel.words.set_quiet(true);
                if is_there(&channel.number, message) {
                    channel.words.set_quiet(false);
                    break;
                }
                // It sleeps, and nothing but a mark wakes it.
                while channel.board.load(Ordering::Acquire) == mark {
                    thread::yield_now();
                }
                mark = channel.board.load(Ordering::Acquire);
                channel.words.set_quiet(false);
            }
            channel.read(message);
        }
        sender.join().unwrap();
    });
}
