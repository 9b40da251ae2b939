//! What the engine reports: completions and notifications go to rings, answers to control sockets.
//!
//! Invariant: every event of the engine is taken after every call into it, or in the next turns if
//! there are very many; an event for a process that has gone is dropped.

use super::Station;
use super::calls::{CallKind, WaitingCall};
use super::connection::Process;
use super::refusal;
use crate::limits::EVENTS_PER_TURN;
use crate::log::LogLevel;
use std::time::Duration;
use vmmc_host::abi::{Completion, RawNotification};
use vmmc_host::control::{Answer, NodeEvent};
use vmmc_host::limits::CONTROL_FDS_MAX;
use vmmc_nic::{Cookie, Event, ImportError, ImportGrant, ImportId, OpError, PeerDownReason, ProcessId, Time};

impl Station {
    /// Hands out all events; says whether there were any.
    pub(crate) fn serve_events(&mut self, now: Time) -> bool {
        let mut any = false;
        for _ in 0..EVENTS_PER_TURN {
            let Some(event) = self.engine.poll_event() else { break };
            any = true;
            self.hand_out(event, now);
        }
        if any {
            self.wake_processes();
        }
        any
    }

    /// Wakes all processes that sleep and have something new in their rings.
    pub(super) fn wake_processes(&mut self) {
        for &index in &self.attached {
            if let Some(process) = self.connections[index].as_mut().and_then(|c| c.process.as_mut()) {
                process.wake_if_due();
            }
        }
    }

    /// Wakes processes with threads that sleep until a word changes, for what was put into their
    /// memory.
    #[inline]
    pub(crate) fn wake_for_words(&mut self) {
        while let Some(id) = self.memory.take_touched() {
            if let Some(process) = self.process(id) {
                process.wake_for_words();
            }
        }
    }

    #[inline]
    fn hand_out(&mut self, event: Event, now: Time) {
        match event {
            Event::Completion { process, cookie, result } => {
                if let Some(process) = self.process(process) {
                    process.complete(completion(cookie, result));
                }
            }
            Event::Notification { process, export, offset, len, last_word, word, from } => {
                let (export, import) = (export.to_u64(), from.import.to_u64());
                let (session, sender) = (from.session, from.process.0);
                let note = RawNotification { export, offset, len, last_word, word, session, process: sender, import };
                if let Some(process) = self.process(process) {
                    process.notify(note);
                }
            }
            Event::SendFailed { process, import, why } => {
                if let Some(process) = self.process(process) {
                    process.send_failed(import.to_u64(), why);
                }
            }
            Event::RedirectDone { process, export, cookie, report } => {
                self.redirect_done(process, export, cookie, &report);
            }
            Event::ImportDone { process, cookie, result } => self.import_done(process, cookie, result, now),
            Event::ImportBroken { process, import, why } => self.import_broken(process, import, why),
            Event::Pong { cookie, result, .. } => self.pong(cookie, result),
            Event::PeerUp { name, addr } => {
                self.log_peer(LogLevel::Info, &name, || format!("node {name:?} is up at {addr}"));
                self.counters.peers_up += 1;
                self.notify_services_of_new_peer(now);
            }
            Event::PeerDown { name, why } => {
                // A goodbye is as it should be.
                let level = if why == PeerDownReason::Closed { LogLevel::Info } else { LogLevel::Warn };
                self.log_peer(level, &name, || format!("node {name:?} is down: {why}"));
                self.counters.peers_down += 1;
                self.notify_services_of_lost_peers(now);
            }
        }
    }

    #[inline]
    pub(super) fn process(&mut self, id: ProcessId) -> Option<&mut Process> {
        let index = self.by_slot.get(id.slot()).copied().flatten()?;
        self.connections[index].as_mut()?.process.as_mut().filter(|p| p.id == id)
    }

    fn import_done(&mut self, process: ProcessId, cookie: Cookie, result: Result<ImportGrant, ImportError>, now: Time) {
        let waiting = self.take_call(cookie);
        let Some(WaitingCall { index, serial, kind: CallKind::Import { what, node }, .. }) = waiting else {
            // The process left while it waited: what it got goes back.
            if let Ok(grant) = result {
                let _ = self.engine.unimport(now, process, grant.import);
            }
            return;
        };
        let has_room = self.connections[index].as_ref().is_some_and(|c| c.control.has_room_for(CONTROL_FDS_MAX));
        let answer = match result {
            Err(e) => Err(refusal::import(&e, &what, &node)),
            Ok(grant) if !has_room => {
                let _ = self.engine.unimport(now, process, grant.import);
                Err(refusal::uncollected())
            }
            Ok(grant) => self.grant(index, grant, now),
        };
        match answer {
            Ok((grant, fds)) => self.reply(index, serial, Ok(Answer::Imported(grant)), fds),
            Err(refusal) => {
                self.count_imports(index);
                self.reply(index, serial, Err(refusal), Vec::new());
            }
        }
    }

    fn import_broken(&mut self, process: ProcessId, import: ImportId, why: OpError) {
        let Some(index) = self.by_slot.get(process.slot()).copied().flatten() else { return };
        let event = NodeEvent::ImportBroken { import: import.to_u64(), status: why.code(), args: why.args() };
        self.send_event(index, &event, Vec::new());
    }

    fn pong(&mut self, cookie: Cookie, result: Result<Duration, ImportError>) {
        let Some(WaitingCall { index, serial, kind: CallKind::Ping { node }, .. }) = self.take_call(cookie) else {
            return;
        };
        let result = match result {
            Err(e) => Err(refusal::ping(&e, &node)),
            Ok(rtt) => Ok(Answer::Pong {
                rtt_ns: u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX),
                node: self.name_of_peer(&node),
            }),
        };
        self.reply(index, serial, result, Vec::new());
    }
}

#[inline]
fn completion(cookie: Cookie, result: Result<u64, OpError>) -> Completion {
    match result {
        Ok(value) => Completion { cookie: cookie.0, status: 0, value, args: [0; 3] },
        Err(why) => Completion { cookie: cookie.0, status: why.code(), value: 0, args: why.args() },
    }
}
