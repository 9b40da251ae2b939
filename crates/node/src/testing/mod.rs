//! What tests of this crate share: stations on a wire, and processes without a library.

mod raw;
#[allow(dead_code, reason = "shared with tests outside of the crate")]
mod wild;

use crate::station::{Station, StationConfig};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use vmmc_host::Channel;
use vmmc_nic::{ClusterKey, NodeName, Time};

pub(crate) use raw::{LONG, Raw, Registered, wait};
pub(crate) use wild::{HOSTILE, Noise, as_user, can_be_others, connection};

/// Stations joined by a wire that loses nothing, on a virtual clock.
pub(crate) struct World {
    pub(crate) stations: Vec<Station>,
    pub(crate) now: Time,
    buffer: Vec<u8>,
}

impl World {
    /// Stations named `n0`, `n1`, ... that know each other.
    pub(crate) fn new(count: usize, key: Option<[u8; 32]>) -> Rc<RefCell<World>> {
        World::with(count, key, |_| {})
    }

    /// As [`new`](Self::new), with other choices.
    pub(crate) fn with(count: usize, key: Option<[u8; 32]>, choose: impl Fn(&mut StationConfig)) -> Rc<RefCell<World>> {
        let now = Time::from_nanos(1_000_000_000);
        let stations = (0..count)
            .map(|i| {
                let mut config = StationConfig::new(NodeName::parse(&format!("n{i}")).unwrap());
                config.key = key.map(ClusterKey);
                config.listen = vec![address(i)];
                config.embedded = false;
                choose(&mut config);
                let services = crate::services::all(&config);
                let mut station = Station::new(config, [i as u8 + 1; 32], now).unwrap();
                services.into_iter().for_each(|service| station.add_service(service));
                (0..count).filter(|&j| j != i).for_each(|j| station.add_peer(now, &[address(j)]).unwrap());
                station
            })
            .collect();
        Rc::new(RefCell::new(World { stations, now, buffer: vec![0; 1 << 16] }))
    }

    /// Each station has its turn; the clock moves on.
    pub(crate) fn step(&mut self) {
        self.now = self.now + Duration::from_micros(50);
        for i in 0..self.stations.len() {
            self.stations[i].poll_control(self.now);
            self.stations[i].step(self.now);
            while let Some(transmit) = self.stations[i].poll_transmit(self.now, &mut self.buffer) {
                let to = (0..self.stations.len()).find(|&j| address(j) == transmit.to);
                if let Some(j) = to {
                    self.stations[j].handle_datagram(
                        self.now,
                        address(i),
                        transmit.codepoint,
                        &mut self.buffer[..transmit.len],
                    );
                }
            }
        }
    }
}

/// Address of a station in a world.
pub(crate) fn address(i: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, i as u8 + 1], 4000))
}

impl Raw {
    /// Attaches to a station of a world.
    pub(crate) fn attach(world: &Rc<RefCell<World>>, station: usize) -> Raw {
        Raw::attach_by(world, station, Channel::pair().unwrap())
    }

    /// The same as another user.
    pub(crate) fn attach_as(world: &Rc<RefCell<World>>, station: usize, uid: u32) -> Raw {
        Raw::attach_by(world, station, as_user(uid, || Channel::pair().unwrap()))
    }

    fn attach_by(world: &Rc<RefCell<World>>, station: usize, (theirs, ours): (Channel, Channel)) -> Raw {
        {
            let mut world = world.borrow_mut();
            let now = world.now;
            world.stations[station].accept(now, theirs).unwrap();
        }
        let world = world.clone();
        Raw::over(ours, Rc::new(move || world.borrow_mut().step()))
    }
}
