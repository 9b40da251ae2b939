//! What sessions and nodes report about themselves.

use crate::nodes::{LONG, Nodes, Place, join, join_with};
use vmmc::{Moved, NotMapped, Path, Rights, SendOptions};

pub(crate) fn the_path_is_explained(nodes: &dyn Nodes) {
    let j = join(nodes, Place::Mapped, 4096);
    let text = j.import.explain().to_string();
    assert!(text.contains("path: mapped") && text.contains("state: open"), "{text}");
    let writer = j.user.import_id(j.export.id()).rights(Rights::WRITE).open().unwrap().explain();
    assert_eq!(writer.not_mapped, Some(NotMapped::NoReadRight));
    let odd = j.user.import_id(j.export.id()).rights(Rights::READ | Rights::ATOMIC).open().unwrap().explain();
    assert_eq!(odd.not_mapped, Some(NotMapped::RightsNotExpressible));
    let r = join_with(nodes, Place::Engine, 4096, |e| e.redirectable(true).mappable(true));
    assert!(r.import.explain().redirectable);
    let remote = join(nodes, Place::Network, 4096).import.explain();
    let words = if nodes.sealed() { "encrypted" } else { "no encryption" };
    assert!(remote.sealed == nodes.sealed() && remote.to_string().contains(words), "{remote}");
    let json = serde_json::to_value(&remote).unwrap();
    assert_eq!((&json["path"], &json["len"]), (&"network".into(), &4096.into()));
    let owner = j.owner;
    let given = owner.export_memory(vec![0u8; 5000]).create().unwrap();
    assert_eq!(j.user.import_id(given.id()).open().unwrap().explain().not_mapped, None);
    // So large that the allocator maps it anew: what it hands out again may have pages that another
    // test pinned, which cannot be claimed.
    let leaked: &'static mut [u8] = vec![0u8; 64 << 20].leak();
    // SAFETY: a part of an allocation that is never freed and that nobody else knows.
    let claimed = unsafe { vmmc::CallerMemory::from_raw_parts(leaked[10_000..].as_mut_ptr(), 5000) };
    let part = owner.export_memory(claimed).create().unwrap();
    assert_eq!(j.user.import_id(part.id()).open().unwrap().explain().not_mapped, Some(NotMapped::SharesPages));
    j.export.unexport().unwrap();
    assert!(j.import.explain().to_string().contains("unusable"));
}

pub(crate) fn what_happened_is_counted(nodes: &dyn Nodes) {
    let j = join(nodes, Place::Mapped, 4096);
    j.import.send(0, b"four").unwrap();
    j.import.fetch(0, &mut [0; 3]).unwrap();
    j.import.fetch_add(0, 1).unwrap();
    let s = j.user.stats();
    assert_eq!((s.sends_mapped, s.send_bytes_mapped, s.fetches_mapped, s.fetch_bytes_mapped), (1, 4, 1, 3));
    assert_eq!(s.atomics_mapped, 1);
    assert!(s.calls >= 1);
    let j = join(nodes, Place::Network, 1 << 20);
    j.import.send(0, b"four").unwrap();
    j.import.send(0, &[1; 1000]).unwrap();
    j.import.send_with(0, &[1; 10], SendOptions::counter(16)).unwrap();
    j.import.fetch(0, &mut [0; 3]).unwrap();
    j.import.fetch_add(0, 1).unwrap();
    let s = j.user.stats();
    assert_eq!((s.sends_inline, s.sends_staged, s.send_bytes_engine), (2, 1, 1014));
    assert!(s.sends_direct <= s.sends_inline && s.requests_direct <= s.fetches_engine + s.atomics_engine);
    assert_eq!((s.fetches_engine, s.fetch_bytes_engine, s.atomics_engine), (1, 3, 1));
}

pub(crate) fn nodes_answer_pings_and_questions(nodes: &dyn Nodes) {
    let session = nodes.attach(1);
    let rtt = session.ping(&nodes.name(0), LONG).unwrap();
    assert!(rtt < LONG);
    let _export = session.export(4096).name("listed").create().unwrap();
    let info = session.node_info(true).unwrap();
    assert_eq!(info.name, nodes.name(1));
    assert!(info.sealed == nodes.sealed() && info.pid == std::process::id());
    assert!(info.peers.iter().any(|p| p.name == nodes.name(0)), "{:?}", info.peers);
    assert!(info.exports.iter().any(|e| e.name.as_deref() == Some("listed") && e.len == 4096), "{:?}", info.exports);
    assert!(info.processes.iter().any(|p| p.process == session.process_id()));
    assert!(session.node_info(false).unwrap().exports.is_empty());
    session.add_peer(&["127.0.0.1:9"]).unwrap();
    assert!(session.add_peer(&["not an address"]).is_err());
}

pub(crate) fn the_node_sees_what_went_through_each_import(nodes: &dyn Nodes) {
    for place in Place::ALL {
        let j = join(nodes, place, 8192);
        let memory = [7u8; 100];
        let before = j.user.node_info(true).unwrap();
        // The lanes of two threads, and one import besides that nothing goes through.
        let reach = || {
            let import = j.user.import_id(j.export.id());
            if place == Place::Network { import.node(&nodes.name(0)) } else { import }.open().unwrap()
        };
        let idle = reach();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..5).for_each(|_| j.import.send(0, &memory).unwrap())).join().unwrap();
        });
        (0..3).for_each(|_| j.import.send(0, &memory[..8]).unwrap());
        (0..2).for_each(|_| j.import.fetch(0, &mut [0; 16]).unwrap());
        j.import.flush().unwrap();
        let moved = Moved { sends: 8, send_bytes: 524, fetches: 2, fetch_bytes: 32, atomics: 0 };
        let info = j.user.node_info(true).unwrap();
        let import = info.imports.iter().find(|import| import.moved != Moved::default()).unwrap();
        assert_eq!(import.moved, moved, "{place:?}");
        assert_eq!(info.imports.iter().filter(|import| import.moved != Moved::default()).count(), 1, "{place:?}");
        let mapped = j.import.explain().path == Path::Mapped;
        let claimed = if mapped { moved } else { Moved::default() };
        assert_eq!((j.import.moved(), idle.moved()), (claimed, Moved::default()), "{place:?}");
        let process = info.processes.iter().find(|process| process.process == import.process).unwrap();
        assert_eq!(process.mapped, claimed, "{place:?}");
        assert_eq!(import.name.as_deref(), j.export.name().filter(|_| place != Place::Network), "{place:?}");
        // What an import that is given back moved stays counted, and its successor starts at
        // nothing.
        let sum = |info: &vmmc::NodeInfo| info.counters.iter().find(|(name, _)| name == "mapped_send_bytes").unwrap().1;
        assert_eq!(sum(&info) - sum(&before), claimed.send_bytes, "{place:?}");
        drop(j.import);
        let again = reach();
        let after = j.user.node_info(true).unwrap();
        assert_eq!((sum(&after), again.moved()), (sum(&info), Moved::default()), "{place:?}");
    }
}
