//! Exports on machines whose shared memory has transparent huge pages, of which a memfd then has
//! more than was asked for: all ways of moving data, with every setting that the kernel knows.
//!
//! Invariant: the machine's setting is what it was when the test has ended, also when it failed. A
//! file of its own, so that no other test of this program runs meanwhile.

use std::fs;
use std::time::Duration;
use vmmc::{Rights, SendOptions, Session};
use vmmc_host::{Protection, Region};
use vmmc_node::{Daemon, KeySource, NodeConfig};

const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
const HUGE: u64 = 2 << 20;
const LONG: Duration = Duration::from_secs(30);

/// The setting as it was; put back when dropped.
struct Restored(String);

impl Drop for Restored {
    fn drop(&mut self) {
        if let Err(why) = fs::write(SETTING, &self.0) {
            eprintln!("{SETTING} was {:?}, and cannot be put back: {why}", self.0);
        }
    }
}

/// All settings that this kernel knows, if they can be chosen; the present one comes back with the
/// value.
fn settings() -> Result<(Restored, Vec<String>), String> {
    let text = fs::read_to_string(SETTING).map_err(|why| format!("{SETTING}: {why}"))?;
    let present = text.split(['[', ']']).nth(1).ok_or("no setting is the present one")?.to_string();
    fs::write(SETTING, &present).map_err(|why| format!("{SETTING} cannot be written: {why}"))?;
    Ok((Restored(present), text.split_whitespace().map(|word| word.replace(['[', ']'], "")).collect()))
}

fn attach(node: &str) -> Session {
    Session::builder().node(node).start_node(false).timeout(LONG).attach().unwrap()
}

/// Bytes that a new region of this length takes.
fn taken(len: u64) -> u64 {
    Region::create(len).unwrap().occupied_bytes()
}

/// Moves data through exports of this length, which another process maps or the node carries, and
/// ends them.
fn exchange(owner: &Session, user: &Session, len: usize) {
    for mappable in [true, false] {
        let export = owner.export(len as u64).name("huge").notify(true).mappable(mappable).create().unwrap();
        let import = user.import("huge").rights(Rights::ALL).open().unwrap();
        let data: Vec<u8> = (0..len).map(|at| at as u8 ^ (at >> 12) as u8).collect();
        import.send_with(0, &data, SendOptions::notify()).unwrap();
        assert_eq!(export.wait_notification().unwrap().len, len as u64);
        let mut back = vec![0; len];
        import.fetch(0, &mut back).unwrap();
        assert!(back == data, "{len} bytes, mappable: {mappable}");
        assert_eq!(import.fetch_add(0, 1).unwrap(), u64::from_le_bytes(data[..8].try_into().unwrap()));
        drop(import);
        export.unexport_moving().unwrap();
    }
}

#[test]
fn exports_work_whatever_huge_pages_shared_memory_has() {
    let (_restored, settings) = match settings() {
        Ok(settings) => settings,
        Err(why) => return println!("SKIP huge pages: {why}"),
    };
    for setting in &settings {
        if let Err(why) = fs::write(SETTING, setting) {
            println!("SKIP huge pages, {setting}: {why}");
            continue;
        }
        // What the setting gives, as long as there are huge pages at all.
        let (small, large) = (taken(4096), taken(HUGE + 4096));
        println!("{setting}: a page takes {small} bytes, 2 MiB and a page {large}");
        if matches!(setting.as_str(), "always" | "force") && (small, large) != (HUGE, 2 * HUGE) {
            println!("SKIP huge pages, {setting}: this machine has none to give now");
        }
        let name = format!("huge-{setting}-{}", std::process::id());
        let daemon = Daemon::start(NodeConfig::new(&name).key(KeySource::Plain)).unwrap();
        let stopper = daemon.stopper();
        let thread = std::thread::spawn(move || daemon.run().unwrap());
        let (owner, user) = (attach(&name), attach(&name));
        for len in [64, 4096, HUGE as usize + 4096, 2 * HUGE as usize] {
            exchange(&owner, &user, len);
        }
        drop((owner, user));
        stopper.stop();
        thread.join().unwrap();
        // What a holder of a descriptor maps is checked once more.
        let region = Region::create(3 * HUGE + 1).unwrap();
        Region::map(region.share().unwrap(), 3 * HUGE + 1, Protection::ReadWrite).unwrap();
    }
}
