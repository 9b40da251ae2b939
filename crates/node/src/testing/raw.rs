//! A process as the node sees it: raw rings and control messages, no library.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use vmmc_host::abi::{COMMANDS, Completion, Op, RawCommand, RawNotification, flags};
use vmmc_host::control::ExportKind;
use vmmc_host::control::{
    Access, Answer, CONTROL_VERSION, Call, Grant, NodeEvent, Refusal, Reply, Request, What, decode, encode,
};
use vmmc_host::ring::{Consumer, Producer, RegionWords};
use vmmc_host::wait::{Deadline, Stepper, WakeReceiver};
use vmmc_host::{AttachArea, Channel, Nanos, NotifyBell, Region};
use vmmc_nic::Rights;

/// Longest wait of a test.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A process without a library.
pub(crate) struct Raw {
    pub(crate) channel: Channel,
    pub(crate) id: u32,
    pub(crate) area: AttachArea,
    pub(crate) bell: NotifyBell,
    pub(crate) wake: WakeReceiver,
    pub(crate) doorbell: OwnedFd,
    pub(crate) events: Channel,
    pub(crate) commands: Producer<RegionWords>,
    pub(crate) completions: Consumer<RegionWords>,
    notifications: Consumer<RegionWords>,
    serial: u64,
    pump: Rc<dyn Fn()>,
}

/// A region and its id.
pub(crate) struct Registered {
    pub(crate) id: u32,
    pub(crate) region: Region,
}

impl Raw {
    /// Attaches to an embedded node.
    pub(crate) fn stepped(attachment: vmmc_host::Attachment) -> Raw {
        let stepper: Arc<dyn Stepper> = attachment.stepper.unwrap();
        Raw::over(
            attachment.channel,
            Rc::new(move || {
                stepper.step();
            }),
        )
    }

    /// Attaches over a connection; `pump` makes the node run.
    pub(crate) fn over(channel: Channel, pump: Rc<dyn Fn()>) -> Raw {
        let (answer, mut fds) = exchange(&channel, &*pump, 1, Call::Attach { version: CONTROL_VERSION }, &[]);
        let Ok(Answer::Attached { process, .. }) = answer else { panic!("not attached: {answer:?}") };
        assert_eq!(fds.len(), 5);
        let area = AttachArea::open(fds.remove(0)).unwrap();
        Raw {
            channel,
            id: process,
            commands: area.command_producer(),
            completions: area.completion_consumer(),
            notifications: area.notification_consumer(),
            area,
            bell: NotifyBell::open(fds.remove(0)).unwrap(),
            wake: WakeReceiver::from_fd(fds.remove(0)),
            doorbell: fds.remove(0),
            events: Channel::from_fd(fds.remove(0)),
            serial: 1,
            pump,
        }
    }

    pub(crate) fn pump(&self) {
        (self.pump)();
    }

    pub(crate) fn call_with(&mut self, call: Call, fds: &[&OwnedFd]) -> (Result<Answer, Refusal>, Vec<OwnedFd>) {
        self.serial += 1;
        exchange(&self.channel, &*self.pump, self.serial, call, fds)
    }

    pub(crate) fn call(&mut self, call: Call) -> Result<Answer, Refusal> {
        self.call_with(call, &[]).0
    }

    /// Sends a request and does not wait for its answer.
    pub(crate) fn ask(&mut self, call: Call) -> u64 {
        self.serial += 1;
        let request = Request { serial: self.serial, call };
        self.channel.try_send(&encode(&request), &[]).unwrap();
        self.serial
    }

    pub(crate) fn register(&mut self, len: u64) -> Registered {
        let region = Region::create(len).unwrap();
        let fd = region.share().unwrap();
        match self.call_with(Call::RegisterRegion { len }, &[&fd]).0 {
            Ok(Answer::Region { region: id }) => Registered { id, region },
            other => panic!("no region: {other:?}"),
        }
    }

    pub(crate) fn export_call(region: &Registered, name: &str) -> Call {
        Call::Export {
            name: Some(name.into()),
            region: region.id,
            offset: 0,
            len: region.region.len_bytes(),
            rights: Rights::ALL.bits(),
            access: Access::SameUser,
            notify: true,
            redirectable: false,
            kind: ExportKind::Memory,
            mappable: true,
        }
    }

    /// A mappable export of a new region of 64 KiB.
    pub(crate) fn export(&mut self, name: &str) -> (u64, Registered) {
        let region = self.register(64 << 10);
        match self.call(Raw::export_call(&region, name)) {
            Ok(Answer::Exported { export }) => (export, region),
            other => panic!("no export: {other:?}"),
        }
    }

    pub(crate) fn import_call(node: Option<&str>, name: &str, rights: Rights) -> Call {
        let what = What::Name(name.into());
        Call::Import {
            node: node.map(Into::into),
            what,
            owner: Default::default(),
            rights: rights.bits(),
            wait: false,
            timeout_ms: 5_000,
            own_order: false,
        }
    }

    pub(crate) fn import(&mut self, node: Option<&str>, name: &str, rights: Rights) -> (Grant, Vec<OwnedFd>) {
        match self.call_with(Raw::import_call(node, name, rights), &[]) {
            (Ok(Answer::Imported(grant)), fds) => (grant, fds),
            (other, _) => panic!("no import: {other:?}"),
        }
    }

    /// Posts a command; waits for room.
    pub(crate) fn post(&mut self, command: &RawCommand, inline: &[u8]) {
        let deadline = Deadline::after(LONG);
        loop {
            if let Some(slot) = self.commands.claim() {
                return command.publish(slot, inline);
            }
            assert!(deadline.left(Nanos::monotonic()).is_some(), "the ring of {} commands stays full", COMMANDS.slots);
            (self.pump)();
        }
    }

    /// An inline send that wants a completion.
    pub(crate) fn send(&mut self, import: u64, offset: u64, data: &[u8], cookie: u64) {
        let mut command = RawCommand::new(Op::Send, import);
        command.flags = flags::INLINE | flags::COMPLETE;
        command.offset = offset;
        command.cookie = cookie;
        self.post(&command, data);
        self.ring();
    }

    /// Posts a redirection of `(offset, len)` of an export to `(region, offset)`.
    #[allow(dead_code, reason = "not all of its users redirect")]
    pub(crate) fn redirect(&mut self, export: u64, (offset, len): (u64, u64), to: (u32, u64), cookie: u64) {
        let mut command = RawCommand::new(Op::Redirect, export);
        (command.offset, command.len, command.cookie) = (offset, len, cookie);
        (command.region, command.region_offset) = (u64::from(to.0), to.1);
        self.post(&command, &[]);
        self.ring();
    }

    /// Withdraws the redirection at `offset` that was posted with the cookie `which`.
    #[allow(dead_code, reason = "not all of its users redirect")]
    pub(crate) fn cancel_redirect(&mut self, export: u64, offset: u64, which: u64, cookie: u64) {
        let mut command = RawCommand::new(Op::CancelRedirect, export);
        (command.offset, command.counter, command.cookie) = (offset, which, cookie);
        self.post(&command, &[]);
        self.ring();
    }

    /// Rings the doorbell if the node sleeps.
    pub(crate) fn ring(&self) {
        vmmc_host::area::fence();
        if self.area.node_sleeping().load(std::sync::atomic::Ordering::SeqCst) != 0 {
            rustix::io::write(&self.doorbell, &1u64.to_ne_bytes()).unwrap();
        }
    }

    pub(crate) fn completion(&mut self) -> Completion {
        let pump = self.pump.clone();
        wait(&*pump, || Completion::pop(&mut self.completions))
    }

    pub(crate) fn try_completion(&mut self) -> Option<Completion> {
        Completion::pop(&mut self.completions)
    }

    pub(crate) fn notification(&mut self) -> RawNotification {
        let pump = self.pump.clone();
        wait(&*pump, || RawNotification::pop(&mut self.notifications))
    }

    pub(crate) fn no_completion(&mut self) -> bool {
        self.try_completion().is_none()
    }

    pub(crate) fn event(&mut self) -> (NodeEvent, Vec<OwnedFd>) {
        let (bytes, fds) = wait(&*self.pump, || self.events.try_receive().ok());
        (decode(&bytes).unwrap(), fds)
    }

    /// The answer to an earlier [`ask`](Self::ask).
    pub(crate) fn answer(&mut self, serial: u64) -> Result<Answer, Refusal> {
        let (bytes, _) = wait(&*self.pump, || self.channel.try_receive().ok());
        let reply: Reply = decode(&bytes).unwrap();
        assert_eq!(reply.serial, serial);
        reply.result
    }

    /// Whether an answer is there now.
    pub(crate) fn has_no_answer(&self) -> bool {
        self.channel.try_receive().is_err()
    }
}

/// Waits, making the node run.
pub(crate) fn wait<T>(pump: &dyn Fn(), mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::after(LONG);
    loop {
        pump();
        if let Some(value) = ready() {
            return value;
        }
        assert!(deadline.left(Nanos::monotonic()).is_some(), "nothing came within {LONG:?}");
    }
}

fn exchange(
    channel: &Channel,
    pump: &dyn Fn(),
    serial: u64,
    call: Call,
    fds: &[&OwnedFd],
) -> (Result<Answer, Refusal>, Vec<OwnedFd>) {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    channel.try_send(&encode(&Request { serial, call }), &fds).unwrap();
    let (bytes, fds) = wait(pump, || channel.try_receive().ok());
    let reply: Reply = decode(&bytes).unwrap();
    assert_eq!(reply.serial, serial);
    (reply.result, fds)
}
