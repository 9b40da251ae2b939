//! The end of exports.

use crate::nodes::{LONG, Nodes, Place, eventually, join, join_with};
use std::sync::atomic::{AtomicBool, Ordering};
use vmmc::{Revocation, Rights, TransferError, UnexportError};

pub(crate) fn after_unexport_no_byte_arrives_and_importers_are_told(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 4096);
        j.import.send(0, b"before").unwrap();
        j.import.flush().unwrap();
        let region = j.export.region();
        assert_eq!(j.export.unexport().unwrap(), Revocation::Gate);
        eventually("the importer being told", || j.import.broken().is_some());
        let error = j.import.send(0, b"after!").and_then(|()| j.import.flush()).unwrap_err();
        assert!(matches!(error, TransferError::Revoked { .. }), "{place:?}: {error}");
        assert!(j.import.fetch(0, &mut [0; 6]).is_err() && j.import.fetch_add(0, 1).is_err());
        let mut got = [0; 6];
        region.read(0, &mut got).unwrap();
        assert_eq!(&got, b"before", "{place:?}");
    }
}

pub(crate) fn unexport_moving_leaves_the_content(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 10_000);
        j.import.send(5000, b"kept").unwrap();
        j.import.flush().unwrap();
        let region = j.export.region();
        assert_eq!(j.export.unexport_moving().unwrap(), Revocation::Moved);
        let mut got = [0; 4];
        region.read(5000, &mut got).unwrap();
        assert_eq!(&got, b"kept", "{place:?}");
    }
}

pub(crate) fn shared_pages_are_not_moved(nodes: &dyn Nodes) {
    let owner = nodes.attach(0);
    let first = owner.export(4096).create().unwrap();
    let second = owner.export_region(first.region()).name("second").create().unwrap();
    let error = first.unexport_moving().unwrap_err();
    assert!(matches!(error, UnexportError::Shared { users: 1, .. }), "{error}");
    let import = owner.import("second").open().unwrap();
    import.send(0, b"works").unwrap();
    let mut got = [0; 5];
    second.read(0, &mut got).unwrap();
    assert_eq!(&got, b"works");
}

pub(crate) fn a_dropped_export_ends_and_its_name_is_free(nodes: &dyn Nodes) {
    let owner = nodes.attach(0);
    for i in 0..20u64 {
        let export = owner.export(4096).name("again").create().unwrap();
        let import = owner.import("again").open().unwrap();
        import.send(0, &i.to_le_bytes()).unwrap();
        import.flush().unwrap();
        assert_eq!(export.word(0).unwrap().load(Ordering::Acquire), i);
        drop(export);
        assert!(import.send(0, b"x").is_err());
    }
}

pub(crate) fn when_the_owner_leaves_importers_are_told(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join_with(nodes, place, 4096, |e| e);
        let buffer = j.user.buffer(64).unwrap();
        // The session ends without unexport, as a killed process does: its handles are forgotten
        // and its sockets closed.
        let (owner, export, import) = (j.owner, j.export, j.import);
        std::mem::forget(export);
        owner.leave();
        eventually("the importer being told", || import.broken().is_some());
        let error = import.send(0, buffer.range(0..64)).unwrap_err();
        let known = matches!(error, TransferError::OwnerDied { .. } | TransferError::Revoked { .. });
        assert!(known, "{place:?}: {error}");
    }
}

pub(crate) fn unexport_under_fire_is_final(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 1 << 16);
        let (stop, export, import, user) = (AtomicBool::new(false), j.export, &j.import, &j.user);
        let region = export.region();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let data = vec![0xAB; 1 << 16];
                    while !stop.load(Ordering::Relaxed) {
                        if import.send(0, &data).is_err() {
                            break;
                        }
                    }
                });
            }
            export.wait_word_by(0, |word| word != 0, user.deadline(LONG)).unwrap();
            export.unexport().unwrap();
            region.write(0, &vec![0; 1 << 16]).unwrap();
            std::thread::sleep(crate::nodes::SHORT);
            stop.store(true, Ordering::Relaxed);
        });
        let mut got = vec![1; 1 << 16];
        region.read(0, &mut got).unwrap();
        assert!(got.iter().all(|b| *b == 0), "{place:?}: bytes arrived after the unexport");
        let again = user.import_id(import.export_id()).node(&nodes.name(0)).rights(Rights::READ).open();
        assert!(again.is_err(), "{place:?}: the id still leads somewhere");
    }
}
