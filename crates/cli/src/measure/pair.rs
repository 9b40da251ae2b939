//! Two workers, as their coordinator sees them.
//!
//! Invariant: a pair that failed in a measurement is not used again: its two halves may no longer
//! agree on where they are.

use super::stats::Sample;
use super::task::{Answer, Move, MoveBy, Moved, NodeOrder, Order, Role, Setting, Task, Waker, Work};
use super::{TaskError, kernel, limit};
use crate::limits::{MEASUREMENT_WAIT, NODE_WAIT};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vmmc_host::channel::Channel;
use vmmc_host::{Deadline, Region, control};

/// This program again, started with a channel to us as standard input; it is killed when dropped.
pub(crate) struct Helper {
    child: Child,
    channel: Channel,
}

impl Helper {
    /// Starts it with these arguments.
    pub(crate) fn start(arguments: &[String]) -> Result<Helper, TaskError> {
        let (ours, theirs) = Channel::pair()?;
        let child = Command::new("/proc/self/exe")
            .args(arguments)
            .stdin(Stdio::from(theirs.into_fd()))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Helper { child, channel: ours })
    }

    fn order(&self, order: &Order, fds: &[OwnedFd]) -> Result<(), TaskError> {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        Ok(self.channel.send(&control::encode(order), &fds, Deadline::after(NODE_WAIT))?)
    }

    fn answer(&self, within: Duration) -> Result<Answer, TaskError> {
        let (bytes, _) = self.channel.receive(Deadline::after(within))?;
        control::decode(&bytes).map_err(|e| TaskError::Protocol(e.to_string()))
    }
}

/// A worker, on one processor if told so.
fn worker(core: Option<usize>) -> Result<Helper, TaskError> {
    let place = core.map(|core| ["--core".into(), core.to_string()]);
    Helper::start(&[&["worker".into()][..], place.as_ref().map_or(&[], |place| &place[..])].concat())
}

/// A node daemon that lives as long as the measurement.
pub(crate) struct TemporaryNode {
    /// Its name.
    pub(crate) name: String,
    /// UDP addresses that it listens on.
    pub(crate) addresses: Vec<String>,
    helper: Helper,
}

impl TemporaryNode {
    /// Starts it, on one processor if told so, and waits until processes can attach.
    pub(crate) fn start(order: NodeOrder, core: Option<usize>) -> Result<TemporaryNode, TaskError> {
        let helper = worker(core)?;
        let name = order.name.clone();
        helper.order(&Order::Node(order), &[])?;
        match helper.answer(NODE_WAIT)? {
            Answer::Node(addresses) => Ok(TemporaryNode { name, addresses, helper }),
            Answer::Failed(why) => Err(TaskError::Protocol(why)),
            _ => Err(TaskError::Protocol("a node gave an answer of the wrong kind".into())),
        }
    }

    /// Process id of the daemon.
    pub(crate) fn pid(&self) -> u32 {
        self.helper.child.id()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Closing the channel ends it; the kill is for one that hangs.
        self.channel.shut_down();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A leader and a follower on two processors.
pub(crate) struct Pair {
    leader: Helper,
    follower: Helper,
    broken: Option<String>,
}

/// Numbers of tasks of this coordinator.
static TASKS: AtomicU64 = AtomicU64::new(1);

impl Pair {
    /// Starts both, for leader and follower with these settings.
    pub(crate) fn start(leader: Setting, follower: Setting) -> Result<Pair, TaskError> {
        let (first, second) = crate::machine::core_pair();
        let pair = Pair { leader: worker(Some(first))?, follower: worker(Some(second))?, broken: None };
        let (a, b) = Channel::pair()?;
        pair.leader.order(&Order::Meet(leader), &[a.into_fd()])?;
        pair.follower.order(&Order::Meet(follower), &[b.into_fd()])?;
        for half in [&pair.leader, &pair.follower] {
            match half.answer(NODE_WAIT)? {
                Answer::Met => {}
                Answer::Failed(why) => return Err(TaskError::Protocol(why)),
                _ => return Err(TaskError::Protocol("a worker answered before it was asked".into())),
            }
        }
        Ok(pair)
    }

    /// Measures once.
    pub(crate) fn measure(&mut self, work: &Work, size: u64, budget: Duration) -> Result<Sample, TaskError> {
        if let Some(why) = &self.broken {
            return Err(TaskError::Protocol(format!("not measured after an earlier failure: {why}")));
        }
        let result = self.try_measure(work, size, budget);
        if let Err(e) = &result {
            self.broken = Some(e.to_string());
        }
        result
    }

    /// Moves a file from the leader to the follower, and says what both sides found. `progress`
    /// receives the bytes so far now and then.
    pub(crate) fn move_file(
        &mut self,
        file: &str,
        by: MoveBy,
        mut progress: impl FnMut(u64),
    ) -> Result<(Moved, Moved), TaskError> {
        let number = TASKS.fetch_add(1, Ordering::Relaxed);
        let order = |role| Order::Move(Move { role, file: file.into(), by, number });
        self.follower.order(&order(Role::Follow), &[])?;
        self.leader.order(&order(Role::Lead), &[])?;
        let lead = loop {
            match self.leader.answer(MEASUREMENT_WAIT)? {
                Answer::Progress(bytes) => progress(bytes),
                other => break other,
            }
        };
        match (lead, self.follower.answer(MEASUREMENT_WAIT)?) {
            (Answer::Moved(sent), Answer::Moved(received)) => Ok((sent, received)),
            (Answer::Failed(why), _) | (_, Answer::Failed(why)) => Err(TaskError::Protocol(why)),
            _ => Err(TaskError::Protocol("a worker gave an answer of the wrong kind".into())),
        }
    }

    fn try_measure(&mut self, work: &Work, size: u64, budget: Duration) -> Result<Sample, TaskError> {
        let number = TASKS.fetch_add(1, Ordering::Relaxed);
        let task = |role| Order::Run(Task { role, work: work.clone(), size, budget, number });
        let (leaders, followers) = descriptors(work)?;
        self.follower.order(&task(Role::Follow), &followers)?;
        self.leader.order(&task(Role::Lead), &leaders)?;
        // From here on only the workers hold the transport, so each sees the other's end.
        drop((leaders, followers));
        let lead = self.leader.answer(MEASUREMENT_WAIT);
        // A leader that failed says why; its follower then only says that the leader was silent.
        if let Ok(Answer::Failed(why)) = lead {
            return Err(TaskError::Protocol(why));
        }
        let follow = self.follower.answer(MEASUREMENT_WAIT)?;
        match (lead?, follow) {
            (Answer::Done(Some(sample)), Answer::Done(None)) => Ok(sample),
            (_, Answer::Failed(why)) => Err(TaskError::Protocol(why)),
            _ => Err(TaskError::Protocol("a worker gave an answer of the wrong kind".into())),
        }
    }
}

/// Descriptors that a task needs, for leader and follower.
fn descriptors(work: &Work) -> Result<(Vec<OwnedFd>, Vec<OwnedFd>), TaskError> {
    match work {
        Work::Kernel { transport, .. } => kernel::descriptors(*transport),
        Work::CacheLine => {
            let region = shared_region()?;
            Ok((vec![share(&region)?], vec![share(&region)?]))
        }
        Work::Wake { by: Waker::Futex | Waker::Pipe, .. } => {
            let region = shared_region()?;
            let (out, into) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
            Ok((vec![share(&region)?, into], vec![share(&region)?, out]))
        }
        Work::PassDescriptor => {
            let region = shared_region()?;
            let (a, b) = limit::packet_pair()?;
            Ok((vec![share(&region)?, a], vec![share(&region)?, b]))
        }
        Work::Vmmc(super::task::Vmmc::Notify { .. }) => {
            let region = shared_region()?;
            Ok((vec![share(&region)?], vec![share(&region)?]))
        }
        Work::Memcpy { .. } | Work::LocalAtomic | Work::Vmmc(_) => Ok((vec![], vec![])),
    }
}

fn shared_region() -> Result<Region, TaskError> {
    Region::create(limit::SHARED_BYTES).map_err(|e| TaskError::Protocol(e.to_string()))
}

fn share(region: &Region) -> Result<OwnedFd, TaskError> {
    region.share().map_err(|e| TaskError::Protocol(e.to_string()))
}
