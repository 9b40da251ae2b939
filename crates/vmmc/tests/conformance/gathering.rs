//! Gather-sends: many places, one operation, one notification.

use crate::nodes::{Nodes, Place, SHORT, content, join, join_with, pattern};
use vmmc::{SendOptions, TransferError, WaitError};

/// Pieces of `data`, one behind the other, at these places.
fn pieces<'a>(data: &'a [u8], places: &[(u64, usize)]) -> Vec<(u64, &'a [u8])> {
    let mut rest = data;
    let mut cut = |&(at, len): &(u64, usize)| {
        let (piece, after) = rest.split_at(len);
        rest = after;
        (at, piece)
    };
    places.iter().map(&mut cut).collect()
}

pub(crate) fn all_places_are_written_and_one_notification_follows(nodes: &dyn Nodes) {
    const LEN: u64 = 2 << 20;
    let short = vec![(3, 5), (100, 8), (64, 1)];
    let many: Vec<(u64, usize)> = (0..1_024).map(|at| (at * 50, 1 + at as usize % 40)).collect();
    let staged = vec![(1_000_000, 100_000), (5, 3), (0, 0), (200_000, 77)];
    // Longer than all staging memory, and the later piece wins where two overlap.
    let long = vec![(0, 900_000), (899_000, 400_000), (LEN - 8, 8)];
    for place in Place::ALL {
        let j = join_with(nodes, place, LEN, |e| e.notify(true));
        let mut wanted = vec![0; LEN as usize];
        for (round, places) in [&short, &many, &staged, &long].into_iter().enumerate() {
            let data = pattern(places.iter().map(|place| place.1).sum(), round as u8);
            let pieces = pieces(&data, places);
            for (at, piece) in &pieces {
                wanted[*at as usize..][..piece.len()].copy_from_slice(piece);
            }
            let options = SendOptions { counter: None, ..SendOptions::notify_with(round as u64) };
            if round % 2 == 0 {
                j.import.gather_send(&pieces, options).unwrap();
            } else {
                let bytes = j.import.post_gather_send(&pieces, options).unwrap().wait().unwrap();
                assert_eq!(bytes, data.len() as u64, "{place:?}");
            }
            let note = j.export.wait_notification().unwrap();
            let filled = places.iter().filter(|place| place.1 > 0);
            let first = filled.clone().map(|place| place.0).min().unwrap();
            let end = filled.map(|place| place.0 + place.1 as u64).max().unwrap();
            assert_eq!((note.offset, note.offset + note.len, note.word), (first, end, round as u64), "{place:?}");
            assert_eq!(note.from.import, j.import.id());
            assert!(content(&j.export) == wanted, "{place:?} {round}");
            assert_eq!(j.export.take_notification(), None, "{place:?}");
        }
        j.import.flush().unwrap();
    }
}

pub(crate) fn a_counter_grows_once_when_all_is_there(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 4_096);
        for round in 1..=20 {
            let data = pattern(64, round);
            j.import.gather_send(&pieces(&data, &[(512, 60), (2_048, 4)]), SendOptions::counter(8)).unwrap();
            assert_eq!(j.export.wait_word(8, |count| count == u64::from(round)).unwrap(), u64::from(round));
            let content = content(&j.export);
            assert_eq!((&content[512..572], &content[2_048..2_052]), (&data[..60], &data[60..]), "{place:?}");
        }
    }
}

pub(crate) fn a_wrong_piece_moves_and_tells_nothing(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 4_096, |e| e.notify(true));
        let data = [9; 8];
        let wrong: [&[(u64, &[u8])]; 2] = [&[(0, &data), (4_090, &data)], &[(0, &data), (u64::MAX - 3, &data)]];
        for pieces in wrong {
            let refused = j.import.gather_send(pieces, SendOptions::notify()).unwrap_err();
            assert!(matches!(refused, TransferError::OutOfBounds { .. }), "{place:?}: {refused}");
        }
        let many = vec![(0, &data[..]); 1_025];
        let refused = j.import.gather_send(&many, SendOptions::notify()).unwrap_err().to_string();
        assert!(refused.contains("1 to 1024 ranges and not 1025"), "{place:?}: {refused}");
        let late = j.export.wait_notification_by(j.owner.deadline(SHORT)).unwrap_err();
        assert!(matches!(late, WaitError::TimedOut { .. }), "{late}");
        assert!(content(&j.export).iter().all(|byte| *byte == 0), "{place:?}");
        // None at all is a notification alone.
        j.import.gather_send(&[], SendOptions::notify_with(3)).unwrap();
        assert_eq!(j.export.wait_notification().unwrap().word, 3);
    }
}
