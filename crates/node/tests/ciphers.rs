//! Two daemons whose users chose ciphers: they seal with the best one that both take, which the
//! status of each names, or refuse each other by a text that says what to do.
//!
//! The choice of AES-256-GCM needs the feature of that name (`cargo test -p vmmc-node --features
//! aes-256-gcm --test ciphers`), with which `cargo xtask check ciphers` builds it; without it those
//! pairs print `SKIP`.

mod common;

use common::raw::{self, Raw};
use common::wild::Watched;
use common::{VMMCD, connect, nap};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::rc::Rc;
use vmmc_host::control::{Answer, Call, NodeInfo, RefusalCode};
use vmmc_nic::Rights;
use vmmc_node::{KeySource, NodeConfig};

const CHOICES: [&str; 3] = ["any", "aegis-128l", "aes-256-gcm"];
const BUILT: bool = cfg!(feature = "aes-256-gcm");

/// A file with a cluster key, which goes with the test.
struct Key(PathBuf);

impl Key {
    fn new() -> Key {
        let path = std::env::temp_dir().join(format!("vmmc-ciphers-{}.key", std::process::id()));
        std::fs::write(&path, format!("{}\n", "5a".repeat(32))).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Key(path)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

struct Daemon {
    name: String,
    process: Raw,
    _daemon: Watched,
}

impl Daemon {
    fn start(name: &str, key: &Key, cipher: &str) -> Daemon {
        let name = format!("ciphers-{name}-{}", std::process::id());
        let mut config = NodeConfig::new(&name).listen("127.0.0.1:0".parse().unwrap());
        config = config.key(KeySource::File(key.0.clone()));
        config.ciphers = cipher.parse().unwrap();
        let daemon = Watched::start(VMMCD, config.to_args(), None);
        let uid = rustix::process::geteuid().as_raw();
        let channel = raw::wait(&nap, || connect(uid, &name).ok());
        Daemon { name, process: Raw::over(channel, Rc::new(nap)), _daemon: daemon }
    }

    fn info(&mut self) -> NodeInfo {
        match self.process.call(Call::Info { details: true }) {
            Ok(Answer::Info(info)) => *info,
            other => panic!("{other:?}"),
        }
    }

    /// What it seals with to the other one.
    fn cipher(&mut self, to: &str) -> String {
        let peers = self.info().peers;
        peers.into_iter().find(|peer| peer.name == to).map(|peer| peer.cipher).unwrap_or_default()
    }
}

/// What two nodes of this build seal with.
fn common_cipher(ours: &str, theirs: &str) -> Option<&'static str> {
    let takes = |choice: &str, cipher: &str| choice == "any" || choice == cipher;
    let built = ["aegis-128l", "aes-256-gcm"].into_iter().filter(|cipher| BUILT || *cipher != "aes-256-gcm");
    built.into_iter().find(|cipher| takes(ours, cipher) && takes(theirs, cipher))
}

#[test]
fn two_daemons_seal_with_a_cipher_that_both_take_or_say_that_there_is_none() {
    let key = Key::new();
    for (ours, theirs) in CHOICES.into_iter().flat_map(|ours| CHOICES.map(|theirs| (ours, theirs))) {
        if !BUILT && [ours, theirs].contains(&"aes-256-gcm") {
            println!("SKIP {ours} and {theirs}: this build has no aes-256-gcm; build with the feature of that name");
            continue;
        }
        let (mut near, mut far) = (Daemon::start("near", &key, ours), Daemon::start("far", &key, theirs));
        far.process.export("buffer");
        let address = far.info().listen[0].clone();
        let imported = near.process.call(Raw::import_call(Some(&address), "buffer", Rights::WRITE));
        let (near_name, far_name) = (near.name.clone(), far.name.clone());
        let Some(cipher) = common_cipher(ours, theirs) else {
            let refusal = imported.expect_err("they have no cipher in common");
            assert_eq!(refusal.code, RefusalCode::Unreachable, "{ours} and {theirs}: {refusal}");
            assert!(refusal.message.contains("start both with --cipher"), "{ours} and {theirs}: {refusal}");
            assert_eq!((near.cipher(&far_name), far.cipher(&near_name)), (String::new(), String::new()));
            continue;
        };
        assert!(matches!(imported, Ok(Answer::Imported(_))), "{ours} and {theirs}: {imported:?}");
        assert_eq!((near.cipher(&far_name).as_str(), far.cipher(&near_name).as_str()), (cipher, cipher));
    }
}
