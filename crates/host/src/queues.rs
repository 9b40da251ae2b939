//! Which queueing discipline the kernel has in front of each network interface: it decides whether
//! a full queue marks packets or drops them.
//!
//! Invariant: an answer is taken only from the kernel, and its lengths are checked before they are
//! used. Nothing here waits: the kernel answers within the call that asks. Source: rtnetlink(7),
//! netlink(7), `RTM_GETQDISC`.

use crate::netlink::{ERROR, HEAD_BYTES, half, is_kernel, refusal, word};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice};
use std::collections::{BTreeMap, BTreeSet};

/// `RTM_GETQDISC` and `RTM_NEWQDISC`.
const ASK: u16 = 38;
const TELLS: u16 = 36;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const ALL: u16 = 0x301;
/// `TC_H_ROOT`.
const ROOT: u32 = u32::MAX;
/// `TC_H_INGRESS`: what comes in, which is no queue.
const INGRESS: u32 = 0xffff_fff1;
/// `TCA_KIND`.
const KIND: u16 = 1;
/// Bytes of `struct tcmsg` and of `struct rtattr`.
const QDISC_BYTES: usize = 20;
const ATTRIBUTE_BYTES: usize = 4;
/// What the kernel puts into one answer at most.
const ANSWER_BYTES: usize = 32 << 10;
/// Answers that are read at most: some thousand interfaces.
const ANSWERS_MAX: usize = 256;

/// An interface and the disciplines in front of it: one, or those of its hardware queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Name of the interface.
    pub interface: String,
    /// Names of the disciplines, each once.
    pub kinds: BTreeSet<String>,
}

/// Interfaces of this network namespace that have queues, by name.
///
/// # Example
///
/// ```
/// for queues in vmmc_host::queues::of_interfaces().unwrap_or_default() {
///     println!("{}: {:?}", queues.interface, queues.kinds);
/// }
/// ```
///
/// # Errors
///
/// When the kernel does not tell.
pub fn of_interfaces() -> Result<Vec<Queues>, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol it is the first one, `NETLINK_ROUTE`.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::send(&socket, &question(), SendFlags::DONTWAIT)?;
    let (mut found, mut answer) = (Vec::new(), vec![0u8; ANSWER_BYTES]);
    for _ in 0..ANSWERS_MAX {
        let (bytes, _, from) = rustix::net::recvfrom(&socket, &mut answer, RecvFlags::DONTWAIT)?;
        if from.as_ref().is_some_and(is_kernel) && read(&answer[..bytes.min(ANSWER_BYTES)], &mut found)? {
            let name = |index| netdevice::index_to_name(&socket, index).ok();
            return Ok(by_interface(&found, name));
        }
    }
    Err(Errno::MSGSIZE)
}

/// For all disciplines of all interfaces.
fn question() -> [u8; HEAD_BYTES + QDISC_BYTES] {
    let mut bytes = [0; HEAD_BYTES + QDISC_BYTES];
    bytes[..4].copy_from_slice(&((HEAD_BYTES + QDISC_BYTES) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&ASK.to_ne_bytes());
    bytes[6..8].copy_from_slice(&ALL.to_ne_bytes());
    bytes
}

/// A discipline as the kernel tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Discipline {
    interface: u32,
    handle: u32,
    parent: u32,
    kind: String,
}

/// Reads the messages of an answer; true: there are no more.
fn read(mut answer: &[u8], found: &mut Vec<Discipline>) -> Result<bool, Errno> {
    while answer.len() >= HEAD_BYTES {
        let len = word(answer, 0).map_or(0, |len| len as usize);
        let message = answer.get(HEAD_BYTES..len).ok_or(Errno::BADMSG)?;
        match half(answer, 4) {
            Some(DONE) => return Ok(true),
            Some(ERROR) => return Err(refusal(&answer[..len])),
            Some(TELLS) => found.extend(discipline(message)),
            _ => {}
        }
        answer = answer.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn discipline(message: &[u8]) -> Option<Discipline> {
    let mut attributes = message.get(QDISC_BYTES..)?;
    loop {
        let len = usize::from(half(attributes, 0)?);
        let value = attributes.get(ATTRIBUTE_BYTES..len)?;
        if half(attributes, 2)? == KIND {
            let kind = String::from_utf8_lossy(value).trim_end_matches('\0').to_string();
            let (interface, handle, parent) = (word(message, 4)?, word(message, 8)?, word(message, 12)?);
            return Some(Discipline { interface, handle, parent, kind });
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

/// Those in which packets wait: one at the root, or, where that only spreads packets over others,
/// those others.
fn by_interface(found: &[Discipline], name: impl Fn(u32) -> Option<String>) -> Vec<Queues> {
    let mut kinds: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for one in found.iter().filter(|one| one.parent != INGRESS && one.kind != "noqueue") {
        // A handle is a number of the discipline and, in a parent, one of a class in it. Those that
        // the kernel made have number 0, at the root and below.
        let number = one.handle & 0xffff_0000;
        let below = |other: &Discipline| {
            other.interface == one.interface && other.parent != ROOT && other.parent & 0xffff_0000 == number
        };
        let may_have_some = number != 0 || one.parent == ROOT;
        if !(may_have_some && found.iter().any(below)) {
            kinds.entry(one.interface).or_default().insert(one.kind.clone());
        }
    }
    let named = kinds.into_iter().filter_map(|(index, kinds)| Some(Queues { interface: name(index)?, kinds }));
    let mut queues: Vec<Queues> = named.collect();
    queues.sort_by(|one, other| one.interface.cmp(&other.interface));
    queues
}

#[cfg(test)]
mod tests {
    use super::*;

    fn discipline_of(interface: u32, handle: u32, parent: u32, kind: &str) -> Discipline {
        Discipline { interface, handle, parent, kind: kind.into() }
    }

    /// A message as the kernel writes it: with another attribute before the name.
    fn message(one: &Discipline) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes.extend(0u32.to_ne_bytes());
        [one.interface, one.handle, one.parent, 1].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        for (kind, value) in [(12u16, &b"\x01"[..]), (KIND, &[one.kind.as_bytes(), b"\0"].concat())] {
            bytes.extend(((ATTRIBUTE_BYTES + value.len()) as u16).to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        headed(bytes, TELLS)
    }

    fn headed(mut bytes: Vec<u8>, kind: u16) -> Vec<u8> {
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes
    }

    #[test]
    fn an_answer_is_read_and_any_part_of_one_is_an_error_or_less_of_it() {
        let all = [discipline_of(2, 0x8001_0000, ROOT, "fq_codel"), discipline_of(3, 0, ROOT, "noqueue")];
        let answer = [message(&all[0]), message(&all[1]), headed(vec![0; 20], DONE)].concat();
        let mut found = Vec::new();
        assert_eq!((read(&answer, &mut found), &found[..]), (Ok(true), &all[..]));
        for len in 0..answer.len() {
            let mut part = Vec::new();
            let end = read(&answer[..len], &mut part);
            assert!(end != Ok(true) && all.starts_with(&part), "{len}: {end:?} {part:?}");
        }
        let refused = headed([&[0; HEAD_BYTES][..], &(-95i32).to_ne_bytes()].concat(), ERROR);
        assert_eq!(read(&refused, &mut found), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn bytes_of_any_kind_are_read_without_a_panic() {
        let whole = message(&discipline_of(2, 0x8001_0000, ROOT, "pfifo_fast"));
        for at in 0..whole.len() {
            for value in [0, 1, 3, 4, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let mut found = Vec::new();
                let _ = read(&bytes, &mut found);
                assert!(found.len() <= 1);
            }
        }
    }

    #[test]
    fn packets_wait_in_the_disciplines_that_have_no_others_below() {
        let found = [
            discipline_of(2, 0x8001_0000, ROOT, "mq"),
            discipline_of(2, 0, 0x8001_0001, "fq_codel"),
            discipline_of(2, 0, 0x8001_0002, "fq_codel"),
            discipline_of(3, 0x8002_0000, ROOT, "pfifo_fast"),
            discipline_of(3, 0xffff_0000, INGRESS, "ingress"),
            discipline_of(1, 0, ROOT, "noqueue"),
            discipline_of(4, 0, ROOT, "fq"),
            discipline_of(5, 0, ROOT, "mq"),
            discipline_of(5, 0, 1, "pfifo_fast"),
            discipline_of(5, 0, 2, "pfifo_fast"),
        ];
        let names = [None, None, Some("eth1"), Some("eth0"), None, Some("eth2")];
        let name = |index| names[index as usize].map(String::from);
        let queues = by_interface(&found, name);
        let told = |interface: &str, kind: &str| Queues { interface: interface.into(), kinds: [kind.into()].into() };
        assert_eq!(queues, [told("eth0", "pfifo_fast"), told("eth1", "fq_codel"), told("eth2", "pfifo_fast")]);
    }

    #[test]
    #[cfg(not(miri))]
    fn this_machine_has_none_twice() {
        match of_interfaces() {
            Ok(queues) => assert!(queues.is_sorted_by(|one, other| one.interface < other.interface), "{queues:?}"),
            Err(errno) => println!("SKIP the kernel does not tell of queues: {errno}"),
        }
    }
}
