//! Messages of NX on daemons, within a node and between two: every call, and what is wrong.
//!
//! Invariant: what a call says of a message is what was sent.

mod common;

use common::{pattern, run};
use vmmc_mp::MpError;
use vmmc_nx::limits::{COPIED_BYTES_MAX, IDS_MAX, TYPE_FORCE, TYPE_MAX};
use vmmc_nx::{ANY, Info, Nx, NxError};

/// In the control message, in frames, and in parts; and none.
const SIZES: [usize; 5] = [0, 8, 5_000, 16_385, 300_000];

fn receive(nx: &Nx, typesel: i64) -> (Info, Vec<u8>) {
    let mut bytes = vec![0; 1 << 20];
    let info = nx.crecv(typesel, &mut bytes).expect("a message comes");
    bytes.truncate(info.count as usize);
    (info, bytes)
}

#[test]
fn messages_of_every_size_come_with_type_count_node_and_ptype() {
    for nodes in [1, 2] {
        run(nodes, 2, |nx| {
            let other = 1 - nx.mynode();
            for (ty, len) in SIZES.into_iter().enumerate() {
                let ty = ty as i64;
                // Both send first, and receive then.
                nx.csend(ty, &pattern(len, nx.mynode() as u64), other, 0).expect("it is sent");
                let (info, bytes) = receive(nx, ty);
                assert_eq!(info, Info { ty, count: len as i64, node: other, ptype: 0 });
                assert!(bytes == pattern(len, other as u64), "{len} bytes");
                let told = (nx.infotype(), nx.infocount(), nx.infonode(), nx.infoptype());
                assert_eq!(told, (ty, len as i64, other, 0));
                assert_eq!(info.to_array(), [ty, len as i64, other, 0, 0, 0, 0, 0]);
            }
        });
    }
}

#[test]
fn order_is_kept_across_short_and_long_messages_and_ways_to_send() {
    run(1, 2, |nx| {
        let other = 1 - nx.mynode();
        let len = |number: usize| if number % 3 == 0 { 100_000 } else { number };
        let mut ids = Vec::new();
        for number in 0..30 {
            let bytes = pattern(len(number), number as u64);
            match number % 2 {
                0 => nx.csend(1, &bytes, other, 0).expect("it is sent"),
                _ => ids.push(nx.isend(1, bytes, other, 0).expect("it begins")),
            }
        }
        for number in 0..30 {
            assert!(receive(nx, 1).1 == pattern(len(number), number as u64), "message {number}");
        }
        ids.into_iter().for_each(|id| drop(nx.msgwait(id).expect("it has gone")));
    });
}

#[test]
fn a_message_is_selected_by_type_node_and_ptype() {
    run(2, 3, |nx| {
        if nx.mynode() == 0 {
            nx.setptype(9).expect("it is one");
            assert_eq!(nx.myptype(), 9);
            nx.gsync().expect("all are there");
            let mut byte = [0];
            let of = |node, ptype, byte: &mut [u8; 1]| nx.crecvx(5, byte, node, ptype).expect("it comes");
            assert_eq!((of(2, ANY, &mut byte).ptype, byte), (2, [2]));
            assert_eq!((of(ANY, 1, &mut byte).node, byte), (1, [1]));
            let info = nx.crecv(TYPE_FORCE, &mut byte).expect("a force type is as others");
            assert_eq!((info.ptype, byte), (2, [12]));
            // Each has sent one more to a process type that is not here.
            assert_eq!(nx.iprobe(ANY), Ok(None));
            nx.setptype(0).expect("it is one");
            let mut nodes = [0, 0].map(|_| nx.crecv(TYPE_MAX, &mut byte).expect("it waits for this type").node);
            nodes.sort_unstable();
            assert_eq!(nodes, [1, 2]);
        } else {
            nx.setptype(nx.mynode()).expect("it is one");
            let byte = nx.mynode() as u8;
            nx.csend(TYPE_MAX, &[byte], 0, 0).expect("it is sent");
            nx.csend(5, &[byte], 0, 9).expect("it is sent");
            if byte == 2 {
                nx.csend(TYPE_FORCE, &[12], 0, 9).expect("it is sent");
            }
            nx.gsync().expect("all are there");
        }
    });
}

#[test]
fn node_minus_one_is_all_others() {
    run(2, 4, |nx| {
        let long = pattern(50_000, nx.mynode() as u64);
        nx.csend(1, &long, ANY, 0).expect("it is sent");
        let id = nx.isend(2, long, ANY, 0).expect("it begins");
        for ty in [1, 2] {
            let mut nodes = [0, 0, 0].map(|_| receive(nx, ty)).map(|(info, bytes)| {
                assert!(bytes == pattern(50_000, info.node as u64));
                info.node
            });
            nodes.sort_unstable();
            let others: Vec<i64> = (0..4).filter(|node| *node != nx.mynode()).collect();
            assert_eq!(nodes[..], others[..]);
        }
        assert!(nx.msgwait(id).expect("it has gone").info().is_none());
        let next = (nx.mynode() + 1) % 4;
        nx.gsendx(3, b"some", &[next]).expect("it is sent");
        assert_eq!(receive(nx, 3).1, b"some");
    });
}

#[test]
fn ids_are_waited_for_looked_at_merged_ignored_and_cancelled() {
    run(1, 2, |nx| {
        let other = 1 - nx.mynode();
        // Posted before anything is sent.
        let first = nx.irecv(1, vec![0; 8]).expect("it begins");
        let second = nx.irecvx(2, vec![0; 100_000], other, 0).expect("it begins");
        let never = nx.irecv(3, vec![0; 8]).expect("it begins");
        let ignored = nx.irecv(4, vec![0; 8]).expect("it begins");
        assert!(nx.msgdone(first).expect("it is known").is_none());
        nx.gsync().expect("all are there");
        nx.msgignore(ignored).expect("it is known");
        for ty in [4, 1] {
            nx.csend(ty, b"short", other, 0).expect("it is sent");
        }
        let sent = nx.isend(2, pattern(100_000, 1), other, 0).expect("it begins");
        let done = nx.msgwait(first).expect("it comes");
        assert_eq!((done.bytes(), done.info().map(|info| info.ty)), (&b"short"[..], Some(1)));
        assert_eq!(nx.msgmerge(ANY, sent), Ok(sent));
        let both = nx.msgmerge(sent, second).expect("they are two");
        assert_eq!(nx.msgmerge(both, both), Err(NxError::Id { id: both }));
        let done = loop {
            if let Some(done) = nx.msgdone(both).expect("it goes on") {
                break done;
            }
        };
        assert!(done.bytes() == pattern(100_000, 1) && nx.infotype() == 2);
        assert_eq!(done.into_received().len(), 1);
        nx.msgcancel(never).expect("nothing has happened");
        for id in [first, second, sent, both, never, ignored, 0, -5] {
            let wrong = NxError::Id { id };
            assert_eq!(nx.msgwait(id).expect_err("it is used up"), wrong);
            assert_eq!(nx.msgdone(id).expect_err("it is used up"), wrong);
            assert_eq!(nx.msgcancel(id), Err(wrong.clone()));
            assert_eq!(nx.msgignore(id), Err(wrong.clone()));
            assert_eq!(nx.msgmerge(id, ANY), Err(wrong));
        }
        nx.gsync().expect("all are there");
        // What was ignored was received all the same, and what was cancelled was not.
        assert_eq!(nx.iprobe(4), Ok(None));
        nx.csend(3, b"later", other, 0).expect("it is sent");
        assert_eq!(receive(nx, 3).1, b"later");
    });
}

#[test]
fn ids_can_be_used_up_and_come_back() {
    run(1, 1, |nx| {
        let ids: Vec<i64> = (0..IDS_MAX).map(|_| nx.irecv(1, [0u8; 1]).expect("there is one")).collect();
        assert_eq!(nx.irecv(1, [0u8; 1]), Err(NxError::IdsUsedUp));
        assert_eq!(nx.isend(1, [0u8; 1], 0, 0), Err(NxError::IdsUsedUp));
        nx.msgignore(ids[0]).expect("it is known");
        assert_eq!(nx.irecv(1, [0u8; 1]), Err(NxError::IdsUsedUp));
        nx.csend(1, b"x", 0, 0).expect("it is sent");
        let more = loop {
            // The one ignored is over as soon as the message is here.
            match nx.irecv(2, [0u8; 1]) {
                Ok(id) => break id,
                Err(error) => assert_eq!(error, NxError::IdsUsedUp),
            }
        };
        ids[1..].iter().chain([&more]).for_each(|id| nx.msgcancel(*id).expect("it is known"));
    });
}

#[test]
fn a_message_sent_and_received_in_one_call() {
    run(2, 2, |nx| {
        let other = 1 - nx.mynode();
        let own = pattern(400_000, nx.mynode() as u64);
        let mut room = vec![0; 400_000];
        let info = nx.csendrecv(1, &own, other, 0, 1, &mut room).expect("both go");
        assert!(info.node == other && room == pattern(400_000, other as u64));
        let id = nx.isendrecv(2, own.clone(), other, 0, 2, room).expect("it begins");
        assert!(nx.msgwait(id).expect("both go").bytes() == pattern(400_000, other as u64));
        let info = nx.csendrecv(3, b"all", ANY, 0, 3, &mut [0; 3]).expect("both go");
        assert_eq!((info.ty, info.count), (3, 3));
    });
}

#[test]
fn what_waits_is_probed_for_and_flushed() {
    run(1, 2, |nx| {
        let other = 1 - nx.mynode();
        assert_eq!(nx.iprobe(ANY), Ok(None));
        nx.gsync().expect("all are there");
        for ty in [1, 2, 1, 3] {
            nx.csend(ty, &pattern(20_000 * ty as usize, 0), other, 0).expect("it is sent");
        }
        let info = Info { ty: 3, count: 60_000, node: other, ptype: 0 };
        assert_eq!(nx.cprobe(3), Ok(info));
        assert_eq!((nx.cprobex(3, other, 0), nx.iprobex(3, other, 0), nx.info()), (Ok(info), Ok(Some(info)), info));
        assert_eq!(nx.iprobex(3, nx.mynode(), ANY), Ok(None));
        nx.flushmsg(1, ANY, ANY).expect("they are dropped");
        assert_eq!(nx.iprobe(1), Ok(None));
        nx.flushmsg(ANY, nx.mynode(), ANY).expect("there are none");
        assert_eq!(receive(nx, ANY).0.ty, 2);
        nx.flushmsg(ANY, ANY, ANY).expect("it is dropped");
        nx.gsync().expect("all are there");
        assert_eq!(nx.iprobe(ANY), Ok(None));
    });
}

#[test]
fn a_message_longer_than_its_buffer_is_an_error_and_the_next_one_comes() {
    run(1, 2, |nx| {
        let other = 1 - nx.mynode();
        for len in [5, 30_000] {
            nx.csend(1, &pattern(len, 0), other, 0).expect("it is sent");
            nx.csend(1, b"next", other, 0).expect("it is sent");
            let mut room = [7; 8];
            let wrong = NxError::TooLong { ty: 1, node: other, len: len as u64, room: 4 };
            assert_eq!(nx.crecv(1, &mut room[..4]), Err(wrong));
            assert_eq!(room[4..], [7; 4]);
            assert_eq!(receive(nx, 1).1, b"next");
        }
        nx.csend(1, b"eight by", other, 0).expect("it is sent");
        let id = nx.irecv(1, vec![0; 7]).expect("it begins");
        let wrong = NxError::TooLong { ty: 1, node: other, len: 8, room: 7 };
        assert_eq!(nx.msgwait(id).expect_err("it is too long"), wrong);
    });
}

#[test]
fn wrong_numbers_are_errors_before_anything_happens() {
    run(1, 2, |nx| {
        let (node, ty) = (NxError::Node { node: 2, count: 2 }, NxError::Type { ty: 2_000_000_000 });
        assert_eq!(nx.csend(1, b"x", 2, 0), Err(node.clone()));
        assert_eq!(nx.isend(1, *b"x", 2, 0), Err(node.clone()));
        assert_eq!(nx.gsendx(1, b"x", &[0, 2]), Err(node.clone()));
        assert_eq!(nx.crecvx(1, &mut [], 2, ANY), Err(node.clone()));
        assert_eq!(nx.csend(2_000_000_000, b"x", 1, 0), Err(ty));
        assert_eq!(nx.csend(1, b"x", 1, -1), Err(NxError::Ptype { ptype: -1 }));
        assert_eq!(nx.setptype(70_000), Err(NxError::Ptype { ptype: 70_000 }));
        assert_eq!(nx.cprobe(-2), Err(NxError::Selector { what: "type", value: -2 }));
        nx.gsync().expect("all are there");
        assert_eq!(nx.iprobe(ANY), Ok(None));
    });
}

#[test]
fn copies_are_bounded_and_go_before_their_process_does() {
    run(1, 2, |nx| {
        let len = 1 << 20;
        if nx.mynode() == 0 {
            // The last one is more than there are copies of, and waits.
            for number in 0..=COPIED_BYTES_MAX / len {
                nx.csend(1, &pattern(len, number as u64), 1, 0).expect("it is sent");
            }
            assert!(nx.messages().counts().expect("they are ours").asked > 0);
        } else {
            nx.cprobe(1).expect("they come");
            for number in 0..=COPIED_BYTES_MAX / len {
                assert!(receive(nx, 1).1 == pattern(len, number as u64), "message {number}");
            }
        }
    });
}

#[test]
fn a_process_that_leaves_is_an_error_of_those_who_wait_for_it_and_its_messages_come() {
    let nodes = common::Nodes::start(1);
    let name = common::unique("leaves");
    std::thread::scope(|scope| {
        let leaver = scope.spawn(|| {
            let nx = nodes.process(&name, 1, 2);
            nx.csend(1, &pattern(100_000, 1), 0, 0).expect("it is sent");
        });
        let nx = nodes.process(&name, 0, 2);
        assert!(receive(&nx, 1).1 == pattern(100_000, 1));
        leaver.join().expect("it leaves well");
        let gone = nx.crecvx(1, &mut [], 1, ANY).expect_err("nobody sends any more");
        assert!(matches!(gone, NxError::Messages(MpError::Gone { rank: 1, .. })), "{gone}");
    });
}

/// A buffer that counts what it is told.
struct Counted(Vec<u8>, std::sync::Arc<std::sync::Mutex<Vec<Info>>>);

impl vmmc_nx::Buffer for Counted {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn received(&mut self, info: &Info) {
        self.1.lock().expect("no panic while it is held").push(*info);
    }
}

#[test]
fn a_buffer_is_told_once_of_its_message_whoever_asks() {
    run(1, 1, |nx| {
        let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        for (ty, looks) in [(1, true), (2, false)] {
            let id = nx.irecv(ty, Counted(vec![0; 9], told.clone())).expect("it begins");
            nx.csend(ty, b"four", 0, 0).expect("it is sent");
            while looks && nx.msgdone(id).expect("it is known").is_none() {}
            if !looks {
                assert_eq!(nx.msgwait(id).expect("it comes").bytes(), b"four");
            }
        }
        let info = |ty| Info { ty, count: 4, node: 0, ptype: 0 };
        assert_eq!(*told.lock().expect("no panic while it is held"), [info(1), info(2)]);
    });
}
