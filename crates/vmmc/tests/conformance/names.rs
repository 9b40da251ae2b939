//! Names, ids, rights, waiting.

use crate::nodes::{LONG, Nodes, SHORT, content};
use std::time::Duration;
use vmmc::{Access, RefusalCode, Rights};

pub(crate) fn exports_are_found_by_name_and_by_id(nodes: &dyn Nodes) {
    let owner = nodes.attach(0);
    let named = owner.export(100).name("frames").create().unwrap();
    let nameless = owner.export(200).create().unwrap();
    for node in [0, 1] {
        let user = nodes.attach(node);
        let by_name = user.import("frames").node(&nodes.name(0)).open().unwrap();
        assert_eq!((by_name.len(), by_name.export_id()), (100, named.id()));
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(by_name.owner(), own, "the node says whose memory it is");
        let of = |uid| user.import("frames").node(&nodes.name(0)).owner(uid).open();
        assert_eq!(of(own).unwrap().export_id(), named.id());
        assert_eq!(of(4_000_000_001).unwrap_err().refusal(), Some(RefusalCode::UnknownName));
        let whoever = user.import("frames").node(&nodes.name(0)).any_owner().open().unwrap();
        assert_eq!((whoever.export_id(), whoever.owner()), (named.id(), own));
        let by_id = user.import_id(nameless.id()).node(&nodes.name(0)).open().unwrap();
        assert_eq!(by_id.len(), 200);
        let address = owner.node().listen[0].clone();
        assert!(node == 0 || user.import("frames").node(&address).open().is_ok(), "by address");
    }
}

pub(crate) fn an_import_waits_for_its_export(nodes: &dyn Nodes) {
    for node in [0, 1] {
        let (owner, user) = (nodes.attach(0), nodes.attach(node));
        let home = nodes.name(0);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| user.import("later").node(&home).wait(LONG).open());
            std::thread::sleep(SHORT);
            let export = owner.export(64).name("later").create().unwrap();
            let import = waiting.join().unwrap().unwrap();
            import.send(0, b"here").unwrap();
            import.flush().unwrap();
            assert_eq!(&content(&export)[..4], b"here");
        });
    }
}

pub(crate) fn a_waiting_import_does_not_hold_up_other_calls(nodes: &dyn Nodes) {
    let session = nodes.attach(0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| session.import("mine").wait(LONG).open());
        std::thread::sleep(SHORT);
        let export = session.export(64).name("mine").create().unwrap();
        assert!(waiting.join().unwrap().is_ok());
        drop(export);
    });
}

pub(crate) fn unknown_names_are_errors_at_once_and_after_the_wait(nodes: &dyn Nodes) {
    for node in [0, 1] {
        let user = nodes.attach(node);
        let import = || user.import("nobody").node(&nodes.name(0));
        let error = import().open().unwrap_err();
        assert_eq!(error.refusal(), Some(RefusalCode::UnknownName), "{error}");
        assert!(error.to_string().contains("nobody"), "{error}");
        let start = user.deadline(Duration::ZERO);
        let error = import().wait(Duration::from_millis(100)).open().unwrap_err();
        assert_eq!(error.refusal(), Some(RefusalCode::TimedOut), "{error}");
        let waited = user.deadline(Duration::ZERO).0 - start.0;
        assert!(waited >= Duration::from_millis(100) && waited < LONG, "{waited:?}");
    }
}

pub(crate) fn a_name_is_taken_until_its_export_ends(nodes: &dyn Nodes) {
    let (one, two) = (nodes.attach(0), nodes.attach(0));
    let first = one.export(64).name("once").create().unwrap();
    let error = two.export(64).name("once").create().unwrap_err();
    assert_eq!(error.refusal(), Some(RefusalCode::NameTaken), "{error}");
    first.unexport().unwrap();
    two.export(64).name("once").create().unwrap();
}

pub(crate) fn stale_ids_never_lead_to_other_memory(nodes: &dyn Nodes) {
    let owner = nodes.attach(0);
    let old = owner.export(64).create().unwrap();
    let id = old.id();
    old.unexport().unwrap();
    let _new: Vec<_> = (0..20).map(|_| owner.export(64).create().unwrap()).collect();
    for node in [0, 1] {
        let user = nodes.attach(node);
        let error = user.import_id(id).node(&nodes.name(0)).open().unwrap_err();
        assert!(matches!(error.refusal(), Some(RefusalCode::Stale | RefusalCode::UnknownName)), "{error}");
    }
}

pub(crate) fn rights_that_the_export_lacks_are_refused(nodes: &dyn Nodes) {
    let owner = nodes.attach(0);
    let export = owner.export(64).name("readable").rights(Rights::READ).create().unwrap();
    let closed = owner.export(64).name("closed").access(Access::Users(vec![4_000_000_001])).create().unwrap();
    for node in [0, 1] {
        let user = nodes.attach(node);
        let import = |name: &str, rights| user.import(name).node(&nodes.name(0)).rights(rights).open();
        let error = import("readable", Rights::WRITE).unwrap_err();
        assert_eq!(error.refusal(), Some(RefusalCode::NoRight), "{error}");
        assert!(import("readable", Rights::READ).is_ok());
        let error = import("closed", Rights::READ).unwrap_err();
        assert_eq!(error.refusal(), Some(RefusalCode::NotPermitted), "{error}");
    }
    drop((export, closed));
}

pub(crate) fn hundreds_of_exports_and_imports_live_side_by_side(nodes: &dyn Nodes) {
    const COUNT: u64 = 150;
    let owner = nodes.attach(0);
    let users = [nodes.attach(0), nodes.attach(1)];
    let exports: Vec<_> = (0..COUNT).map(|i| owner.export(64).name(&format!("many-{i}")).create().unwrap()).collect();
    for user in &users {
        let open = |i| user.import(&format!("many-{i}")).node(&nodes.name(0)).open().unwrap();
        let imports: Vec<_> = (0..COUNT).map(open).collect();
        for (i, import) in imports.iter().enumerate() {
            import.send(8, &(i as u64 + 1).to_le_bytes()).unwrap();
        }
        imports.iter().for_each(|import| import.flush().unwrap());
        for (i, export) in exports.iter().enumerate() {
            let word = export.word(8).unwrap();
            assert_eq!(word.swap(0, std::sync::atomic::Ordering::AcqRel), i as u64 + 1);
        }
    }
}
