//! Chunks that ask for something or answer a set-up request: fetches, atomics, imports.

use super::Session;
use super::asks::Asked;
use crate::command::{AtomicOp, Dma};
use crate::error::{ImportError, OpError};
use crate::event::Event;
use crate::ids::{ExportId, ImportId, NodeName, ProcessId};
use crate::limits::{GRANTS_MAX, INBOUND_REQUESTS_MAX, REMOTE_WAITS_PER_PEER_MAX, share_allows};
use crate::local::{aligned, has_right, in_bounds};
use crate::rights::ExportKind;
use crate::rights::{Exporter, ImportGrant, ImportTarget, Owner, Rights};
use crate::slab::Key;
use crate::tables::{Arrivals, Export, Grant, Route, Tables, Wait, WaitAt, WaitFor};
use crate::time::Time;
use crate::waiters::{Takes, Waiter, WaiterKey};
use crate::wire::chunk::{Chunk, Handle};

/// Fetches of a peer being answered: above its own bound, as its view of what is answered lags.
const INBOUND_FETCHES_MAX: usize = 4 * INBOUND_REQUESTS_MAX;

impl Session {
    pub(super) fn request(
        &mut self,
        now: Time,
        chunk: Chunk<'_>,
        peer: &NodeName,
        tables: &mut Tables,
        dma: &mut dyn Dma,
    ) {
        let _ = now;
        match chunk {
            Chunk::FetchRequest { ticket, grant, offset, start, len } => {
                match self.check_fetch(grant, offset, len, tables) {
                    Ok(process) => self.serve((process, ticket), (grant, offset), (start, len)),
                    Err(why) => {
                        tables.stats.refused += 1;
                        self.answer(&Chunk::FetchFail { ticket, why });
                    }
                }
            }
            Chunk::AtomicRequest { ticket, grant, offset, op } => match self.change(grant, offset, op, tables, dma) {
                Ok(old) => self.queue_atomic_reply(ticket, old),
                Err(why) => {
                    tables.stats.refused += 1;
                    self.answer(&Chunk::AtomicFail { ticket, why });
                }
            },
            Chunk::ImportRequest { handle, uid, rights, owner, wait, what } => {
                self.import_requested(handle, (uid, rights, owner), wait, what, tables);
            }
            Chunk::ImportGrant { handle, grant, export, owner, len, rights, notify, redirectable, kind } => {
                let answer = Granted { grant, export, owner, len, rights, notify, redirectable, kind };
                self.answered(Asked::import(handle));
                self.import_granted(handle, answer, peer, tables);
            }
            Chunk::ImportFail { handle, why } => {
                self.answered(Asked::import(handle));
                self.import_failed(handle, why, tables);
            }
            Chunk::ImportCancel { handle, what } => self.import_cancelled(handle, &what, tables),
            Chunk::Unimport { grant } => {
                if tables.grant(self.via, grant).is_some() {
                    tables.remove_grant(Key::from_u64(grant));
                    self.grants -= 1;
                }
            }
            Chunk::Revoked { handle, why } => self.revoked(handle, why, tables),
            Chunk::Echo { token } => {
                self.answer(&Chunk::EchoReply { token });
            }
            _ => debug_assert!(false, "other chunks are processed by the caller"),
        }
    }

    fn check_fetch(&self, grant: u64, offset: u64, len: u64, tables: &Tables) -> Result<u32, OpError> {
        let grant = tables.grant(self.via, grant).ok_or(OpError::Revoked)?;
        has_right(grant.rights, Rights::READ)?;
        in_bounds(offset, len, grant.target.len)?;
        if self.inbound_fetches.len() >= INBOUND_FETCHES_MAX {
            return Err(OpError::TableFull { max: INBOUND_FETCHES_MAX as u64 });
        }
        Ok(grant.handle.process)
    }

    fn change(
        &self,
        grant: u64,
        offset: u64,
        op: AtomicOp,
        tables: &Tables,
        dma: &mut dyn Dma,
    ) -> Result<u64, OpError> {
        let grant = tables.grant(self.via, grant).ok_or(OpError::Revoked)?;
        has_right(grant.rights, Rights::ATOMIC)?;
        in_bounds(offset, 8, grant.target.len)?;
        aligned(grant.target.base + offset)?;
        Ok(dma.atomic(grant.target.memory, grant.target.base + offset, op))
    }

    fn import_requested(
        &mut self,
        handle: Handle,
        (uid, rights, owner): (u32, Rights, Owner),
        wait: bool,
        what: ImportTarget,
        tables: &mut Tables,
    ) {
        match (tables.find_export(&what, uid, owner), what) {
            (Some(export), _) => self.answer_import(export, handle, uid, rights, tables),
            (None, ImportTarget::Name(name)) if wait => {
                if !self.remote_waits.take(uid) {
                    let why = ImportError::TableFull { max: REMOTE_WAITS_PER_PEER_MAX as u64 };
                    self.answer(&Chunk::ImportFail { handle, why });
                    return;
                }
                let waiter = Waiter::Remote { via: self.via, handle, uid, rights };
                tables.want_activation(&name, uid, Some(self.via.peer));
                if let Some(Waiter::Remote { uid, .. }) = tables.waiters.add(name, Takes::of(owner, uid), waiter) {
                    self.remote_waits.give(uid);
                }
            }
            (None, what) => {
                let why = tables.why_missing(&what, uid);
                self.answer(&Chunk::ImportFail { handle, why });
            }
        }
    }

    /// Grants or refuses an import of an export that exists.
    pub(crate) fn answer_import(
        &mut self,
        key: Key<Export>,
        handle: Handle,
        uid: u32,
        rights: Rights,
        tables: &mut Tables,
    ) {
        match self.grant(key, handle, uid, rights, tables) {
            Ok(grant) => {
                let target = tables.target(key).expect("the export was found by the caller");
                let owner = tables.exports.get(key).map_or(u32::MAX, |export| export.owner_uid);
                self.answer(&Chunk::ImportGrant {
                    handle,
                    grant: grant.to_u64(),
                    export: key.into(),
                    owner,
                    len: target.len,
                    rights,
                    notify: target.notify,
                    redirectable: target.arrivals == Arrivals::Redirected,
                    kind: target.arrivals.kind(),
                });
            }
            Err(why) => {
                self.answer(&Chunk::ImportFail { handle, why });
            }
        }
    }

    fn grant(
        &mut self,
        key: Key<Export>,
        handle: Handle,
        uid: u32,
        rights: Rights,
        tables: &mut Tables,
    ) -> Result<Key<Grant>, ImportError> {
        tables.permit_remote(key, uid, rights)?;
        let own = tables.granted.get(&(self.via.peer, uid)).copied().unwrap_or(0);
        if !share_allows(own, tables.grants.len(), GRANTS_MAX) {
            return Err(ImportError::TableFull { max: GRANTS_MAX as u64 });
        }
        let target = tables.target(key).ok_or(ImportError::NoSuchExport)?;
        self.grants += 1;
        Ok(tables.add_grant(Grant {
            via: self.via,
            handle,
            export: key,
            target,
            rights,
            position: 0,
            uid,
            skip: false,
            refusals: 0,
        }))
    }

    fn import_granted(&mut self, handle: Handle, answer: Granted, peer: &NodeName, tables: &mut Tables) {
        let process = ProcessId(handle.process);
        let Some(wait) = self.pending(process, handle, tables) else {
            // Withdrawn meanwhile.
            self.answer(&Chunk::Unimport { grant: answer.grant });
            return;
        };
        let cookie = tables.waits.remove(wait).expect("an import that is pending has its wait").cookie;
        let via = self.via;
        let import = tables.import_mut(process, Key::from_u64(handle.import)).expect("it is pending");
        import.export = answer.export;
        import.len = answer.len;
        import.rights = answer.rights;
        import.kind = answer.kind;
        import.route = Route::Remote { via, grant: answer.grant };
        self.imports += 1;
        let result = Ok(ImportGrant {
            import: ImportId::from_u64(handle.import),
            export: answer.export,
            owner: answer.owner,
            len: answer.len,
            rights: answer.rights,
            notify: answer.notify,
            redirectable: answer.redirectable,
            kind: answer.kind,
            exporter: Exporter::Remote { node: peer.clone() },
        });
        tables.events.push_back(Event::ImportDone { process, cookie, result });
    }

    fn import_failed(&mut self, handle: Handle, why: ImportError, tables: &mut Tables) {
        let process = ProcessId(handle.process);
        if let Some(wait) = self.pending(process, handle, tables) {
            tables.end_import_wait(wait, why);
        }
    }

    /// The wait of an import that this session was asked for.
    fn pending(&self, process: ProcessId, handle: Handle, tables: &mut Tables) -> Option<Key<Wait>> {
        let via = self.via;
        let Route::Pending(wait) = tables.import_mut(process, Key::from_u64(handle.import))?.route else { return None };
        let asked = tables.waits.get(wait)?.at == WaitAt::Answer(via);
        asked.then_some(wait)
    }

    fn import_cancelled(&mut self, handle: Handle, what: &ImportTarget, tables: &mut Tables) {
        let ImportTarget::Name(name) = what else { return };
        let via = self.via;
        if let Some(Waiter::Remote { uid, .. }) = tables.waiters.remove(name, WaiterKey::remote(via, handle)) {
            self.remote_waits.give(uid);
            // It counts there until it is answered, as one that was granted meanwhile.
            self.answer(&Chunk::ImportFail { handle, why: ImportError::Cancelled });
        }
    }

    /// An echo of this side was answered.
    pub(super) fn echoed(&mut self, now: Time, token: u64, tables: &mut Tables) {
        self.answered(Asked::Echo { token });
        let key = Key::from_u64(token);
        let Some(Wait { what: WaitFor::Ping { by, sent, .. }, at, .. }) = tables.waits.get(key) else { return };
        if *at != WaitAt::Answer(self.via) {
            return;
        }
        let (by, rtt) = (*by, now.since(*sent));
        let cookie = tables.waits.remove(key).expect("it was just found").cookie;
        tables.events.push_back(Event::Pong { by, cookie, result: Ok(rtt) });
    }

    fn revoked(&mut self, handle: Handle, why: OpError, tables: &mut Tables) {
        let (process, via) = (ProcessId(handle.process), self.via);
        let ours = tables
            .import_mut(process, Key::from_u64(handle.import))
            .is_some_and(|import| matches!(import.route, Route::Remote { via: at, .. } if at == via));
        if ours {
            tables.break_import(process, Key::from_u64(handle.import), why);
        }
    }
}

/// The fields of a grant.
struct Granted {
    grant: u64,
    export: ExportId,
    owner: u32,
    len: u64,
    rights: Rights,
    notify: bool,
    redirectable: bool,
    kind: ExportKind,
}
