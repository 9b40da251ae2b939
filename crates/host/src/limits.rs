//! Named bounds of the interface between a process and its node.
//!
//! Invariant: every queue, table and retry of this crate takes its bound from here, with the reason
//! for the number.

#[cfg(not(loom))]
use crate::wait::{BackoffLimits, LongPoll, RestLimits, SkipLimits, TimedSleeps, YieldLimits};
use std::time::Duration;

/// Bytes of one command slot: four cache lines, so that short data travels inline in the descriptor
/// and the first 24 bytes of it share the line that the node polls anyway.
pub const COMMAND_SLOT_BYTES: usize = 256;
/// Bytes of data that fit inline in a command slot (slot minus the five descriptor words).
pub const INLINE_BYTES_MAX: usize = COMMAND_SLOT_BYTES - 40;
/// Slots of the command ring (the papers' command post buffer): 64 KiB; deep enough that a sender
/// of short messages meets flow control of the network before that of the ring.
pub const COMMAND_SLOTS: usize = 256;
/// Slots of the completion ring. The library never has more commands outstanding that ask for a
/// completion, so the ring cannot overflow.
pub const COMPLETION_SLOTS: usize = 1024;
/// Slots of the ring of notifications that come from other nodes or through the engine. Overflow is
/// counted, never silent.
pub const NOTIFICATION_SLOTS: usize = 1024;
/// Longest sleep of a wait that can be interrupted: a key press is answered within this time, and
/// twenty wake-ups a second cost nothing that shows.
pub const INTERRUPT_SLICE: Duration = Duration::from_millis(50);
/// Longest polling before a wait of the library blocks: what a blocking wake-up costs on a virtual
/// machine, so polling at most doubles a wait.
pub const POLL_MAX_NS: u64 = 50_000;
/// Shortest polling after many waits in vain: a turn or two.
pub const POLL_MIN_NS: u64 = 1_000;
/// Polling of one wait in [`TIMED_SLEEPS_BEFORE_POLL`] with timed sleeps: as long as such a sleep
/// of the other side takes, and an answer.
pub const POLL_LONG_NS: u64 = 150_000;
/// See [`POLL_LONG_NS`].
pub const TIMED_SLEEPS_BEFORE_POLL: u32 = 16;
/// First timed sleep of a wait for what nobody announces (room in the command ring), or only the
/// node does, after short data (a word in memory).
pub const TIMED_SLEEP_MIN: Duration = Duration::from_micros(50);
/// Longest such sleep: 1,000 wake-ups a second cost one percent of a core.
pub const TIMED_SLEEP_MAX: Duration = Duration::from_millis(1);
/// The sleeps of such a wait.
#[cfg(not(loom))]
pub const TIMED_SLEEPS: TimedSleeps =
    TimedSleeps::new(TIMED_SLEEP_MIN.as_nanos() as u64, TIMED_SLEEP_MAX.as_nanos() as u64);
/// What a blocking wake-up costs on a virtual machine.
pub const WAKE_NS: u64 = 50_000;
/// A yield that took longer than this gave the core to a busy third party.
pub const YIELD_LONG_NS: u64 = 100_000;
/// What a long yield counts; a short one counts 1 against it.
pub const LONG_YIELD_SCORE: u32 = 16;
/// A long yield at this score is one too many.
pub const YIELD_SCORE_MAX: u32 = 32;
/// Waits that then do not yield.
pub const NO_YIELD_WAITS: u32 = 64;
/// The same at most, where their number grows.
pub const NO_YIELD_WAITS_MAX: u32 = 1 << 16;
/// Polls of the library between two yields: the loads of a few rings each, or the look of an
/// endpoint, of up to 0.1 us. Where four parties share two cores, more keep the core from a node
/// that needs it for the answer, and fewer give it to nodes that only poll.
pub const POLLS_A_YIELD: u32 = 12;
/// Steps of a node in this process between two readings of the clock, which takes a good part of a
/// step that finds nothing.
pub const STEPS_A_CLOCK: u32 = 8;
/// The same where other threads poll the node too: one with a look at all that a step does, and one
/// at what comes, for the yield behind them costs as much.
pub const STEPS_BESIDE_OTHERS: u32 = 2;
/// Turns in which a node in this process had work, between two looks at the deadline of the wait.
/// Whoever sends to it can give it work without end.
pub const TURNS_WITH_WORK_A_CLOCK: u32 = 16;
/// Turns of [`STEPS_A_CLOCK`] steps before a wait is set up that can also sleep: some 6 us, which a
/// short answer from another core takes. More keep the core from those who share it.
pub const QUICK_TURNS: u32 = 3;
/// A wait that may take no longer than this has a deadline to check, and no such turns.
pub const QUICK_WAIT_MIN: Duration = Duration::from_micros(100);
/// Time without work after which a node sleeps, ns: polling costs its core, sleeping costs the next
/// message a wake-up of about as long.
pub const NODE_POLL_NS: u64 = 80_000;
/// Longest polling of a ring of a stream, ns. Between cores nothing was gained beyond 5 us, and a
/// wake-up of a sleeper costs more than 20 us here.
pub const RING_POLL_NS: u64 = 20_000;
/// Polls of a ring between two readings of the clock: a load each.
pub const RING_POLLS_A_CLOCK: u32 = 32;
/// Waits for a stream that poll in vain, in a row, before some sleep at once: a peer that computes
/// between requests does not cost the time that it computes.
pub const VAIN_WAITS: u32 = 4;
/// Waits that then sleep at once.
pub const SKIPPED_WAITS: u32 = 48;
/// The same at most for receives in the kernel, where their number grows: each poll is a system
/// call.
pub const KERNEL_SKIPPED_WAITS_MAX: u32 = 1 << 14;

/// Waits of the library for its node or a peer.
#[cfg(not(loom))]
pub const LIBRARY_WAITS: BackoffLimits = BackoffLimits {
    polls_a_yield: POLLS_A_YIELD,
    polls_a_clock: POLLS_A_YIELD,
    poll_min_ns: POLL_MIN_NS,
    poll_max_ns: POLL_MAX_NS,
    // What they wait for may be there already, so a turn or two is worth it.
    poll_suspended_ns: POLL_MIN_NS,
    wake_ns: WAKE_NS,
    long_poll: Some(LongPoll { poll_ns: POLL_LONG_NS, timed_sleeps: TIMED_SLEEPS_BEFORE_POLL }),
    // Nobody knows where the other side runs, so each wait yields, and long yields come now and
    // then without anything being wrong: it takes several.
    yields: YieldLimits {
        long_ns: YIELD_LONG_NS,
        long_score: LONG_YIELD_SCORE,
        score_max: YIELD_SCORE_MAX,
        rest: Some(RestLimits::fixed(NO_YIELD_WAITS)),
    },
    // Their polling shrinks instead: waits for a node are short or long by what is asked, and not
    // by who answers.
    skips: None,
};

/// Waits on a node in this process, whose threads step it; a poll is a turn of
/// [`STEPS_A_CLOCK`] steps. They poll for the same time always, for a step is work for others too,
/// and yield after each turn: where nobody wants the core that is little beside so many steps.
#[cfg(not(loom))]
pub const STEPPED_WAITS: BackoffLimits = BackoffLimits {
    polls_a_yield: 0,
    polls_a_clock: 0,
    poll_min_ns: POLL_MAX_NS,
    wake_ns: 0,
    long_poll: None,
    ..LIBRARY_WAITS
};

/// The same on a node whose clock moves only while its threads sleep: they sleep at once.
#[cfg(not(loom))]
pub const SIMULATED_WAITS: BackoffLimits = BackoffLimits { poll_min_ns: 0, poll_max_ns: 0, ..STEPPED_WAITS };

/// A daemon between two messages; a poll is a step. It polls for the same time always: that serves
/// the next client, of which the last one says nothing.
#[cfg(not(loom))]
pub const NODE_WAITS: BackoffLimits = BackoffLimits {
    // Four parties on two cores need the core after each step.
    polls_a_yield: 0,
    poll_min_ns: NODE_POLL_NS,
    poll_max_ns: NODE_POLL_NS,
    // A daemon that cannot give its core away sleeps as soon as it has nothing to do.
    poll_suspended_ns: 0,
    wake_ns: 0,
    long_poll: None,
    ..LIBRARY_WAITS
};

/// Waits for a ring of a stream. The peer says where it runs: on another core they spin, on this
/// one they do nothing but yield.
#[cfg(not(loom))]
pub const RING_WAITS: BackoffLimits = BackoffLimits {
    polls_a_yield: 0,
    polls_a_clock: RING_POLLS_A_CLOCK,
    poll_min_ns: RING_POLL_NS,
    poll_max_ns: RING_POLL_NS,
    poll_suspended_ns: 0,
    wake_ns: 0,
    long_poll: None,
    // Only what shares this core can make a yield long, and it stays: the first long yield counts,
    // and each further one for longer. One good yield in hundreds does not prove that it has gone.
    yields: YieldLimits {
        long_ns: YIELD_LONG_NS,
        long_score: 0,
        score_max: 0,
        rest: Some(RestLimits { first: NO_YIELD_WAITS, max: NO_YIELD_WAITS_MAX, forgiven_part: u32::MAX }),
    },
    skips: Some(SkipLimits { vain_waits: VAIN_WAITS, rest: RestLimits::fixed(SKIPPED_WAITS) }),
};

/// Waits for a stream in the kernel, for what comes from another node. A poll is a system call, so
/// they yield before each, a long yield ends them, and the waits that are skipped grow.
#[cfg(not(loom))]
pub const KERNEL_WAITS: BackoffLimits = BackoffLimits {
    yields: YieldLimits { rest: None, ..RING_WAITS.yields },
    skips: Some(SkipLimits {
        vain_waits: VAIN_WAITS,
        rest: RestLimits { first: SKIPPED_WAITS, max: KERNEL_SKIPPED_WAITS_MAX, forgiven_part: 64 },
    }),
    ..RING_WAITS
};

/// Slots of the notification ring between two processes of one node.
pub const PAIR_SLOTS: usize = 128;
/// Lanes (hazard words) of a process: threads that can be inside a mapped transfer at one time
/// without sharing a lane.
pub const LANES: usize = 256;
/// Meters of a process: one for each lane, and 1024 for pairs of a lane and an import (64 KiB).
/// What finds none free is counted for its lane only.
pub const METERS: usize = LANES + 1024;
/// Times that meters are read again because an import was given back meanwhile.
pub const METER_READS_MAX: u32 = 4;
/// Exports of one process. Each has one gate word.
pub const EXPORTS_PER_PROCESS_MAX: usize = 4096;
/// Regions of one process that the node maps.
pub const REGIONS_PER_PROCESS_MAX: usize = 8192;
/// Largest control message, bytes. Larger ones are refused by the sender. Bounded so that a
/// seqpacket always fits the socket buffer.
pub const CONTROL_BYTES_MAX: usize = 64 << 10;
/// File descriptors that accompany one control message.
pub const CONTROL_FDS_MAX: usize = 8;
/// Connections that wait until a node takes them: all processes that a node serves may come at
/// once, while it is off its core. The kernel may let fewer wait.
pub const CONTROL_BACKLOG: i32 = 4_096;
/// Time for which a connection is tried again while too many wait already.
pub const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Time between two tries.
pub const CONNECT_NAP: Duration = Duration::from_millis(1);
/// Largest region, bytes: 64 TiB, far below the address space and above any machine's memory.
pub const REGION_BYTES_MAX: u64 = 1 << 46;
/// Largest reservation of addresses, bytes: 16 TiB, an eighth of what a program has on x86-64, so
/// that several fit beside each other.
pub const RESERVATION_BYTES_MAX: u64 = 1 << 44;
/// How long the child of a fork waits for a lock that it has inherited: a thread of the parent may
/// have held it, and nobody gives it back then. Threads of the child hold it for microseconds.
pub const INHERITED_LOCK_WAIT: Duration = Duration::from_millis(100);
/// Ranges of one reservation that differ from their neighbours. With a gap between any two they are
/// 49,153 mappings, three quarters of the 65,530 that Linux allows a process.
pub const RESERVATION_RANGES_MAX: usize = 24_576;
/// Ranges of a process whose page faults have owners: a fault checks each of them. A model
/// registers a few large ones.
pub const FAULT_RANGES_MAX: usize = 256;
/// Threads of a process that wait for answers to page faults at one time; others poll again for
/// room until their deadline. Of windows, faults that were read: others wait in the kernel, and
/// their time begins when they are read.
pub const FAULTS_WAITING_MAX: usize = 256;
/// Longest wait for the answer to a page fault, unless the range says otherwise: what a fetch from
/// another machine takes while that is brought back to life.
pub const FAULT_ANSWER_TIME: Duration = Duration::from_secs(60);
/// Time between two checks of the deadlines of faults in windows: an answer is late by so much at
/// most, and a hundred wake-ups a second cost half a percent of a core, while there are faults.
pub const FAULT_TICK: Duration = Duration::from_millis(10);
/// How far the time of the kernel's last tick lies back at most, with 100 ticks a second.
pub const COARSE_TICK_MAX: Duration = Duration::from_millis(10);
/// Deadlines that may come this little late, a hundredth, are counted from the last tick.
pub const COARSE_FROM: Duration = Duration::from_secs(1);
/// Checks that find no new fault before they rest: the first fault after a rest pays a wake-up of
/// the thread that checks.
pub const FAULT_QUIET_TICKS: u32 = 10;
/// Faults of windows that are read at a time: one message of 32 bytes each.
pub const FAULT_BATCH: usize = 16;
/// Tries of one page of a window that the kernel puts off, with a yield between any two: it does so
/// while another thread changes the page tables there, for microseconds.
pub const WINDOW_TRIES_MAX: u32 = 10_000;
/// Bytes of memory that must remain available after an export reserved its own, so that a large
/// export does not push the machine into its out-of-memory killer.
pub const MEMORY_RESERVE_BYTES: u64 = 64 << 20;
/// Bytes of a region that are unmapped at a time: a fraction of a millisecond, in which other
/// threads can map nothing.
pub const UNMAP_BYTES_MAX: usize = 32 << 20;
/// Copies of at least this size use non-temporal stores where the processor has them: below it the
/// cache serves the receiver. See `vmmc bench bandwidth`, which prints both sides of it.
pub const NON_TEMPORAL_BYTES_MIN: usize = 8 << 20;
/// Least bytes of a copy by which stores past the cache are tried: shorter ones are over before a
/// clock sees much of them.
pub const STORE_TRIAL_BYTES_MIN: u64 = 4 << 10;
/// Copies of at least that size before the first trial: by then a ring has been used once, so that
/// no page fault is timed.
pub const STORES_BEFORE_TRIAL: u32 = 64;
/// Copies between two trials: some milliseconds of a stream, and a trial the wrong way costs less
/// than one in a hundred.
pub const STORE_TRIAL_EVERY: u32 = 512;
/// The same after trials that found ordinary stores good again and again.
pub const STORE_TRIAL_EVERY_MAX: u32 = 1_024;
/// Least bytes of a copy that goes past the cache.
pub const STORES_PAST_CACHE_BYTES_MIN: u64 = 2 << 10;
/// What a reader waits longer for the first bytes if they lie in memory and in no cache; more of
/// them are fetched ahead.
pub const UNCACHED_READ_NS: u64 = 300;
/// Largest UDP payload.
pub const UDP_DATAGRAM_BYTES_MAX: usize = 65_507;
/// Datagrams that one send with segmentation offload may carry: the bound of older kernels.
pub const UDP_SEGMENTS_MAX: usize = 64;
/// Pages of which one datagram holds references: a packet buffer of the kernel has room for 17
/// pieces, two of which are for what stands before and behind them. A pipe holds 16 unless it is
/// made larger.
pub const SPLICED_PAGES_MAX: usize = 15;
/// Datagrams of which the pages are taken with one call, at most: the first of them waits for all,
/// a microsecond for each on an AMD EPYC, and of more the calls saved are few.
pub const SPLICED_AHEAD_MAX: usize = 4;
/// Size of a pipe for pages, bytes, which holds as many pages. Linux lets everybody have 1 MiB
/// (`fs.pipe-max-size`).
pub const PAGE_PIPE_BYTES: usize = 256 << 10;
/// Failures in a row after which no more pages are handed over by reference.
pub const SPLICE_FAILURES_MAX: u32 = 8;
/// Changes of pinned mappings that are remembered between two reads: a process has at most 65,530
/// mappings. Should more change, all pins are forgotten.
pub const WATCH_EVENTS_MAX: usize = 65_536;
/// Longest wait for another thread's munmap of pinned memory to come to its end. It needs one
/// wake-up of our thread.
pub const WATCH_DRAIN_TIME: Duration = Duration::from_secs(2);
/// Longest wait of `fork` for the child's copies of pinned pages: some gigabytes. A child that is
/// killed meanwhile ends it at once.
pub const FORK_COPY_TIME: Duration = Duration::from_secs(10);
/// Pages of the first arena for pinned pages; the next ones double.
pub const ARENA_PAGES_FIRST: u32 = 64;
/// Pages of the largest arena: making it costs about a millisecond, once for 4 MiB of pinned
/// memory.
pub const ARENA_PAGES_MAX: u32 = 1024;
/// Largest mapping without rights that is taken for the guard below a thread's stack. The unused
/// part of an allocator's arena is larger most of the time; where it is not, memory above it is
/// copied instead of pinned.
pub const GUARD_BYTES_MAX: usize = 1 << 20;
/// Entries of a process's table of translations by index: 256 MiB of memory, in a table of half a
/// MiB if all are used.
pub const INDICES_MAX: u32 = 65_536;
