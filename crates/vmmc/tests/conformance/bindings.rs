//! Automatic update.

use crate::nodes::{Nodes, Place, join};
use std::sync::atomic::Ordering;
use vmmc::{AccessError, BindError, BindOptions, NotMapped, Revocation, Rights};

pub(crate) fn plain_stores_appear_in_the_export(nodes: &dyn Nodes) {
    let j = join(nodes, Place::Mapped, 4096);
    let binding = j.import.bind(BindOptions::default()).unwrap();
    binding.word(64).unwrap().store(77, Ordering::Release);
    assert_eq!(j.export.word(64).unwrap().load(Ordering::Acquire), 77);
    binding.write(100, b"stored").unwrap();
    let mut got = [0; 6];
    j.export.read(100, &mut got).unwrap();
    assert_eq!(&got, b"stored");
    j.export.write(200, b"other way").unwrap();
    let mut got = [0; 9];
    binding.read(200, &mut got).unwrap();
    assert_eq!(&got, b"other way");
    binding.flush().unwrap();
    assert!(matches!(binding.write(4095, b"xx"), Err(AccessError::OutOfBounds { .. })));
    assert!(matches!(binding.word(4), Err(AccessError::Misaligned { .. })));
    assert!(binding.is_open() && binding.len() == 4096);
}

pub(crate) fn unmapped_imports_say_why_they_cannot_be_bound(nodes: &dyn Nodes) {
    for (place, reason) in [(Place::Engine, NotMapped::NotAllowed), (Place::Network, NotMapped::OtherNode)] {
        let j = join(nodes, place, 4096);
        match j.import.bind(BindOptions::default()) {
            Err(BindError::NotMapped { why, .. }) => assert_eq!(why, reason),
            Err(other) => panic!("{place:?}: {other}"),
            Ok(_) => panic!("{place:?}: bound"),
        }
    }
    let j = join(nodes, Place::Mapped, 4096);
    let reader = j.user.import_id(j.export.id()).rights(Rights::READ).open().unwrap();
    assert!(matches!(reader.bind(BindOptions::default()), Err(BindError::NoRight { .. })));
}

pub(crate) fn unexport_takes_the_pages_from_a_binding(nodes: &dyn Nodes) {
    let j = join(nodes, Place::Mapped, 4096);
    let binding = j.import.bind(BindOptions::default()).unwrap();
    let word = binding.word(8).unwrap();
    word.store(1, Ordering::SeqCst);
    let region = j.export.region();
    assert_eq!(j.export.unexport().unwrap(), Revocation::Moved);
    word.store(2, Ordering::SeqCst);
    assert_eq!(region.word(8).unwrap().load(Ordering::SeqCst), 1, "a store arrived after the unexport");
    assert!(!binding.is_open() && binding.flush().is_err());
}
