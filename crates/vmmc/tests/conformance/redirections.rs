//! Transfer redirection with its three timings.

use crate::nodes::{Joined, Nodes, Place, SHORT, content, join, join_with, pattern};
use vmmc::{Buffer, ErrorKind, Kind, RedirectError, Redirection};

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
    let error = j.export.redirect(0..100, &buffer, 0).err();
    let why = |error| matches!(error, vmmc_nic::RedirectError::NotRedirectable { .. });
    assert!(matches!(error, Some(RedirectError::Refused { error, .. }) if why(error)));
    assert!(matches!(j.export.redirect(0..5000, &buffer, 0), Err(RedirectError::Access(_))));
    assert!(matches!(j.export.redirect(0..100, &buffer, 4000), Err(RedirectError::Access(_))));
    let foreign = j.user.buffer(4096).unwrap();
    assert!(matches!(j.export.redirect(0..100, &foreign, 0), Err(RedirectError::ForeignBuffer)));
    let (r, buffer) = redirectable(nodes, Place::Engine);
    let max = r.owner.limits().redirections;
    assert!(!r.import.explain().to_string().is_empty() && max > 0);
    drop(buffer);
}

/// Buffers of so many bytes, one behind the other, posted without a wait.
fn post_row(j: &Joined, buffer: &Buffer, each: u64, count: u64) -> Vec<Redirection> {
    let post = |at: u64| j.export.post_redirect(at..at + each, buffer, at).unwrap();
    (0..count).map(|number| post(number * each)).collect()
}

pub(crate) fn thousands_are_posted_ahead_and_each_is_told(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let (j, buffer) = redirectable(nodes, place);
        // As many as an export takes, filled by one send; then some at a time by many.
        let posted = post_row(&j, &buffer, 16, 4096);
        let error = j.export.redirect(0..16, &buffer, 0).err().expect("one too many");
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        let data = pattern(64 << 10, 8);
        j.import.send(0, &data).unwrap();
        for (number, redirection) in posted.iter().enumerate() {
            let report = redirection.wait().unwrap();
            assert_eq!(report.redirected, [(16 * number as u64, 16)], "{place:?}");
        }
        assert!(bytes(&buffer, 0, 64 << 10) == data, "{place:?}");
        drop(posted);
        let posted = post_row(&j, &buffer, 64, 1024);
        let data = pattern(64 << 10, 9);
        for (number, piece) in data.chunks(100).enumerate() {
            j.import.send(100 * number as u64, piece).unwrap();
        }
        for redirection in posted.iter().rev() {
            assert!(redirection.wait().unwrap().copied.is_empty() && redirection.is_over());
        }
        assert!(bytes(&buffer, 0, 64 << 10) == data, "{place:?}");
        assert!(content(&j.export).iter().all(|b| *b == 0), "{place:?}: the default buffer stays untouched");
    }
}

pub(crate) fn what_posting_went_wrong_with_is_told_by_the_wait(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let (j, buffer) = redirectable(nodes, place);
        let first = j.export.post_redirect(100..200, &buffer, 0).unwrap();
        let second = j.export.post_redirect(199..300, &buffer, 200).unwrap();
        for error in [second.wait().unwrap_err(), second.report().unwrap_err()] {
            let other = vmmc_nic::RedirectError::Overlap { start: 100, end: 200 };
            assert!(matches!(error, RedirectError::Refused { error, offset: 199, len: 101, .. } if error == other));
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        }
        assert!(second.is_over() && second.cancel().is_err());
        assert_eq!(first.report().unwrap().pending, [(100, 100)], "{place:?}");
        j.import.send(100, &[1; 100]).unwrap();
        assert_eq!(first.wait().unwrap().redirected, [(100, 100)], "{place:?}");
    }
}

pub(crate) fn dropped_before_the_answer_they_leave_nothing_behind(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let (j, buffer) = redirectable(nodes, place);
        for round in 0..3 {
            drop(post_row(&j, &buffer, 64, 600));
            drop(j.export.post_redirect(0..64 << 10, &buffer, 0).unwrap());
            let data = pattern(64 << 10, round);
            j.import.send(0, &data).unwrap();
            j.import.flush().unwrap();
            assert!(content(&j.export) == data, "{place:?}: dropping cancels");
            assert!(bytes(&buffer, 0, 64 << 10).iter().all(|b| *b == 0), "{place:?}");
            j.export.consume(0..64 << 10).unwrap();
        }
    }
}

pub(crate) fn they_end_with_their_export(nodes: &dyn Nodes) {
    for place in Place::THROUGH_ENGINES {
        let Joined { owner, user, export, import } = redirectable(nodes, place).0;
        let buffer = owner.buffer(64 << 10).unwrap();
        let early = export.redirect(0..100, &buffer, 0).unwrap();
        let late = export.post_redirect(100..200, &buffer, 100).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| early.wait());
            std::thread::sleep(SHORT);
            export.unexport().unwrap();
            let ended = waiting.join().unwrap().unwrap_err();
            assert!(matches!(ended, RedirectError::ExportEnded { .. }), "{ended}");
        });
        assert!(matches!(late.report(), Err(RedirectError::ExportEnded { .. })), "{place:?}");
        assert!(matches!(late.cancel(), Err(RedirectError::ExportEnded { .. })), "{place:?}");
        drop((import, user));
    }
}

pub(crate) fn when_the_node_ends_they_end(nodes: &dyn Nodes) {
    let (j, buffer) = redirectable(nodes, Place::Engine);
    let posted = post_row(&j, &buffer, 64, 300);
    if !nodes.stop(0) {
        return;
    }
    crate::nodes::eventually("the session being told", || !j.owner.is_alive());
    assert_eq!(posted[0].wait().unwrap_err().kind(), ErrorKind::NodeGone);
    assert_eq!(posted[1].report().unwrap_err().kind(), ErrorKind::NodeGone);
    let error = j.export.post_redirect(0..10, &buffer, 0).err().expect("nobody takes it");
    assert_eq!(error.kind(), ErrorKind::NodeGone);
}
