//! Names belong to users: nobody takes a name before its user does, and an importer knows whose
//! memory it got.

mod common;

use common::{World, export_spec};
use std::time::Duration;
use vmmc_nic::{Access, ExportError, ExportId, ImportError, ImportGrant, ImportTarget, Owner, ProcessId};

const ROOT: u32 = 0;
const VICTIM: u32 = 1_000;
const SQUATTER: u32 = 1_001;

/// Exports 64 bytes of a new process of `uid` under a name.
fn export(world: &mut World, uid: u32, name: &str, access: Access) -> Result<(ProcessId, ExportId), ExportError> {
    let owner = world.nodes[1].engine.attach(uid).expect("room");
    let memory = world.region(1, owner, 1, 64);
    let spec = vmmc_nic::ExportSpec { access, ..export_spec(memory.region, 64, name) };
    let now = world.now;
    world.nodes[1].engine.export(now, owner, spec).map(|export| (owner, export))
}

fn import(world: &mut World, from: usize, uid: u32, name: &str, owner: Owner) -> Result<ImportGrant, ImportError> {
    let process = world.nodes[from].engine.attach(uid).expect("room");
    world.start_import_of(from, process, 1, (ImportTarget::Name(name.into()), owner), false);
    world.import_answer(from)
}

fn whose(granted: Result<ImportGrant, ImportError>) -> Result<u32, ImportError> {
    granted.map(|grant| grant.owner)
}

#[test]
fn a_name_that_another_user_has_taken_is_free_for_its_user() {
    // From another node, and from the same one.
    for from in [0, 1] {
        let mut world = World::pair(70, true);
        let (squatter, _) = export(&mut world, SQUATTER, "frames", Access::Anyone).unwrap();
        let other = ImportError::OtherOwner { owner: SQUATTER };
        assert_eq!(whose(import(&mut world, from, VICTIM, "frames", Owner::default())), Err(other));
        export(&mut world, VICTIM, "frames", Access::SameUser).expect("names belong to users");
        assert_eq!(whose(import(&mut world, from, VICTIM, "frames", Owner::default())), Ok(VICTIM));
        let again = export(&mut world, VICTIM, "frames", Access::SameUser);
        assert_eq!(again.unwrap_err(), ExportError::NameTaken { name: "frames".into() });
        // The end of one leaves the other.
        let now = world.now;
        world.nodes[1].engine.detach(now, squatter);
        assert_eq!(whose(import(&mut world, from, VICTIM, "frames", Owner::default())), Ok(VICTIM));
    }
}

#[test]
fn own_exports_come_before_those_of_root_and_others_must_be_asked_for() {
    for from in [0, 1] {
        let mut world = World::pair(71, true);
        export(&mut world, SQUATTER, "x", Access::Users(vec![VICTIM])).unwrap();
        export(&mut world, ROOT, "x", Access::Anyone).unwrap();
        assert_eq!(whose(import(&mut world, from, VICTIM, "x", Owner::default())), Ok(ROOT));
        assert_eq!(whose(import(&mut world, from, VICTIM, "x", Owner::Any)), Ok(ROOT));
        assert_eq!(whose(import(&mut world, from, VICTIM, "x", Owner::User(SQUATTER))), Ok(SQUATTER));
        export(&mut world, VICTIM, "x", Access::SameUser).unwrap();
        assert_eq!(whose(import(&mut world, from, VICTIM, "x", Owner::default())), Ok(VICTIM));
        assert_eq!(whose(import(&mut world, from, VICTIM, "x", Owner::User(ROOT))), Ok(ROOT));
        // Any: a user who admits the importer, but no squatter who does not.
        export(&mut world, SQUATTER, "y", Access::SameUser).unwrap();
        export(&mut world, 1_002, "y", Access::Anyone).unwrap();
        assert_eq!(whose(import(&mut world, from, VICTIM, "y", Owner::Any)), Ok(1_002));
    }
}

#[test]
fn an_export_that_does_not_admit_the_importer_is_not_told_of() {
    for from in [0, 1] {
        let mut world = World::pair(72, true);
        let (_, export) = export(&mut world, SQUATTER, "secret", Access::SameUser).unwrap();
        assert_eq!(import(&mut world, from, VICTIM, "secret", Owner::default()), Err(ImportError::NoSuchExport));
        let by_id = |world: &mut World, owner| {
            let process = world.nodes[from].engine.attach(VICTIM).expect("room");
            world.start_import_of(from, process, 1, (ImportTarget::Id(export), owner), false);
            world.import_answer(from)
        };
        // An id is no name: a user who has been given it is refused by the access list.
        assert_eq!(by_id(&mut world, Owner::default()), Err(ImportError::NotPermitted { uid: VICTIM }));
        assert!(matches!(by_id(&mut world, Owner::User(VICTIM)), Err(ImportError::StaleExport { .. })));
    }
}

#[test]
fn who_waits_for_a_name_gets_none_of_another_user() {
    for from in [0, 1] {
        let mut world = World::pair(73, true);
        let process = world.nodes[from].engine.attach(VICTIM).expect("room");
        let name = || ImportTarget::Name("later".into());
        world.start_import_of(from, process, 1, (name(), Owner::default()), true);
        world.run_for(Duration::from_millis(50));
        export(&mut world, SQUATTER, "later", Access::Anyone).unwrap();
        world.run_for(Duration::from_millis(50));
        export(&mut world, VICTIM, "later", Access::SameUser).unwrap();
        assert_eq!(whose(world.import_answer(from)), Ok(VICTIM));
        // A wait that nobody ends leaves nothing behind.
        let process = world.nodes[from].engine.attach(ROOT).expect("room");
        world.start_import_of(from, process, 1, (name(), Owner::default()), true);
        assert!(matches!(world.import_answer(from), Err(ImportError::TimedOut { .. })));
        export(&mut world, ROOT, "later", Access::SameUser).unwrap();
        world.run_to_quiescence();
        let importers = |world: &World| -> usize {
            world.nodes[1].engine.exports().map(|export| export.remote_importers + export.local_importers).sum()
        };
        assert_eq!(importers(&world), 1);
    }
}

#[test]
fn an_import_that_waits_is_withdrawn_by_its_id_and_only_by_its_process() {
    for from in [0, 1] {
        let mut world = World::pair(74, true);
        let process = world.nodes[from].engine.attach(VICTIM).expect("room");
        let other = world.nodes[from].engine.attach(VICTIM).expect("room");
        let name = || ImportTarget::Name("later".into());
        let asked = world.start_import_of(from, process, 1, (name(), Owner::default()), true).expect("it waits");
        world.run_for(Duration::from_millis(50));
        let now = world.now;
        world.nodes[from].engine.cancel_import(now, other, asked);
        world.nodes[from].engine.cancel_import(now, process, asked);
        assert_eq!(world.import_answer(from), Err(ImportError::Cancelled));
        world.run_for(Duration::from_millis(50));
        // Nobody waits any more, and the id means nothing.
        export(&mut world, VICTIM, "later", Access::SameUser).unwrap();
        let now = world.now;
        world.nodes[from].engine.cancel_import(now, process, asked);
        world.run_to_quiescence();
        assert_eq!(world.nodes[from].engine.imports().count(), 0);
    }
}
