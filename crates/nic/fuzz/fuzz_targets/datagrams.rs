//! Any datagrams at a plain engine: the input is cut into pieces, each with its length in front.
#![no_main]

use vmmc_nic::*;

struct Nowhere;

impl Dma for Nowhere {
    fn deposit(&mut self, _: RegionRef, _: u64, _: &[u8]) {}
    fn gather(&mut self, _: RegionRef, _: u64, out: &mut [u8]) {
        out.fill(0);
    }
    fn copy(&mut self, _: RegionRef, _: u64, _: RegionRef, _: u64, _: u64) {}
    fn atomic(&mut self, _: RegionRef, _: u64, _: AtomicOp) -> u64 {
        0
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let name = NodeName::parse("fuzzed").expect("a name");
    let mut engine = Engine::new(Config::new(name), [1; 32], Time::ZERO);
    let (mut rest, mut now) = (data, Time::ZERO);
    let mut buf = vec![0; 65_536];
    while let Some((len, tail)) = rest.split_first() {
        let (piece, tail) = tail.split_at(tail.len().min(usize::from(*len)));
        let from = std::net::SocketAddr::from(([10, 0, 0, 1], 7_000));
        engine.handle_datagram(now, from, &mut piece.to_vec(), &mut Nowhere);
        while engine.poll_transmit(now, &mut buf, &mut Nowhere).is_some() {}
        now = now + std::time::Duration::from_millis(1);
        engine.handle_timeout(now);
        rest = tail;
    }
});
