//! A user who takes all there is towards a node, and another who shares both nodes with him.
//!
//! Nobody lies here.

use super::*;
use vmmc_nic::Rights;

/// A process of a user that takes all it gets.
pub(crate) struct Taker {
    pub(crate) process: Raw,
    /// Of its last request.
    pub(crate) serial: u64,
    /// Requests that had no answer yet.
    pub(crate) open: u64,
    pub(crate) imports: Vec<u64>,
    pub(crate) refusals: u64,
    pub(crate) refusal: Option<Refusal>,
}

impl Taker {
    pub(crate) fn ask(&mut self, call: &Call) {
        self.serial += 1;
        let bytes = encode(&Request { serial: self.serial, call: call.clone() });
        raw::wait(&nap, || {
            self.process.channel.try_send(&bytes, &[]).ok().or_else(|| {
                self.read();
                None
            })
        });
        self.open += 1;
        self.read();
    }

    pub(crate) fn read(&mut self) {
        while let Ok((bytes, _)) = self.process.channel.try_receive() {
            self.open -= 1;
            match decode::<Reply>(&bytes).unwrap().result {
                Ok(Answer::Imported(grant)) => self.imports.push(grant.import),
                Ok(other) => panic!("{other:?}"),
                Err(refusal) => {
                    self.refusals += 1;
                    self.refusal = Some(refusal);
                }
            }
        }
    }

    /// Waits until no more than this is unanswered, or for some seconds.
    pub(crate) fn settle(&mut self, open: u64) {
        let end = Instant::now() + Duration::from_secs(3);
        while self.open > open && Instant::now() < end {
            nap();
            self.read();
        }
    }

    /// Fills its command ring with long fetches.
    pub(crate) fn fetch(&mut self, memory: &Registered) {
        let Some(&import) = self.imports.first() else { return };
        while self.process.try_completion().is_some() {}
        while let Some(slot) = self.process.commands.claim() {
            let mut fetch = RawCommand::new(Op::Fetch, import);
            (fetch.region, fetch.len) = (memory.id.into(), memory.region.len_bytes());
            fetch.publish(slot, &[]);
        }
        self.process.ring();
    }
}

#[test]
fn a_user_that_takes_all_there_is_towards_a_node_leaves_enough_to_another() {
    const TAKERS: usize = 6;
    const WAITS: usize = 20_000;
    // All of its share in a run that may take longer than some seconds.
    let imports: usize = if std::env::var_os("VMMC_HOSTILE_SECONDS").is_some() { 70_000 } else { 6_000 };
    let Some(wire) = Wire::new() else { return };
    let (near, far, _stranger) = pair(&wire, Some(KEY));
    let takers: Vec<Channel> = (0..TAKERS).map(|_| near.try_connect(&wire, HOSTILE).unwrap()).collect();
    let [owner] = [far.try_connect(&wire, VICTIM).unwrap()];
    let over = AtomicBool::new(false);
    let (owned, open) = mpsc::channel();
    let (full, go) = mpsc::channel();
    std::thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || {
            become_user(VICTIM);
            let mut owner = Raw::over(owner, Rc::new(nap));
            let memory = owner.register(64 << 10);
            let Call::Export { name, region, offset, len, rights, notify, redirectable, kind, mappable, .. } =
                Raw::export_call(&memory, OPEN[0])
            else {
                unreachable!()
            };
            let access = Access::Anyone;
            let call = Call::Export { name, region, offset, len, rights, access, notify, redirectable, kind, mappable };
            assert!(matches!(owner.call(call), Ok(Answer::Exported { .. })));
            owned.send(()).unwrap();
            while !over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let hostile = scope.spawn(move || {
            become_user(HOSTILE);
            open.recv().unwrap();
            let attach = |channel| {
                let process = Raw::over(channel, Rc::new(nap));
                Taker { process, serial: 1 << 32, open: 0, imports: Vec::new(), refusals: 0, refusal: None }
            };
            let mut takers: Vec<(Taker, Registered)> = takers
                .into_iter()
                .map(|channel| {
                    let mut taker = attach(channel);
                    let memory = taker.process.register(64 << 10);
                    (taker, memory)
                })
                .collect();
            let call = |name: &str, wait| Call::Import {
                node: Some(address(FAR).to_string()),
                what: What::Name(name.into()),
                owner: Owner::Any,
                rights: Rights::ALL.bits(),
                wait,
                timeout_ms: 120_000,
                own_order: false,
            };
            let start = Instant::now();
            let (open, never) = (call(OPEN[0], false), call("never", true));
            for (taker, _) in &mut takers {
                for number in 0..imports / TAKERS {
                    taker.ask(&open);
                    if number % 512 == 0 {
                        taker.settle(0);
                    }
                    if taker.refusal.is_some() {
                        break;
                    }
                }
                taker.settle(0);
            }
            let imported: usize = takers.iter().map(|(taker, _)| taker.imports.len()).sum();
            println!("{imported} imports within {:?}: {:?}", start.elapsed(), takers[TAKERS - 1].0.refusal);
            for (taker, _) in &mut takers {
                taker.refusal = None;
                for _ in 0..WAITS / TAKERS {
                    taker.ask(&never);
                    if taker.refusal.is_some() {
                        break;
                    }
                }
            }
            // The last of them are still to be refused.
            takers[TAKERS - 1].0.settle(0);
            let waiting: u64 = takers.iter().map(|(taker, _)| taker.open).sum();
            println!("{waiting} waits within {:?}: {:?}", start.elapsed(), takers[TAKERS - 1].0.refusal);
            assert!(imported > 1_000 && waiting > 1_000);
            full.send(()).unwrap();
            while !over.load(Ordering::SeqCst) {
                for (taker, memory) in &mut takers {
                    taker.fetch(memory);
                    taker.read();
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let (near, far, wire) = (&near, &far, &wire);
        let honest = scope.spawn(move || {
            let _over = Over(over);
            if go.recv().is_err() {
                return;
            }
            let channels = [far, near].map(|node| (node, node.try_connect(wire, HONEST).unwrap()));
            as_user(HONEST, || {
                let start = Instant::now();
                let mut honest = Honest::new(channels);
                let took = start.elapsed();
                let end = Instant::now() + hostile_time();
                while Instant::now() < end {
                    honest.exchange();
                }
                println!("an import took {took:?}, {} exchanges {:?} at most", honest.count, honest.longest);
                assert!(took < SERVED && honest.longest < SERVED, "{took:?}, {:?}", honest.longest);
            });
        });
        honest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        hostile.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
