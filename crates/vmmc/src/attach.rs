//! The way from nothing to a session: reach a node, start one if none runs, shake hands, watch it.
//!
//! Invariant: the other side is our own user or root, as the kernel says, or a node inside this
//! process.

use crate::bell::Bell;
use crate::collector::Collector;
use crate::control::{Answered, Control};
use crate::core::{Core, Counters};
use crate::error::{AttachError, CallError};
use crate::hub::Hub;
use crate::imports::Imports;
use crate::mapped::Hot;
use crate::peers::Peers;
use crate::pins::Pins;
use crate::redirects::Redirects;
use crate::regions::Regions;
use crate::session::{NodeIdentity, SessionBuilder};
use crate::slots::Slots;
use crate::staging::Staging;
use crate::start;
use crate::trace::Tracer;
use crate::waiting::Waiting;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use vmmc_host::channel::{ChannelError, node_socket_name};
use vmmc_host::control::{Answer, CONTROL_VERSION, Call, Refusal, RefusalCode};
use vmmc_host::fork::ForkWord;
use vmmc_host::wait::{Deadline, Waiter, patience};
use vmmc_host::{AttachArea, Attachment, Channel, NotifyBell, WakeReceiver};

/// Connects to the node, starting it if need be and allowed.
pub(crate) fn reach(choices: &SessionBuilder) -> Result<Attachment, AttachError> {
    let uid = rustix::process::geteuid().as_raw();
    let node = &choices.node;
    let deadline = Deadline::after(patience().timeout.unwrap_or(choices.timeout));
    let channel = match connect(uid, node, deadline) {
        Err(ChannelError::NoListener { .. }) if choices.start => start::start(uid, node)?,
        Err(ChannelError::NoListener { .. }) => return Err(AttachError::NoNode { node: node.clone(), uid }),
        Err(error) => return Err(AttachError::System { node: node.clone(), why: error.to_string() }),
        Ok(channel) => channel,
    };
    let owner = channel.peer().map_err(|e| AttachError::System { node: node.clone(), why: e.to_string() })?.uid;
    if owner != uid && owner != 0 {
        return Err(AttachError::ForeignNode { node: node.clone(), uid, owner });
    }
    Ok(Attachment::to_daemon(channel))
}

/// The user's own node of that name, else that of the system, which root runs for everybody.
fn connect(uid: u32, node: &str, deadline: Deadline) -> Result<Channel, ChannelError> {
    match Channel::connect_until(&node_socket_name(uid, node), deadline) {
        Err(ChannelError::NoListener { .. }) if uid != 0 => {
            Channel::connect_until(&node_socket_name(0, node), deadline)
        }
        // A stranger has taken the name of our node: that keeps nobody from the system's.
        Ok(stranger) if uid != 0 && stranger.peer().is_ok_and(|who| who.uid != uid && who.uid != 0) => {
            Ok(Channel::connect_until(&node_socket_name(0, node), deadline).unwrap_or(stranger))
        }
        other => other,
    }
}

/// Shakes hands and builds the session's inside.
pub(crate) fn attach(choices: SessionBuilder, attachment: Attachment) -> Result<Arc<Core>, AttachError> {
    let waiter = attachment.waiter();
    let node_pid = attachment.channel.peer().map_or(0, |peer| peer.pid);
    let control = Control::new(attachment.channel, waiter.clone(), choices.node.clone());
    let deadline = waiter.deadline(patience().timeout.unwrap_or(choices.timeout));
    let answer = control.call(Call::Attach { version: CONTROL_VERSION }, &[], deadline);
    let answered = answer.map_err(|error| refused(&choices.node, node_pid, error))?;
    let core = Arc::new(build(&choices, control, waiter.clone(), answered)?);
    if !waiter.steps() {
        watch(&core).map_err(|why| AttachError::System { node: choices.node, why: why.to_string() })?;
    }
    Ok(core)
}

fn refused(node: &str, pid: u32, error: CallError) -> AttachError {
    match error {
        CallError::Refused(Refusal { code: RefusalCode::Version, message }) => {
            AttachError::Version { node: node.into(), pid, why: message }
        }
        error => AttachError::Call { node: node.into(), error },
    }
}

fn build(
    choices: &SessionBuilder,
    control: Control,
    waiter: Waiter,
    (answer, fds): Answered,
) -> Result<Core, AttachError> {
    let system = |why: String| AttachError::System { node: choices.node.clone(), why };
    let Answer::Attached { version: CONTROL_VERSION, process, node, listen } = answer else {
        return Err(system("the node gave a wrong answer".into()));
    };
    let Ok([area, bell, wake, doorbell, events]) = <[OwnedFd; 5]>::try_from(fds) else {
        return Err(system("the node did not send its five descriptors".into()));
    };
    let area = AttachArea::open(area).map_err(|e| system(e.to_string()))?;
    let bell = NotifyBell::open(bell).map_err(|e| system(e.to_string()))?;
    let events_end = events.try_clone().map_err(|e| system(e.to_string()))?;
    let waiting = Waiting::new(waiter, WakeReceiver::from_fd(wake)).map_err(|e| system(e.to_string()))?;
    let state = ForkWord::new().map_err(|e| system(e.to_string()))?;
    let tracer = Tracer::wanted(choices.trace.as_deref())
        .map_err(|(path, e)| system(format!("the trace {} cannot be written: {e}", path.display())))?;
    Ok(Core {
        identity: NodeIdentity { name: node, listen },
        process,
        pid: std::process::id(),
        timeout: choices.timeout,
        commands: Mutex::new(area.command_producer()),
        collector: Mutex::new(Collector::new(&area, Channel::from_fd(events))),
        hot: Arc::new(Hot::new(area, state, process, tracer)),
        bell: Bell::new(bell),
        control,
        doorbell,
        waiting,
        slots: Slots::new(),
        staging: Staging::new(),
        pins: Pins::default(),
        hub: Hub::default(),
        imports: Imports::default(),
        redirects: Redirects::default(),
        peers: Peers::default(),
        regions: Regions::default(),
        counters: Counters::default(),
        event_loop: Default::default(),
        events_end,
    })
}

/// Starts the thread that reads events while nobody waits, and sees the death of the node. It
/// sleeps in the kernel otherwise.
fn watch(core: &Arc<Core>) -> std::io::Result<()> {
    let events = core.events_end.try_clone()?;
    let core = Arc::downgrade(core);
    std::thread::Builder::new().name("vmmc-events".into()).spawn(move || monitor(&core, &events)).map(drop)
}

fn monitor(core: &Weak<Core>, events: &OwnedFd) {
    loop {
        // An interrupted poll only means one more read of the events.
        let _ = poll(&mut [PollFd::from_borrowed_fd(events.as_fd(), PollFlags::IN)], None);
        let Some(core) = core.upgrade() else { return };
        core.collector.lock().expect("no panic while the lock is held").read_events(&core);
        core.waiting.delivered();
        if core.usable().is_err() {
            return;
        }
    }
}
