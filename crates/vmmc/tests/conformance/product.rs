//! The whole product: every source by every way of sending with every option, and every target by
//! every way of fetching, on every path. A kind of source or target that is missing here is named
//! in no test, so add it to [`Bed::each_source`], [`Bed::each_target`] or [`Bed::each_posted`].

use crate::nodes::{Joined, Nodes, Place, content, join_with, pattern};
use crate::pinning::{PAGE, always, pins};
use std::sync::atomic::Ordering;
use vmmc::{AnySource, AnyTarget, Buffer, Gather, Pinned, PinnedTable, Scatter, SendOptions, Source, TransferError};

/// Where transfers begin; before it is the counter.
const AT: u64 = 24;
/// Nothing, in a descriptor, in staging memory, whole pages, pages with ragged ends: first byte and
/// bytes of memory that begins on a page.
const RANGES: [(usize, usize); 6] = [(3, 0), (1, 5), (0, 200), (5, 3000), (0, 9 * PAGE), (100, 50_001)];
/// Bytes of the memory that they are of.
const MEMORY: usize = 16 * PAGE;

/// What a test of all kinds needs of each: an import, memory, and the same memory registered and in
/// a table.
struct Bed<'m> {
    j: Joined,
    memory: &'m [u8],
    buffer: Buffer,
    table: Option<PinnedTable<'m>>,
    place: Place,
}

/// What is done with each source.
trait Do {
    fn with<'a>(&mut self, name: &str, source: impl Source<'a>);
}

impl<'m> Bed<'m> {
    fn new(nodes: &dyn Nodes, place: Place, memory: &'m [u8]) -> Bed<'m> {
        let j = join_with(nodes, place, MEMORY as u64 + 2 * PAGE as u64, |e| e.notify(true));
        j.user.set_pinning(always());
        let buffer = j.user.buffer(memory.len() as u64).unwrap();
        buffer.write(0, memory).unwrap();
        let table = pins(&j.user).then(|| {
            let mut table = j.user.pinned_table((memory.len() / PAGE) as u32).unwrap();
            table.place(0, j.user.lend(memory)).unwrap();
            table
        });
        Bed { j, memory, buffer, table, place }
    }

    /// Every kind of source, of the same bytes.
    fn each_source(&self, (from, len): (usize, usize), check: &mut impl Do) {
        let bytes = &self.memory[from..from + len];
        let (start, middle, end) = (from, from + len / 3, from + len);
        let registered = |a: usize, b: usize| self.buffer.range(a as u64..b as u64);
        let lent = self.j.user.lend(self.memory);
        check.with("slice", bytes);
        check.with("vector", &bytes.to_vec());
        check.with("buffer", registered(start, end));
        check.with("pinned", Pinned(bytes));
        check.with("lent", self.j.user.lend(bytes));
        check.with("range of lent", lent.range(start..end));
        check.with("pieces", Gather(&[&bytes[..len / 3], &[], &bytes[len / 3..]]));
        check.with("pieces of a buffer", Gather(&[registered(start, middle), registered(middle, end)]));
        check.with("pinned pieces", Gather(&[Pinned(&bytes[..len / 3]), Pinned(&bytes[len / 3..])]));
        check.with("lent pieces", Gather(&[lent.range(start..middle), lent.range(middle..end)]));
        check.with("lent pieces, nothing last", Gather(&[lent.range(start..end), lent.range(end..end)]));
        let nested = [Gather(&[lent.range(start..middle)]), Gather(&[lent.range(middle..end)])];
        check.with("lent pieces of pieces", Gather(&nested));
        check.with("pieces of pieces", Gather(&[Gather(&[&bytes[..len / 3], &bytes[len / 3..]])]));
        let any = |kind: usize, a: usize, b: usize| match kind {
            0 => AnySource::Bytes(&self.memory[a..b]),
            1 => AnySource::Buffer(self.buffer.clone(), a as u64..b as u64),
            2 => AnySource::Pinned(&self.memory[a..b]),
            _ => AnySource::Lent(lent.range(a..b)),
        };
        for kind in 0..4 {
            check.with(&format!("any, {kind}"), any(kind, start, end));
            let pieces = [any(kind, start, middle), any((kind + 1) % 4, middle, end)];
            check.with(&format!("any pieces, {kind}"), Gather(&pieces));
        }
        let Some(table) = &self.table else { return };
        // Counted from the entry that they begin in.
        let indexed = |a: usize, b: usize| table.range((a / PAGE) as u32, a % PAGE..a % PAGE + (b - a));
        check.with("indexed", indexed(start, end));
        check.with("indexed pieces", Gather(&[indexed(start, middle), indexed(middle, end)]));
        // What carries the options comes last, even if it has no bytes.
        check.with("indexed, nothing last", Gather(&[indexed(start, end), indexed(end, end)]));
        check.with("any, indexed", AnySource::Indexed(indexed(start, end)));
        check.with("any pieces, indexed", Gather(&[AnySource::Indexed(indexed(start, middle)), any(1, middle, end)]));
    }

    /// Fetches as many bytes into every kind of target.
    fn each_target(&self, len: usize, check: &mut dyn FnMut(&str, &[u8])) {
        let import = &self.j.import;
        let mut bytes = vec![0; len];
        import.fetch(AT, &mut bytes[..]).unwrap();
        check("slice", &bytes);
        let mut vector = vec![0; len];
        import.fetch(AT, &mut vector).unwrap();
        check("vector", &vector);
        import.fetch(AT, self.taken(len)).unwrap();
        check("buffer", &self.read(len));
        let mut pinned = vec![0; len];
        import.fetch(AT, Pinned(&mut pinned)).unwrap();
        check("pinned", &pinned);
        let mut pieces = vec![0; len];
        let (one, two) = pieces.split_at_mut(len / 3);
        import.fetch(AT, Scatter(&mut [one, &mut [], two])).unwrap();
        check("pieces", &pieces);
        let mut pieces = vec![0; len];
        let (one, two) = pieces.split_at_mut(len / 3);
        import.fetch(AT, Scatter(&mut [Pinned(one), Pinned(two)])).unwrap();
        check("pinned pieces", &pieces);
        let (first, last) = (self.buffer.range(0..len as u64 / 3), self.buffer.range(len as u64 / 3..len as u64));
        self.taken(len);
        import.fetch(AT, Scatter(&mut [first, last])).unwrap();
        check("pieces of a buffer", &self.read(len));
        let (mut one, mut two) = (vec![0; len / 3], vec![0; len - len / 3]);
        for pinned in [false, true] {
            let any = |bytes| if pinned { AnyTarget::Pinned(bytes) } else { AnyTarget::Bytes(bytes) };
            import.fetch(AT, Scatter(&mut [any(&mut one), any(&mut two)])).unwrap();
            check("any pieces", &[&one[..], &two].concat());
        }
        self.taken(len);
        import.fetch(AT, AnyTarget::Buffer(self.buffer.clone(), 0..len as u64)).unwrap();
        check("any, buffer", &self.read(len));
    }

    /// Posts a fetch into every kind of target that can be posted.
    fn each_posted(&self, len: usize, check: &mut dyn FnMut(&str, &[u8])) {
        let (import, third) = (&self.j.import, len / 3);
        let bytes = |n: usize| vec![0; n];
        let fixed = |n: usize| &mut *bytes(n).leak();
        let done = |mut transfer: vmmc::Transfer<'static, Vec<u8>>| {
            assert_eq!(transfer.wait(), Ok(len as u64));
            transfer.into_inner()
        };
        check("vector", &done(import.post_fetch(AT, bytes(len)).unwrap()));
        check("pinned vector", &done(import.post_fetch(AT, Pinned(bytes(len))).unwrap()));
        for pinned in [false, true] {
            let mut transfer = match pinned {
                false => import.post_fetch(AT, fixed(len)).unwrap(),
                true => import.post_fetch(AT, Pinned(fixed(len))).unwrap(),
            };
            assert_eq!(transfer.wait(), Ok(len as u64));
            check("memory for good", transfer.into_inner());
        }
        let mut transfer = import.post_fetch(AT, self.taken(len)).unwrap();
        assert_eq!(transfer.wait(), Ok(len as u64));
        transfer.into_inner();
        check("buffer", &self.read(len));
        let mut transfer = import.post_fetch(AT, vec![bytes(third), bytes(0), bytes(len - third)]).unwrap();
        assert_eq!(transfer.wait(), Ok(len as u64));
        check("pieces", &transfer.into_inner().concat());
        let mut transfer = import.post_fetch(AT, vec![Pinned(bytes(third)), Pinned(bytes(len - third))]).unwrap();
        assert_eq!(transfer.wait(), Ok(len as u64));
        check("pinned pieces", &transfer.into_inner().concat());
        self.taken(len);
        let pieces = vec![self.buffer.range(0..third as u64), self.buffer.range(third as u64..len as u64)];
        let mut transfer = import.post_fetch(AT, pieces).unwrap();
        assert_eq!(transfer.wait(), Ok(len as u64));
        check("pieces of a buffer", &self.read(len));
        let none = AnyTarget::Buffer(self.buffer.clone(), 0..0);
        let any = vec![AnyTarget::Bytes(fixed(third)), none, AnyTarget::Pinned(fixed(len - third))];
        let mut transfer = import.post_fetch(AT, any).unwrap();
        assert_eq!(transfer.wait(), Ok(len as u64));
        check("any pieces", &transfer.into_inner().concat());
    }

    /// The start of the buffer, emptied.
    fn taken(&self, len: usize) -> vmmc::BufferRange<'_> {
        self.buffer.write(0, &vec![0; MEMORY]).unwrap();
        self.buffer.range(0..len as u64)
    }

    fn read(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(0, &mut bytes).unwrap();
        bytes
    }
}

/// Sends a source by every way with every option, and checks what comes.
struct Send<'b, 'm> {
    bed: &'b Bed<'m>,
    expected: &'b [u8],
}

impl Do for Send<'_, '_> {
    fn with<'a>(&mut self, name: &str, source: impl Source<'a>) {
        let import = &self.bed.j.import;
        self.sent(name, "send", SendOptions::default(), || import.send(AT, source.clone()));
        for options in [
            SendOptions::default(),
            SendOptions::counter(0),
            SendOptions::notify_with(77),
            SendOptions { counter: Some(0), ..SendOptions::notify_with(78) },
        ] {
            self.sent(name, "send_with", options, || import.send_with(AT, source.clone(), options));
            self.sent(name, "post_send", options, || {
                let mut transfer = import.post_send(AT, source.clone(), options)?;
                assert_eq!(transfer.wait()?, self.expected.len() as u64);
                assert_eq!(transfer.poll(), Some(Ok(self.expected.len() as u64)), "it keeps its result");
                Ok(())
            });
        }
    }
}

impl Send<'_, '_> {
    fn sent(&self, name: &str, how: &str, options: SendOptions, send: impl FnOnce() -> Result<(), TransferError>) {
        let (Joined { owner, export, import, .. }, len) = (&self.bed.j, self.expected.len());
        let what = format!("{:?}: {how} of {len} bytes, {name}, {options:?}", self.bed.place);
        let counter = export.word(0).unwrap();
        export.write(AT, &vec![0; export.len() as usize - AT as usize]).unwrap();
        counter.store(0, Ordering::Release);
        send().unwrap_or_else(|error| panic!("{what}: {error}"));
        if let Some(word) = options.notify {
            let n = export.wait_notification().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!((n.offset, n.len, n.word), (AT, len as u64, word), "{what}");
            let mut last = [0; 8];
            last[..len.min(8)].copy_from_slice(&self.expected[len - len.min(8)..]);
            assert_eq!(n.last_word.to_le_bytes(), last, "{what}");
            // By the notification alone.
            assert!(content(export)[AT as usize..AT as usize + len] == *self.expected, "{what}: notified of");
        }
        import.flush().unwrap_or_else(|error| panic!("{what}: {error}"));
        let got = content(export);
        assert!(got[AT as usize..AT as usize + len] == *self.expected, "{what}: other bytes");
        assert!(got[8..AT as usize].iter().chain(&got[AT as usize + len..]).all(|b| *b == 0), "{what}: bytes beside");
        assert_eq!(counter.load(Ordering::Acquire), u64::from(options.counter.is_some()), "{what}");
        assert_eq!(owner.take_notification(), None, "{what}: once");
    }
}

pub(crate) fn every_source_goes_by_every_way_with_every_option(nodes: &dyn Nodes) {
    let all = pattern(MEMORY + PAGE, 9);
    let memory = &all[all.as_ptr().align_offset(PAGE)..][..MEMORY];
    for place in Place::ALL {
        let bed = Bed::new(nodes, place, memory);
        for (from, len) in RANGES {
            bed.each_source((from, len), &mut Send { bed: &bed, expected: &memory[from..from + len] });
        }
    }
}

/// Sends what cannot be sent.
struct Refuse<'b, 'm> {
    bed: &'b Bed<'m>,
    offset: u64,
}

impl Do for Refuse<'_, '_> {
    fn with<'a>(&mut self, name: &str, source: impl Source<'a>) {
        let (import, offset) = (&self.bed.j.import, self.offset);
        let refused = |result: Result<(), TransferError>| {
            assert!(matches!(result, Err(TransferError::OutOfBounds { .. })), "{name}: {result:?}");
        };
        refused(import.send(offset, source.clone()));
        refused(import.send_with(offset, source.clone(), SendOptions::notify()));
        refused(import.post_send(offset, source.clone(), SendOptions::counter(0)).map(drop));
        let misaligned = import.send_with(AT, source, SendOptions::counter(3));
        assert!(matches!(misaligned, Err(TransferError::Misaligned { offset: 3, .. })), "{name}: {misaligned:?}");
    }
}

pub(crate) fn every_source_is_checked_before_a_byte_moves(nodes: &dyn Nodes) {
    let all = pattern(MEMORY + PAGE, 9);
    let memory = &all[all.as_ptr().align_offset(PAGE)..][..MEMORY];
    for place in Place::ALL {
        let bed = Bed::new(nodes, place, memory);
        bed.each_source((100, 3000), &mut Refuse { bed: &bed, offset: bed.j.export.len() - 2999 });
        bed.j.import.flush().unwrap();
        assert!(content(&bed.j.export).iter().all(|b| *b == 0), "{place:?}");
        assert_eq!(bed.j.owner.take_notification(), None, "{place:?}");
        let outside = |result: Result<(), TransferError>| {
            assert!(matches!(result, Err(TransferError::BufferOutOfBounds { .. })), "{place:?}: {result:?}");
        };
        let (import, lent, end) = (&bed.j.import, bed.j.user.lend(memory), MEMORY as u64);
        outside(import.send(0, bed.buffer.range(end - 1..end + 1)));
        outside(import.post_send(0, lent.range(MEMORY - 1..MEMORY + 1), SendOptions::notify()).map(drop));
        outside(import.send(0, Gather(&[lent.range(0..1), lent.range(MEMORY..MEMORY + 1)])));
        outside(import.fetch(0, bed.buffer.range(end - 1..end + 1)));
        outside(import.post_fetch(0, vec![bed.buffer.range(0..1), bed.buffer.range(end..end + 1)]).map(drop));
        assert!(matches!(import.post_fetch(bed.j.export.len(), vec![0]), Err(TransferError::OutOfBounds { .. })));
    }
}

pub(crate) fn every_target_is_filled_by_every_way(nodes: &dyn Nodes) {
    let all = pattern(MEMORY + PAGE, 9);
    let memory = &all[all.as_ptr().align_offset(PAGE)..][..MEMORY];
    for place in Place::ALL {
        let bed = Bed::new(nodes, place, memory);
        bed.j.export.write(AT, memory).unwrap();
        for (_, len) in RANGES {
            let mut check = |name: &str, got: &[u8]| {
                assert!(got == &memory[..len], "{place:?}: {len} bytes, {name}: other bytes");
            };
            bed.each_target(len, &mut check);
            bed.each_posted(len, &mut check);
        }
        let mut eight = [0; 8];
        bed.j.import.fetch(AT, &mut eight).unwrap();
        bed.j.import.send(AT + 1, &eight).unwrap();
        bed.j.import.fetch(AT, Pinned(&mut eight)).unwrap();
        assert_eq!(eight[1..], memory[..7], "{place:?}: arrays");
    }
}

/// One thread posts more than its import may have of staging memory, and polls none of it.
pub(crate) fn transfers_that_nobody_looks_at_do_not_stop_others(nodes: &dyn Nodes) {
    const PART: usize = 200_000;
    let memory = &pattern(12 * PART, 9)[..];
    for place in Place::ALL {
        let j = join_with(nodes, place, memory.len() as u64, |e| e);
        let sent = |index: usize| &memory[index * PART..][..PART];
        let post = |index: usize| j.import.post_send((index * PART) as u64, sent(index), SendOptions::default());
        let mut sends: Vec<_> = (0..11).map(|index| post(index).unwrap()).collect();
        j.import.flush().unwrap();
        let fetches: Vec<_> = (0..8)
            .map(|index| j.import.post_fetch((index * PART) as u64, vec![0; PART]).unwrap())
            .chain([j.import.post_fetch(0, vec![0; 8 * PART]).unwrap()])
            .collect();
        j.import.send((11 * PART) as u64, sent(11)).unwrap();
        j.import.flush().unwrap();
        let mut last = vec![0; 2 * PART];
        j.import.fetch((10 * PART) as u64, &mut last).unwrap();
        assert!(last == memory[10 * PART..], "{place:?}: fetched while others are under way");
        // The last one first.
        for (index, mut fetch) in fetches.into_iter().enumerate().rev() {
            let expected = if index == 8 { &memory[..8 * PART] } else { sent(index) };
            assert_eq!(fetch.wait(), Ok(expected.len() as u64), "{place:?}: fetch {index}");
            assert!(fetch.into_inner() == expected, "{place:?}: fetch {index}");
        }
        sends.iter_mut().rev().for_each(|send| assert_eq!(send.wait(), Ok(PART as u64), "{place:?}"));
        assert!(content(&j.export) == memory, "{place:?}");
    }
}

/// More than one command may name, and more than staging memory holds.
pub(crate) fn long_transfers_of_every_kind_arrive_whole(nodes: &dyn Nodes) {
    const LONG: usize = 1026 * PAGE;
    let all = pattern(LONG + PAGE, 9);
    let memory = &all[all.as_ptr().align_offset(PAGE)..][..LONG];
    for place in Place::ALL {
        let j = join_with(nodes, place, LONG as u64 + 64, |e| e.notify(true));
        j.user.set_pinning(always());
        let check = |what: &str, options: SendOptions| {
            let what = format!("{place:?}: {what}");
            if options.notify.is_some() {
                let n = j.export.wait_notification().unwrap();
                assert_eq!((n.offset, n.len), (AT, LONG as u64), "{what}");
            }
            j.import.flush().unwrap();
            assert!(content(&j.export)[AT as usize..AT as usize + LONG] == *memory, "{what}");
            j.export.write(0, &vec![0; LONG + 64]).unwrap();
        };
        let lent = j.user.lend(memory);
        let halves = [AnySource::Pinned(&memory[..LONG / 2]), AnySource::Bytes(&memory[LONG / 2..])];
        for options in [SendOptions::counter(0), SendOptions::notify()] {
            j.import.send_with(AT, lent, options).unwrap();
            check("lent", options);
            j.import.post_send(AT, Pinned(memory), options).unwrap().wait().unwrap();
            check("pinned", options);
            j.import.post_send(AT, Gather(&halves), options).unwrap().wait().unwrap();
            check("halves", options);
            if pins(&j.user) {
                let mut table = j.user.pinned_table((LONG / PAGE) as u32).unwrap();
                table.place(0, lent).unwrap();
                j.import.send_with(AT, table.range(0, 0..LONG), options).unwrap();
                check("indexed", options);
                j.import.post_send(AT, table.range(0, 0..LONG), options).unwrap().wait().unwrap();
                check("indexed, posted", options);
            }
        }
        j.import.send(AT, memory).unwrap();
        // More than the import may have of staging memory at a time, twice.
        let fetches = [(); 2].map(|()| j.import.post_fetch(AT, vec![0; LONG]).unwrap());
        for mut fetch in fetches {
            assert_eq!(fetch.wait(), Ok(LONG as u64), "{place:?}");
            assert!(fetch.into_inner() == memory, "{place:?}: fetched");
        }
        let given_up = j.import.post_fetch(AT, vec![vec![0; LONG]]).unwrap();
        assert_eq!(given_up.into_inner()[0].len(), LONG, "{place:?}: memory comes back in any case");
        drop(j.import.post_send(AT, lent, SendOptions::default()).unwrap());
        check("dropped, which waits for it", SendOptions::default());
    }
}
