//! On-demand exports: the driver is told once who waits for one, and its refusal reaches everybody.

mod common;

use common::World;
use vmmc_nic::{ActivationRefusal, ImportError};

const PREFIX: &str = "demand/";

#[test]
fn the_driver_hears_who_waits_for_an_on_demand_export_and_its_refusal_reaches_them() {
    for from in [0, 1] {
        let mut world = World::new(90);
        world.add(|_| {});
        world.add(|config| config.on_demand = Some(PREFIX.into()));
        let importer = world.process(from);
        for name in ["demand/x", "other", "deman"] {
            world.start_import(from, importer, 1, name, true);
        }
        // One that does not wait is answered.
        world.start_import(from, importer, 1, "demand/y", false);
        assert_eq!(world.import_answer(from).err(), Some(ImportError::NoSuchExport));
        world.run_to_quiescence();
        let wanted = world.nodes[1].engine.poll_activation().expect("somebody waits");
        assert_eq!((wanted.name.as_str(), wanted.uid), ("demand/x", 1_000));
        assert_eq!(wanted.from.is_some(), from == 0);
        assert_eq!(world.nodes[1].engine.poll_activation(), None);
        let now = world.now;
        world.nodes[1].engine.refuse_activation(now, &wanted.name, ActivationRefusal::TooMany);
        let refused = ImportError::NotStarted(ActivationRefusal::TooMany);
        assert_eq!(world.import_answer(from).err(), Some(refused));
        // Nobody is told of any on the node without a prefix.
        assert_eq!(world.nodes[0].engine.poll_activation(), None);
    }
}

#[test]
fn every_refusal_keeps_its_number() {
    for (index, why) in ActivationRefusal::ALL.into_iter().enumerate() {
        assert_eq!(why.code() as usize, index + 1);
        assert_eq!(ActivationRefusal::from_code(why.code()), Some(why));
    }
    assert_eq!(ActivationRefusal::from_code(0), None);
    assert_eq!(ActivationRefusal::from_code(7), None);
}
