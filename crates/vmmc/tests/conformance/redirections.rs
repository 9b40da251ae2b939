//! Transfer redirection with its three timings.

use crate::nodes::{Joined, Nodes, Place, SHORT, content, join, join_with, pattern};
use vmmc::{Buffer, RedirectError};

fn redirectable(nodes: &dyn Nodes, place: Place) -> (Joined, Buffer) {
    let j = join_with(nodes, place, 64 << 10, |e| e.redirectable(true));
    let buffer = j.owner.buffer(64 << 10).unwrap();
    (j, buffer)
}

fn bytes(buffer: &Buffer, from: usize, len: usize) -> Vec<u8> {
    let mut got = vec![0; len];
    buffer.read(from as u64, &mut got).unwrap();
    got
}

pub(crate) fn before_arrival_nothing_is_copied(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let (j, buffer) = redirectable(nodes, place);
        let redirection = j.export.redirect(1000..31_000, &buffer, 5).unwrap();
        assert_eq!(redirection.report().unwrap().pending, [(1000, 30_000)]);
        let data = pattern(30_000, 1);
        j.import.send(1000, &data).unwrap();
        let report = redirection.wait().unwrap();
        assert_eq!((&report.copied[..], &report.redirected[..]), (&[][..], &[(1000, 30_000)][..]), "{place:?}");
        assert!(bytes(&buffer, 5, 30_000) == data, "{place:?}");
        assert!(content(&j.export).iter().all(|b| *b == 0), "{place:?}: the default buffer stays untouched");
    }
}

pub(crate) fn after_arrival_all_is_copied(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let (j, buffer) = redirectable(nodes, place);
        let data = pattern(5000, 2);
        j.import.send(100, &data).unwrap();
        j.import.flush().unwrap();
        let report = j.export.redirect(100..5100, &buffer, 0).unwrap().wait().unwrap();
        assert_eq!((&report.copied[..], &report.redirected[..]), (&[(100, 5000)][..], &[][..]), "{place:?}");
        assert!(bytes(&buffer, 0, 5000) == data, "{place:?}");
    }
}

pub(crate) fn after_much_has_arrived_all_of_it_is_copied(nodes: &dyn Nodes) {
    const LEN: usize = 5 << 20;
    for place in Place::THROUGH_ENGINES {
        let j = join_with(nodes, place, LEN as u64, |e| e.redirectable(true));
        let buffer = j.owner.buffer(LEN as u64).unwrap();
        let data = pattern(LEN - 1000, 7);
        j.import.send(0, &data).unwrap();
        j.import.flush().unwrap();
        let redirection = j.export.redirect(0..LEN as u64, &buffer, 0).unwrap();
        j.import.send(LEN as u64 - 1000, &[9; 1000]).unwrap();
        let report = redirection.wait().unwrap();
        let expected = (&[(0, LEN as u64 - 1000)][..], &[(LEN as u64 - 1000, 1000)][..]);
        assert_eq!((&report.copied[..], &report.redirected[..]), expected, "{place:?}");
        assert!(bytes(&buffer, 0, LEN - 1000) == data && bytes(&buffer, LEN - 1000, 1000) == [9; 1000], "{place:?}");
    }
}

pub(crate) fn in_the_middle_the_report_tells_the_parts(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let (j, buffer) = redirectable(nodes, place);
        let data = pattern(10_000, 3);
        j.import.send(0, &data[..4000]).unwrap();
        j.import.flush().unwrap();
        let redirection = j.export.redirect(0..10_000, &buffer, 0).unwrap();
        let early = redirection.report().unwrap();
        assert_eq!((&early.copied[..], &early.pending[..]), (&[(0, 4000)][..], &[(4000, 6000)][..]), "{place:?}");
        let late = redirection.wait_by(j.owner.deadline(SHORT)).unwrap_err();
        assert!(matches!(late, RedirectError::TimedOut { pending: 6000, .. }), "{late}");
        j.import.send(4000, &data[4000..]).unwrap();
        let report = redirection.wait().unwrap();
        assert_eq!((&report.copied[..], &report.redirected[..]), (&[(0, 4000)][..], &[(4000, 6000)][..]), "{place:?}");
        assert!(bytes(&buffer, 0, 10_000) == data, "{place:?}");
    }
}

pub(crate) fn a_cancelled_one_lets_data_go_to_the_export(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let (j, buffer) = redirectable(nodes, place);
        let data = pattern(3000, 4);
        let redirection = j.export.redirect(0..3000, &buffer, 0).unwrap();
        j.import.send(0, &data[..1000]).unwrap();
        j.import.flush().unwrap();
        let report = redirection.cancel().unwrap();
        assert_eq!((&report.redirected[..], &report.pending[..]), (&[(0, 1000)][..], &[(1000, 2000)][..]), "{place:?}");
        j.import.send(1000, &data[1000..]).unwrap();
        j.import.flush().unwrap();
        assert!(bytes(&buffer, 0, 1000) == data[..1000] && content(&j.export)[1000..3000] == data[1000..]);
        drop(j.export.redirect(5000..6000, &buffer, 0).unwrap());
        j.import.send(5000, &data[..1000]).unwrap();
        j.import.flush().unwrap();
        assert!(content(&j.export)[5000..6000] == data[..1000], "{place:?}: dropping cancels");
    }
}

pub(crate) fn consumed_data_counts_as_not_arrived(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let (j, buffer) = redirectable(nodes, place);
        j.import.send(0, &pattern(1000, 5)).unwrap();
        j.import.flush().unwrap();
        j.export.consume(0..1000).unwrap();
        let redirection = j.export.redirect(0..1000, &buffer, 0).unwrap();
        assert_eq!(redirection.report().unwrap().pending, [(0, 1000)], "{place:?}");
        let new = pattern(1000, 6);
        j.import.send(0, &new).unwrap();
        assert_eq!(redirection.wait().unwrap().redirected, [(0, 1000)], "{place:?}");
        assert!(bytes(&buffer, 0, 1000) == new);
    }
}

pub(crate) fn only_redirectable_exports_take_them(nodes: &dyn Nodes) {
    let j = join(nodes, Place::Mapped, 4096);
    let buffer = j.owner.buffer(4096).unwrap();
    assert!(matches!(j.export.redirect(0..100, &buffer, 0), Err(RedirectError::Call { .. })));
    assert!(matches!(j.export.redirect(0..5000, &buffer, 0), Err(RedirectError::Access(_))));
    assert!(matches!(j.export.redirect(0..100, &buffer, 4000), Err(RedirectError::Access(_))));
    let foreign = j.user.buffer(4096).unwrap();
    assert!(matches!(j.export.redirect(0..100, &foreign, 0), Err(RedirectError::ForeignBuffer)));
    let (r, buffer) = redirectable(nodes, Place::Engine);
    let max = r.owner.limits().redirections;
    assert!(!r.import.explain().to_string().is_empty() && max > 0);
    drop(buffer);
}
