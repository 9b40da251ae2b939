//! Other sides that do not keep to the protocol: garbage in every shared word, from a process of
//! the same user and, as root, of another one.
//!
//! Invariant: a call ends in its time, with a message or an error; a channel that was given up
//! costs nothing but itself; nothing outside of the channel is written.

mod common;
#[path = "../../vmmc/tests/common/role.rs"]
#[allow(dead_code)] // a role of another user is started below
mod role;

use common::{Ends, LONG, Nodes, PAGE, Path, assert_same, open, pattern, unique};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vmmc::{Export, Import, Rights, Session};
use vmmc_host::control::Access;
use vmmc_node::{Daemon, KeySource, NodeConfig};
use vmmc_techniques::{Error, PageBuffer, Receiver, Sender, Technique};

/// Where words are, as docs say and src/protocol.rs has it.
const HEARD: u64 = 128;
const NOTICES: u64 = 4096;
const POSTED: u64 = 8192;
const TABLE: u64 = 12288;
/// Calls do not wait longer for what does not come.
const BRIEF: Duration = Duration::from_millis(2);
/// A user that owns nothing here.
const ANOTHER_USER: u32 = 54_321;

/// Numbers that repeat for a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Small, near a page, or anything.
    fn word(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(6),
            1 => self.below(40 * PAGE as u64),
            2 => u64::MAX - self.below(3),
            _ => self.next(),
        }
    }
}

/// What a call may end with when the other side lies.
fn is_expected(error: &Error) -> bool {
    matches!(
        error,
        Error::Garbled { .. }
            | Error::GivenUp { .. }
            | Error::TimedOut { .. }
            | Error::TooLong { .. }
            | Error::Import(_)
    )
}

fn small(builder: vmmc_techniques::ReceiverBuilder) -> vmmc_techniques::ReceiverBuilder {
    builder.window(8192).pool(8 * 4096).agreed(8192).pages(16 * 4096).exchange_from(8192).timeout(BRIEF)
}

/// A notice that may be right.
fn write_notice(import: &Import, number: u64, random: &mut Random) {
    let near = [random.below(7), random.word(), 0, random.below(9000), random.below(3)];
    let mut bytes = [0; 64];
    for (index, near) in near.into_iter().enumerate() {
        let word = if random.below(3) == 0 { random.word() } else { near };
        bytes[8 * index..8 * index + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes[56..].copy_from_slice(&(number + 1).to_le_bytes());
    import.send(NOTICES + number % 64 * 64, &bytes).unwrap();
}

fn any_receive(receiver: &mut Receiver, pages: &mut PageBuffer, random: &mut Random) -> Result<(), Error> {
    let mut buffer = vec![0xEE; 9001];
    let room = random.below(9000) as usize;
    let result = match (receiver.technique(), random.below(4)) {
        (Technique::V2pDma, _) => receiver.receive_posted().map(|arrived| {
            assert!(arrived.range.end <= arrived.memory.len());
        }),
        (Technique::DirectDma, 0) => receiver.receive_agreed().map(|range| {
            assert!(range.start <= range.end && range.end <= receiver.agreed_bytes());
        }),
        (_, 0) => receiver.discard().map(drop),
        (_, 1) => receiver.receive_pages(pages, random.below(3 * 4096)).map(drop),
        _ => receiver.receive(&mut buffer[..room]).map(|len| assert!(len <= room)),
    };
    assert!(buffer[room..].iter().all(|byte| *byte == 0xEE), "a byte beyond the buffer");
    result
}

#[test]
fn garbage_from_a_sender_is_an_error_and_costs_the_channel_alone() {
    let nodes = Nodes::start();
    let (owner, liar) = (nodes.attach(0), nodes.attach(0));
    let Ends { mut receiver, mut sender, .. } = open(&nodes, Path::Mapped, Technique::CopyDma);
    let mut garbled = 0;
    for seed in 1..400u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let technique = Technique::ALL[seed as usize % Technique::ALL.len()];
        let name = unique("lied-to");
        let mut victim = small(Receiver::builder(&owner, &name).technique(technique)).open().unwrap();
        let import = liar.import(&name).rights(Rights::ALL).open().unwrap();
        let mut pages = victim.page_buffer(8 * 4096).unwrap();
        if technique == Technique::V2pDma {
            let memory = victim.memory(4096).unwrap();
            (0..5).for_each(|i| _ = victim.post(&memory, 0..i * 800).unwrap());
        }
        for number in 0..20 {
            // Words that are the receiver's to write, too: it does not read them.
            for at in [0, HEARD, TABLE, POSTED] {
                import.send(at + 8 * random.below(4), &random.word().to_le_bytes()).unwrap();
            }
            write_notice(&import, number, &mut random);
            match any_receive(&mut victim, &mut pages, &mut random) {
                Err(Error::GivenUp { .. }) => break,
                Err(Error::Garbled { .. }) => garbled += 1,
                Err(error) => assert!(is_expected(&error), "seed {seed}: {error}"),
                Ok(()) => {}
            }
        }
        // Another channel of the same process is as it was.
        let message = pattern(5000, seed as u8);
        sender.send(&message).unwrap();
        let mut buffer = vec![0; 5000];
        assert_eq!(receiver.receive(&mut buffer).unwrap(), 5000);
        assert_same(&buffer, &message, "an honest channel");
    }
    assert!(garbled > 100, "{garbled} lies were seen");
}

/// A channel as a hostile receiver has it: its memory, with a header that is right.
fn forged(owner: &Session, name: &str, technique: u64) -> Export {
    let [window, agreed, pool, own] = [8192u64, 8192, 8, 8];
    let exchange_from = match Technique::ALL[technique as usize - 1] {
        Technique::PexDma => 0,
        Technique::Auto => 8192,
        _ => u64::MAX,
    };
    let bytes = TABLE + 4096 + window + agreed + (pool + own) * 4096;
    let export = owner.export(bytes).name(name).rights(Rights::ALL).create().unwrap();
    let header = [u64::from_le_bytes(*b"vmmctec2"), technique, window, agreed, pool, own, exchange_from];
    for (index, word) in header.into_iter().enumerate() {
        export.write(8 * index as u64, &word.to_le_bytes()).unwrap();
    }
    let first = (bytes / 4096 - pool - own) as u32;
    let table: Vec<u8> = (first..first + pool as u32).flat_map(u32::to_le_bytes).collect();
    export.write(TABLE, &table).unwrap();
    export
}

#[test]
fn garbage_from_a_receiver_is_an_error_and_the_sender_writes_nowhere_else() {
    let nodes = Nodes::start();
    let (liar, user) = (nodes.attach(0), nodes.attach(0));
    let mut garbled = 0;
    for seed in 1..400u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let technique = 1 + seed % Technique::ALL.len() as u64;
        let name = unique("liar");
        let export = forged(&liar, &name, technique);
        // What it may be led to: memory of the liar's user, of its own length.
        let posted = liar.export(1000).name(&format!("{name}/0")).rights(Rights::ALL).create().unwrap();
        let mut sender = Sender::builder(&user, &name).timeout(BRIEF).connect().unwrap();
        let mut pages = PageBuffer::new(&user, 16 * 4096).unwrap();
        pages.write(0, &pattern(16 * 4096, seed as u8)).unwrap();
        let message = pattern(20_000, seed as u8);
        for _ in 0..20 {
            let heard = |random: &mut Random| if random.below(2) == 0 { random.below(5) } else { random.word() };
            for word in 0..3 {
                export.write(HEARD + 8 * word, &heard(&mut random).to_le_bytes()).unwrap();
            }
            export.write(192, &random.next().to_le_bytes()).unwrap();
            export.write(TABLE + 4 * random.below(8), &(random.word() as u32).to_le_bytes()).unwrap();
            let (slot, number) = (random.below(64), random.below(5));
            for (index, word) in [random.below(2), random.word(), random.word(), number].into_iter().enumerate() {
                export.write(POSTED + 32 * slot + 8 * index as u64, &word.to_le_bytes()).unwrap();
            }
            let len = random.below(20_000) as usize;
            let result = match sender.technique() {
                Technique::DirectDma => sender.send_agreed(0..random.below(8192)).and_then(|sending| sending.wait()),
                Technique::V2pDma => sender.send_posted(&message[..len]).and_then(|sending| sending.wait()),
                _ if random.below(2) == 0 => sender.send_pages(&mut pages, 0..len as u64),
                _ => sender.send(&message[..len]),
            };
            match result {
                Err(Error::GivenUp { .. }) => break,
                Err(Error::Garbled { .. }) => garbled += 1,
                // Posted ranges that their memory does not have are refused by the import.
                Err(Error::Transfer(_)) if sender.technique() == Technique::V2pDma => {}
                Err(error) => assert!(is_expected(&error), "seed {seed}: {error}"),
                Ok(()) => {}
            }
        }
        let mut seen = vec![0; 16 * 4096];
        pages.read(0, &mut seen).unwrap();
        assert_same(&seen, &pattern(16 * 4096, seed as u8), "the sender's own memory");
        drop(posted);
    }
    assert!(garbled > 100, "{garbled} lies were seen");
}

#[test]
fn headers_that_lie_are_no_channels() {
    let nodes = Nodes::start();
    let (liar, user) = (nodes.attach(0), nodes.attach(0));
    let mut random = Random(77);
    let mut refused = 0;
    for round in 0..200 {
        let name = unique("header");
        let export = forged(&liar, &name, 1 + round % 6);
        export.write(8 * random.below(6), &random.word().to_le_bytes()).unwrap();
        match Sender::builder(&user, &name).timeout(BRIEF).connect() {
            Err(Error::NoChannel { .. }) => refused += 1,
            // The technique is a word that may be any of six.
            Ok(sender) => assert!(Technique::ALL.contains(&sender.technique())),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 150, "{refused} of 200");
}

#[test]
#[ignore = "a role of the other tests"]
fn child_process() {
    let Ok(role) = std::env::var("VMMC_TEST_ROLE") else { return };
    let node = std::env::var("VMMC_TEST_NODE").unwrap();
    let session = Session::builder().node(&node).start_node(false).timeout(LONG).attach().unwrap();
    assert_eq!(role, "storm");
    println!("ready");
    let mut random = Random(std::process::id().into());
    loop {
        let import = match session.import("stormed").any_owner().rights(Rights::ALL).wait(LONG).open() {
            Ok(import) => import,
            Err(_) => continue,
        };
        // Until it is given up, which ends the import.
        let mut number = 0;
        'channel: loop {
            number += random.below(2);
            for _ in 0..3 {
                let at = random.below(import.len() / 8) * 8;
                if import.send(at, &random.word().to_le_bytes()).is_err() {
                    break 'channel;
                }
            }
            let at = NOTICES + number % 64 * 64;
            let near = [random.below(7), random.below(9000), 0, random.below(9000), 0, 0, 0, number + 1];
            let bytes: Vec<u8> = near.into_iter().flat_map(u64::to_le_bytes).collect();
            if import.send(at, &bytes).is_err() {
                break;
            }
        }
    }
}

/// Starts the storm as some user; none if that user cannot run this program.
fn storm(node: &str, uid: Option<u32>) -> Option<role::Role> {
    let program = std::env::current_exe().unwrap();
    let Some(uid) = uid else { return begin(Command::new(&program), node) };
    // A copy where every user can reach it.
    let folder = std::env::temp_dir().join(unique("vmmc-storm"));
    std::fs::create_dir(&folder).unwrap();
    let copy = folder.join("program");
    std::fs::copy(program, &copy).unwrap();
    let end = Instant::now() + LONG;
    let storm = loop {
        let mut command = Command::new(&copy);
        command.uid(uid).gid(uid);
        // While another thread starts a process, that one has the copy open for writing.
        match begin(command, node) {
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            storm => break storm,
        }
    };
    let _ = std::fs::remove_dir_all(&folder);
    storm
}

fn begin(mut command: Command, node: &str) -> Option<role::Role> {
    command.args(["--exact", "child_process", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("VMMC_TEST_ROLE", "storm").env("VMMC_TEST_NODE", node).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("ready")), "the storm did not begin");
    std::thread::spawn(move || lines.for_each(drop));
    Some(role::Role(child))
}

fn survive_a_storm(uid: Option<u32>) {
    let name = unique("storm-node");
    let daemon = Daemon::start(NodeConfig::new(&name).key(KeySource::Plain)).unwrap();
    let stopper = daemon.stopper();
    let thread = std::thread::spawn(move || daemon.run().unwrap());
    let attach = || Session::builder().node(&name).start_node(false).timeout(LONG).attach().unwrap();
    let (session, user) = (attach(), attach());
    let storm = storm(&name, uid);
    assert!(storm.is_some() || uid.is_some(), "this program can be started");
    let honest = unique("honest");
    let mut receiver = Receiver::builder(&session, &honest).technique(Technique::PexDma).open().unwrap();
    let mut sender = Sender::builder(&user, &honest).connect().unwrap();
    let (mut ends, mut calls, mut messages) = (0u32, 0u32, 0u8);
    let mut random = Random(99);
    let end = Instant::now() + Duration::from_secs(2);
    while storm.is_some() && (Instant::now() < end || ends < 5) {
        assert!(Instant::now() < end + LONG, "the storm does not come: {ends} channels, {calls} calls");
        let technique = Technique::ALL[calls as usize % 6];
        let builder = small(Receiver::builder(&session, "stormed").technique(technique)).access(Access::Anyone);
        let mut victim = builder.open().unwrap();
        let mut pages = victim.page_buffer(8 * 4096).unwrap();
        if technique == Technique::V2pDma {
            let memory = victim.memory(4096).unwrap();
            (0..5).for_each(|i| _ = victim.post(&memory, 0..i * 800).unwrap());
        }
        for _ in 0..50 {
            calls += 1;
            match any_receive(&mut victim, &mut pages, &mut random) {
                Err(Error::Garbled { .. }) => ends += 1,
                // It may have left the channel, and come again to the next one.
                Err(Error::GivenUp { .. } | Error::SenderGone { .. }) => break,
                Err(error) => assert!(is_expected(&error), "{error}"),
                Ok(()) => {}
            }
        }
        messages = messages.wrapping_add(1);
        sender.send(&pattern(20_000, messages)).unwrap();
        let mut buffer = vec![0; 20_000];
        receiver.receive(&mut buffer).unwrap();
        assert_same(&buffer, &pattern(20_000, messages), "an honest channel beside it");
    }
    drop((storm, receiver, sender, session, user));
    stopper.stop();
    thread.join().unwrap();
}

#[test]
fn a_process_that_stores_garbage_everywhere_all_the_time_harms_its_channel_alone() {
    survive_a_storm(None);
}

#[test]
fn a_process_of_another_user_that_stores_garbage_harms_its_channel_alone() {
    // SAFETY: it has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root starts processes of other users");
        return;
    }
    survive_a_storm(Some(ANOTHER_USER));
}
