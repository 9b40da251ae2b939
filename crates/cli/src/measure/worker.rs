//! A worker: this program again, started by a coordinator, with a channel to it as standard input.
//!
//! Invariant: it ends as soon as the coordinator's end of the channel closes, whatever it is doing
//! then.

use super::kernel::{self, End};
use super::limit::{self, CacheLine, Sleep};
use super::ping::{Flow, Ping};
use super::side::Side;
use super::stats::Sample;
use super::task::{Answer, Measure, NodeOrder, Order, Role, Setting, Task, Work};
use super::vmmc::{Attached, temporary_node};
use super::{TaskError, ping};
use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use vmmc_host::channel::{Channel, ChannelError};
use vmmc_host::{Deadline, control};

/// Runs until the coordinator is gone.
pub(crate) fn run(core: Option<usize>) -> Result<(), Failure> {
    if let Some(core) = core {
        crate::machine::pin(core);
    }
    let orders = channel_to_coordinator()?;
    let by_hand = || Failure::Usage("this command is started by `vmmc bench` and `vmmc demo` only".into());
    let (first, mut fds) = receive_order(&orders).map_err(|_| by_hand())?;
    match (first, fds.pop()) {
        (Order::Meet(setting), Some(side)) => serve(&orders, &setting, Side::over(Channel::from_fd(side))),
        (Order::Node(node), None) => run_node(&orders, &node),
        _ => Err(by_hand()),
    }
}

/// Measures and moves as ordered.
fn serve(orders: &Channel, setting: &Setting, side: Side) -> Result<(), Failure> {
    let attached = match Attached::new(setting, &side) {
        Ok(attached) => attached,
        Err(e) => return answer(orders, &Answer::Failed(e.to_string())),
    };
    answer(orders, &Answer::Met)?;
    let worker = Worker { side, attached };
    loop {
        let outcome = match receive_order(orders)? {
            (Order::Run(task), fds) => worker.measure(&task, fds).map(Answer::Done),
            (Order::Move(order), _) => worker.attached().and_then(|a| {
                // A coordinator that does not listen is gone, and we end with it.
                a.move_file(&order, |bytes| drop(answer(orders, &Answer::Progress(bytes)))).map(Answer::Moved)
            }),
            (Order::Meet(_) | Order::Node(_), _) => Err(TaskError::Protocol("an order out of order came".into())),
        };
        answer(orders, &outcome.unwrap_or_else(|e| Answer::Failed(e.to_string())))?;
    }
}

/// Runs a node that ends with the coordinator.
fn run_node(orders: &Channel, order: &NodeOrder) -> Result<(), Failure> {
    let started = temporary_node(order)
        .and_then(|config| vmmc_node::Daemon::start(config).map_err(|e| TaskError::Protocol(e.to_string())));
    match started {
        Ok(daemon) => {
            let addresses = daemon.running().addresses.iter().map(ToString::to_string).collect();
            answer(orders, &Answer::Node(addresses))?;
            daemon.run().map_err(Failure::new)
        }
        Err(e) => answer(orders, &Answer::Failed(e.to_string())),
    }
}

/// The channel that is our standard input; a thread ends the process when it closes.
pub(crate) fn channel_to_coordinator() -> Result<Channel, Failure> {
    let fd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let watched = fd.try_clone()?;
    std::thread::spawn(move || {
        exit_when_closed(&watched);
    });
    Ok(Channel::from_fd(fd))
}

fn exit_when_closed(fd: &OwnedFd) -> ! {
    loop {
        // No event is asked for: hang-up and error are always reported.
        let mut fds = [PollFd::new(fd, PollFlags::empty())];
        match poll(&mut fds, None) {
            Ok(_) if !fds[0].revents().is_empty() => std::process::exit(0),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => std::process::exit(1),
        }
    }
}

fn receive_order(orders: &Channel) -> Result<(Order, Vec<OwnedFd>), Failure> {
    loop {
        match orders.receive(Deadline::after(Duration::from_secs(3600))) {
            Err(ChannelError::TimedOut) => {}
            Err(ChannelError::Closed) => std::process::exit(0),
            Ok((bytes, fds)) => return Ok((control::decode(&bytes).map_err(Failure::new)?, fds)),
            Err(other) => return Err(Failure::new(other)),
        }
    }
}

fn answer(orders: &Channel, answer: &Answer) -> Result<(), Failure> {
    let deadline = Deadline::after(crate::limits::PARTNER_WAIT);
    orders.send(&control::encode(answer), &[], deadline).map_err(Failure::new)
}

struct Worker {
    side: Side,
    attached: Option<Attached>,
}

impl Worker {
    fn attached(&self) -> Result<&Attached, TaskError> {
        self.attached.as_ref().ok_or_else(|| TaskError::Protocol("this worker was not told to attach to a node".into()))
    }

    fn measure(&self, task: &Task, fds: Vec<OwnedFd>) -> Result<Option<Sample>, TaskError> {
        match &task.work {
            Work::Kernel { transport, measure } => {
                let mut end = End::new(*transport, fds, task.size)?;
                match measure {
                    Measure::Latency => self.pings(&mut end, task),
                    Measure::Bandwidth => self.flow(&mut end, task, kernel::message_bytes(*transport, task.size)),
                }
            }
            Work::CacheLine => {
                let region = one_region(fds)?;
                self.pings(&mut CacheLine::of(&region, task.role), task)
            }
            Work::Memcpy { measure } => alone(task, || match measure {
                Measure::Latency => limit::copy_latency(task.size, task.budget),
                Measure::Bandwidth => limit::copy_bandwidth(task.size, task.budget),
            }),
            Work::LocalAtomic => alone(task, || limit::local_atomic(task.budget)),
            Work::Wake { by, asleep_us } => {
                let (region, pipe) = region_and_end(fds)?;
                let sleep = Sleep::new(&region, *by, pipe);
                match task.role {
                    Role::Lead => limit::lead_wakes(&sleep, Duration::from_micros(*asleep_us), task.budget).map(Some),
                    Role::Follow => limit::follow_wakes(&sleep).map(|()| None),
                }
            }
            Work::PassDescriptor => {
                let (region, socket) = region_and_end(fds)?;
                match task.role {
                    Role::Lead => limit::lead_descriptors(&socket, task.budget).map(Some),
                    Role::Follow => limit::follow_descriptors(&socket, &region).map(|()| None),
                }
            }
            Work::Vmmc(what) => self.attached()?.measure(what, task, &self.side, fds),
        }
    }

    /// Plays this worker's half of a ping-pong.
    fn pings<P: Ping>(&self, pings: &mut P, task: &Task) -> Result<Option<Sample>, TaskError> {
        match task.role {
            Role::Lead => ping::lead_pings(pings, &self.side, task.budget).map(Some),
            Role::Follow => ping::follow_pings(pings, &self.side).map(|()| None),
        }
    }

    /// Plays this worker's half of a stream of messages that have `size` bytes each.
    fn flow<F: Flow>(&self, flow: &mut F, task: &Task, size: u64) -> Result<Option<Sample>, TaskError> {
        match task.role {
            Role::Lead => ping::lead_flow(flow, &self.side, size, task.budget).map(Some),
            Role::Follow => ping::follow_flow(flow, &self.side).map(|()| None),
        }
    }
}

/// Work of the leader alone.
fn alone(task: &Task, work: impl FnOnce() -> Result<Sample, TaskError>) -> Result<Option<Sample>, TaskError> {
    match task.role {
        Role::Lead => work().map(Some),
        Role::Follow => Ok(None),
    }
}

fn one_region(mut fds: Vec<OwnedFd>) -> Result<vmmc_host::Region, TaskError> {
    let fd = fds.pop().ok_or_else(|| TaskError::Protocol("a region belongs to this task".into()))?;
    limit::shared(fd)
}

fn region_and_end(mut fds: Vec<OwnedFd>) -> Result<(vmmc_host::Region, OwnedFd), TaskError> {
    let end = fds.pop().ok_or_else(|| TaskError::Protocol("a descriptor belongs to this task".into()))?;
    Ok((one_region(fds)?, end))
}
