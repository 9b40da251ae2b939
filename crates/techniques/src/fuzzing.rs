//! Doors for the fuzz target and for tests: everything that the two ends of a channel read of each
//! other.
//!
//! Invariant: whatever is written, an end refuses it or stays within the channel: a fragment goes
//! on with its message and lies in its place, a count lies between what was and what can be, a
//! frame is on a page of frames. What was refused changes nothing.

use crate::Technique;
use crate::limits::{MESSAGE_BYTES_MAX, NOTICES, POSTED_MAX};
use crate::protocol::{
    Fragment, FragmentKind, HEADER_WORDS, Incoming, Layout, NOTICE_BYTES, Outgoing, PAGE, POSTED_BYTES, Posting, words,
};

/// Small parts, so that they run full.
fn layout(technique: Technique) -> Layout {
    let exchange_from = technique.exchange_from(2 * PAGE);
    Layout { technique, window: PAGE, agreed: 2 * PAGE, pool: 6, own: 3, exchange_from }
}

/// Has bytes say what the other side writes; how many of their notices were taken.
pub fn everything(data: &[u8]) -> usize {
    header(data);
    let technique = Technique::ALL[usize::from(data.first().copied().unwrap_or(0)) % Technique::ALL.len()];
    senders(technique, data);
    receivers(technique, data)
}

fn header(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<{ HEADER_WORDS * 8 }>() else { return };
    let said: [u64; HEADER_WORDS] = words(bytes);
    for len in [said[2], layout(Technique::Auto).checked_bytes().unwrap_or(0)] {
        if let Ok(layout) = Layout::decode(said, len) {
            assert!(layout.encode() == said && layout.end_page() * PAGE == len);
        }
    }
}

/// A word that is now near what would be right, now anything.
fn word(near: u64, kind: u8, value: [u8; 8]) -> u64 {
    let value = u64::from_le_bytes(value);
    match kind % 4 {
        0 => near,
        1 => near.wrapping_add(value % 5).wrapping_sub(2),
        2 => value % (8 * PAGE),
        _ => value,
    }
}

/// Notices that a receiver reads: five words, each with a byte before it.
fn receivers(technique: Technique, data: &[u8]) -> usize {
    let layout = layout(technique);
    let mut incoming = Incoming::new(layout);
    let (mut at, mut total, mut taken) = (0, 0, 0);
    for piece in data.chunks_exact(45) {
        while incoming.posted() < incoming.number() + 2 && incoming.posting().is_some() {
            incoming.post(PAGE);
        }
        let part = |index: usize| (piece[9 * index], piece[9 * index + 1..9 * index + 9].try_into().expect("8 bytes"));
        let near = [u64::from(piece[1]) % 5 + 1, total.max(at + 1), at, 1, incoming.given_back()];
        let mut notice = [0; NOTICE_BYTES as usize];
        for (index, near) in near.into_iter().enumerate() {
            let (kind, value) = part(index);
            notice[8 * index..8 * index + 8].copy_from_slice(&word(near, kind, value).to_le_bytes());
        }
        let Ok(fragment) = Fragment::decode(&notice) else { continue };
        assert_eq!(fragment.encode(incoming.number())[..40], notice[..40]);
        let before = (incoming.number(), incoming.given_back(), incoming.is_amid());
        if incoming.check(&fragment).is_err() {
            assert_eq!(before, (incoming.number(), incoming.given_back(), incoming.is_amid()));
            continue;
        }
        let over = incoming.take(&fragment);
        taken += 1;
        assert_eq!(incoming.given_back() - before.1, fragment.frames());
        if fragment.kind == FragmentKind::Abandon {
            (at, total) = (0, 0);
            continue;
        }
        assert!(fragment.at == at && fragment.total <= MESSAGE_BYTES_MAX && at + fragment.len <= fragment.total);
        let room = match fragment.kind {
            FragmentKind::Window => layout.window,
            FragmentKind::Frames => layout.pool * PAGE,
            FragmentKind::Agreed => layout.agreed - fragment.place,
            FragmentKind::Posted | FragmentKind::Abandon => PAGE,
        };
        assert!(fragment.len <= room);
        (at, total) = if over.is_some() { (0, 0) } else { (at + fragment.len, fragment.total) };
    }
    taken
}

/// Counts, frames and postings that a sender reads.
fn senders(technique: Technique, data: &[u8]) {
    let layout = layout(technique);
    let mut outgoing = Outgoing::new(&layout);
    for piece in data.chunks_exact(27) {
        let part = |index: usize| (piece[9 * index], piece[9 * index + 1..9 * index + 9].try_into().expect("8 bytes"));
        let heard = [0, 1, 2].map(|index| {
            let (kind, value) = part(index);
            word(u64::from(piece[1]) % 4, kind, value)
        });
        let (free, next) = outgoing.frames();
        assert!(free <= layout.pool);
        if let Some(number) = outgoing.number().filter(|_| free > 0) {
            let fragment = Fragment { kind: FragmentKind::Frames, total: PAGE, at: 0, len: PAGE, place: next };
            assert_eq!(Fragment::decode(&fragment.encode(number)), Ok(fragment));
            outgoing.send(&fragment);
        }
        let before = (outgoing.number(), outgoing.frames(), outgoing.posting());
        match outgoing.hear(heard) {
            Ok(_) => assert!(outgoing.number().is_none_or(|number| number >= heard[0] && number - heard[0] < NOTICES)),
            Err(_) => assert_eq!(before, (outgoing.number(), outgoing.frames(), outgoing.posting())),
        }
        if let Some(posting) = outgoing.posting() {
            assert!(posting < heard[2].max(POSTED_MAX as u64));
        }
        let pages: Vec<u32> =
            piece.chunks_exact(4).map(|p| u32::from_le_bytes(p.try_into().expect("4 bytes"))).collect();
        if layout.check_pages(&pages).is_ok() {
            let of_channel = layout.first_page()..layout.end_page();
            assert!(pages.iter().all(|page| of_channel.contains(&u64::from(*page))));
        }
    }
    if let Some(record) = data.first_chunk::<{ POSTED_BYTES as usize }>() {
        let number = words::<4>(record)[3];
        let posting = Posting::decode(record, number).expect("it has its number");
        assert_eq!(posting.encode(number), *record);
        assert!(Posting::decode(record, number ^ 1).is_err());
    }
}
