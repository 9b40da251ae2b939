//! The driver's part: attach, export, import, and taking them back [NT §3.1].

use std::cmp::Reverse;

use super::Engine;
use crate::error::{AttachError, ExportError, ImportError, OpError, UnexportError, UnimportError};
use crate::event::{Event, PingBy};
use crate::ids::{Cookie, ExportId, ImportId, ProcessId, RegionRef};
use crate::limits::{
    ACCESS_USERS_MAX, EXPORT_NAME_BYTES_MAX, EXPORTS_MAX, IMPORTS_PER_PROCESS_MAX, IMPORTS_WAITING_MAX,
    LENGTH_BYTES_MAX, PEERS_CONFIGURED_KEPT, PEERS_MAX, PINGS_MAX, PROCESSES_MAX,
};
use crate::redirect::Redirector;
use crate::rights::ExportKind;
use crate::rights::{Access, ExportSpec, Exporter, ImportGrant, ImportSpec, ImportTarget, NodeSpec};
use crate::ring::{self, Ring};
use crate::slab::{Key, Slab};
use crate::tables::{Export, Import, Process, Route, SessionId, Wait, WaitAt, WaitFor};
use crate::time::Time;
use crate::tokens;
use crate::waiters::{Takes, Waiter, WaiterKey};
use crate::wire::chunk::{Chunk, Handle};

impl Engine {
    /// Attaches a process of user `uid`.
    ///
    /// # Errors
    /// [`AttachError::TableFull`].
    pub fn attach(&mut self, uid: u32) -> Result<ProcessId, AttachError> {
        // The slot freed longest ago: an id is not reused at once.
        let unused = self.process_generations.len();
        let slot = if unused < PROCESSES_MAX { None } else { self.free_processes.pop_front() };
        let slot = match slot {
            Some(slot) => slot,
            None if unused < PROCESSES_MAX => {
                self.process_generations.push(0);
                self.tables.processes.push(None);
                unused as u32
            }
            None => return Err(AttachError::TableFull { max: PROCESSES_MAX as u64 }),
        };
        let generation = &mut self.process_generations[slot as usize];
        *generation = generation.wrapping_add(1);
        let id = ProcessId::new(slot, *generation);
        self.tables.processes[slot as usize] = Some(Process {
            id,
            uid,
            imports: Slab::default(),
            exports: 0,
            redirects: 0,
            outstanding: 0,
            local: std::collections::VecDeque::new(),
            ranges: 0,
        });
        Ok(id)
    }

    /// The process left or died: its exports go, with word to their importers, its imports go, its
    /// operations vanish without completions.
    pub fn detach(&mut self, now: Time, process: ProcessId) {
        self.now = now;
        let Some(entry) = self.tables.process_mut(process) else { return };
        let local = entry.imports.iter().filter(|(_, import)| matches!(import.route, Route::Local { .. }));
        let local: Vec<Key<Import>> = local.map(|(key, _)| key).collect();
        for key in local {
            self.release_import(process, key);
        }
        let owned = self.tables.exports.iter().filter(|(_, export)| export.owner == process);
        let owned: Vec<Key<Export>> = owned.map(|(key, _)| key).collect();
        for export in owned {
            self.revoke(export, OpError::OwnerDied);
        }
        // From here on no event reaches the process.
        let Some(entry) = self.tables.processes.get_mut(process.slot()).and_then(Option::take) else { return };
        for op in entry.local {
            if let Some(slot) = op.kind.inline_slot() {
                self.tables.inline.release(slot);
            }
        }
        self.free_processes.push_back(process.slot() as u32);
        self.work.retain(|at| *at != process);
        for index in 0..self.peers.len() as u16 {
            let peer = self.peers[usize::from(index)].as_mut();
            if let Some(session) = peer.and_then(|peer| peer.session.as_deref_mut()) {
                session.forget_process(process, &mut self.tables);
                if session.has_to_send() {
                    // What it had asked for leaves room to others.
                    self.wake(index);
                }
            }
        }
        // After its operations, so that nothing of it uses a released grant.
        for (key, import) in entry.imports.iter() {
            match import.route {
                Route::Pending(wait) => self.withdraw(wait, ImportError::Cancelled),
                Route::Remote { via, grant } => self.send_unimport(process, via, key, grant),
                Route::Local { .. } => {}
            }
        }
        let pings =
            self.tables.waits.iter().filter(
                |(_, wait)| matches!(wait.what, WaitFor::Ping { by: PingBy::Process(by), .. } if by == process),
            );
        let pings: Vec<Key<Wait>> = pings.map(|(key, _)| key).collect();
        for key in pings {
            self.tables.waits.remove(key);
        }
        self.wake_all();
    }

    fn wake_all(&mut self) {
        for index in 0..self.peers.len() as u16 {
            self.wake(index);
        }
    }

    /// Exports memory of `process`.
    ///
    /// # Errors
    /// [`ExportError`]; nothing has changed then.
    pub fn export(&mut self, now: Time, process: ProcessId, spec: ExportSpec) -> Result<ExportId, ExportError> {
        self.now = now;
        let owner = self.tables.process(process).ok_or(ExportError::NotAttached { process })?;
        let uid = owner.uid;
        self.check_export(uid, &spec)?;
        let name = spec.name.clone();
        let key = self.tables.exports.insert(Export {
            owner: process,
            owner_uid: uid,
            name: spec.name,
            memory: RegionRef { process, region: spec.region },
            offset: spec.offset,
            len: spec.len,
            rights: spec.rights,
            access: spec.access,
            notify: spec.notify,
            redirector: spec.redirectable.then(Box::<Redirector>::default),
            ring: (spec.kind == ExportKind::Ring).then(Box::<Ring>::default),
            kind: spec.kind,
            grants: Vec::new(),
            local_importers: Vec::new(),
        });
        if let Some(owner) = self.tables.process_mut(process) {
            owner.exports += 1;
        }
        if let Some(name) = name {
            self.tables.add_name(&name, uid, key);
            self.answer_waiters(&name, uid, key);
        }
        Ok(key.into())
    }

    fn check_export(&self, uid: u32, spec: &ExportSpec) -> Result<(), ExportError> {
        if let Some(name) = &spec.name {
            if name.is_empty() || name.len() > EXPORT_NAME_BYTES_MAX {
                return Err(ExportError::BadName { len: name.len() as u64, max: EXPORT_NAME_BYTES_MAX as u64 });
            }
            if name.chars().any(char::is_control) {
                return Err(ExportError::ControlCharacter { name: name.clone() });
            }
            if self.tables.has_name(name, uid) {
                return Err(ExportError::NameTaken { name: name.clone() });
            }
        }
        let (offset, len) = (spec.offset, spec.len);
        if len == 0 || len > LENGTH_BYTES_MAX || offset.checked_add(len).is_none() {
            return Err(ExportError::BadLength { offset, len, max: LENGTH_BYTES_MAX });
        }
        if spec.rights.is_empty() {
            return Err(ExportError::NoRights);
        }
        match spec.kind {
            ExportKind::Memory => {}
            ExportKind::Ring => ring::check(spec)?,
            ExportKind::Tokens { entries } => tokens::check(spec, entries)?,
        }
        if let Access::Users(users) = &spec.access {
            if users.len() > ACCESS_USERS_MAX {
                return Err(ExportError::TooManyUsers { len: users.len() as u64, max: ACCESS_USERS_MAX as u64 });
            }
        }
        if self.tables.exports.len() >= EXPORTS_MAX {
            return Err(ExportError::TableFull { max: EXPORTS_MAX as u64 });
        }
        Ok(())
    }

    fn answer_waiters(&mut self, name: &str, uid: u32, key: Key<Export>) {
        for waiter in self.tables.waiters.take(name, uid) {
            match waiter {
                Waiter::Local(wait) => self.grant_local(wait, key),
                Waiter::Remote { via, handle, uid, rights, .. } => {
                    if let Some((session, tables)) = self.session_and_tables(via) {
                        session.remote_waits.give(uid);
                        session.answer_import(key, handle, uid, rights, tables);
                    }
                    self.wake(via.peer);
                    self.arm(via.peer);
                }
            }
        }
    }

    /// Takes an export back. Once this returns nothing more is deposited; importers are notified.
    ///
    /// # Errors
    /// [`UnexportError`].
    pub fn unexport(&mut self, now: Time, process: ProcessId, export: ExportId) -> Result<(), UnexportError> {
        self.now = now;
        let key = export.into();
        match self.tables.exports.get(key) {
            Some(entry) if entry.owner == process => {
                self.revoke(key, OpError::Revoked);
                Ok(())
            }
            _ => Err(UnexportError::NoSuchExport { export }),
        }
    }

    fn revoke(&mut self, key: Key<Export>, why: OpError) {
        let Some(export) = self.tables.exports.remove(key) else { return };
        if let Some(name) = &export.name {
            self.tables.remove_name(name, export.owner_uid);
        }
        if let Some(owner) = self.tables.process_mut(export.owner) {
            owner.exports -= 1;
            owner.redirects -= export.redirector.as_deref().map_or(0, Redirector::len);
        }
        self.tables.break_imports(export.local_importers, why);
        for grant in export.grants {
            let Some(grant) = self.tables.take_grant(grant) else { continue };
            if let Some(session) = self.session_mut(grant.via) {
                session.grants -= 1;
                session.queue_control(&Chunk::Revoked { handle: grant.handle, why });
            }
            self.wake(grant.via.peer);
            self.arm(grant.via.peer);
        }
    }

    /// Imports; the answer is [`Event::ImportDone`] with `cookie`, at once for what is on this
    /// node. Gives the id that the import waits under, and has if it is granted; `None`: it was
    /// refused at once.
    pub fn import(&mut self, now: Time, process: ProcessId, spec: ImportSpec, cookie: Cookie) -> Option<ImportId> {
        self.now = now;
        match self.start_import(now, process, spec, cookie) {
            Ok(import) => Some(import),
            Err(why) => {
                self.tables.events.push_back(Event::ImportDone { process, cookie, result: Err(why) });
                None
            }
        }
    }

    fn start_import(
        &mut self,
        now: Time,
        process: ProcessId,
        spec: ImportSpec,
        cookie: Cookie,
    ) -> Result<ImportId, ImportError> {
        let bad_name =
            matches!(&spec.what, ImportTarget::Name(name) if name.is_empty() || name.len() > EXPORT_NAME_BYTES_MAX);
        if bad_name || spec.rights.is_empty() {
            return Err(ImportError::BadRequest);
        }
        if self.tables.waits.len() >= IMPORTS_WAITING_MAX {
            return Err(ImportError::TableFull { max: IMPORTS_WAITING_MAX as u64 });
        }
        let entry = self.tables.process_mut(process).ok_or(ImportError::NotAttached)?;
        if entry.imports.len() >= IMPORTS_PER_PROCESS_MAX {
            return Err(ImportError::TableFull { max: IMPORTS_PER_PROCESS_MAX as u64 });
        }
        let (deadline, rights) = (spec.deadline, spec.rights);
        let import = entry.imports.insert(Import {
            export: ExportId { slot: 0, generation: 0 },
            len: 0,
            rights,
            route: Route::Pending(Key::NONE),
            broken: None,
            kind: ExportKind::Memory,
            own_order: spec.own_order,
            refusals: 0,
        });
        let node = spec.node.clone();
        let what = WaitFor::Import { process, import, spec };
        let wait = self.tables.waits.insert(Wait { what, cookie, started: now, deadline, at: WaitAt::LocalName });
        if let Some(import) = self.tables.import_mut(process, import) {
            import.route = Route::Pending(wait);
        }
        match node.filter(|node| !self.is_self(node)) {
            None => self.import_here(wait),
            Some(node) => self.wait_for_node(now, wait, &node),
        }
        self.watch_deadline(wait);
        Ok(import.into())
    }

    fn is_self(&self, node: &NodeSpec) -> bool {
        match node {
            NodeSpec::Name(name) => *name == self.config.name,
            NodeSpec::Addr(addr) => self.config.listen.contains(addr),
        }
    }

    fn watch_deadline(&mut self, wait: Key<Wait>) {
        let Some(entry) = self.tables.waits.get(wait) else { return };
        self.deadlines.push(Reverse((entry.deadline, wait)));
        // Answered waits leave their deadline behind; too many of those are swept out.
        if self.deadlines.len() > 2 * self.tables.waits.len() + 64 {
            let waits = &self.tables.waits;
            self.deadlines.retain(|Reverse((_, key))| waits.get(*key).is_some());
        }
    }

    fn import_here(&mut self, wait: Key<Wait>) {
        let Some(Wait { what: WaitFor::Import { process, spec, .. }, .. }) = self.tables.waits.get(wait) else {
            return;
        };
        let Some(uid) = self.tables.process(*process).map(|process| process.uid) else { return };
        match (self.tables.find_export(&spec.what, uid, spec.owner), &spec.what) {
            (Some(export), _) => self.grant_local(wait, export),
            (None, ImportTarget::Name(name)) if spec.wait => {
                let (name, owner) = (name.clone(), spec.owner);
                self.tables.want_activation(&name, uid, None);
                self.tables.waiters.add(name, Takes::of(owner, uid), Waiter::Local(wait));
            }
            (None, what) => {
                let why = self.tables.why_missing(what, uid);
                self.fail_wait(wait, why);
            }
        }
    }

    fn grant_local(&mut self, wait: Key<Wait>, key: Key<Export>) {
        let Some(Wait { what: WaitFor::Import { process, import, spec }, cookie, .. }) = self.tables.waits.get(wait)
        else {
            return;
        };
        let (process, import, rights, cookie) = (*process, *import, spec.rights, *cookie);
        let Some(uid) = self.tables.process(process).map(|process| process.uid) else { return };
        if let Err(why) = self.tables.permit(key, uid, rights) {
            return self.fail_wait(wait, why);
        }
        self.tables.waits.remove(wait);
        let Some(export) = self.tables.exports.get_mut(key) else { return };
        let position = export.local_importers.len();
        export.local_importers.push((process, import));
        let grant = ImportGrant {
            import: import.into(),
            export: key.into(),
            owner: export.owner_uid,
            len: export.len,
            rights,
            notify: export.notify,
            redirectable: export.redirector.is_some(),
            kind: export.kind,
            exporter: Exporter::Local { process: export.owner, region: export.memory.region, offset: export.offset },
        };
        let len = export.len;
        if let Some(entry) = self.tables.import_mut(process, import) {
            let (export, kind, route) = (grant.export, grant.kind, Route::Local { position });
            let own_order = entry.own_order;
            *entry = Import { export, len, rights, route, broken: None, kind, own_order, refusals: 0 };
        }
        self.tables.events.push_back(Event::ImportDone { process, cookie, result: Ok(grant) });
    }

    /// Waits for a session with the node, or asks at once when there is one.
    fn wait_for_node(&mut self, now: Time, wait: Key<Wait>, node: &NodeSpec) {
        let found = match node {
            NodeSpec::Name(name) => self.peer_named(name),
            NodeSpec::Addr(addr) => {
                let found =
                    self.peers.iter().position(|peer| peer.as_ref().is_some_and(|peer| peer.path_of(*addr).is_some()));
                found.map(|index| index as u16).or_else(|| {
                    // The node's own peers, named by its driver, have room of their own.
                    let others = self.peers.iter().flatten().filter(|peer| !peer.configured).count();
                    if others >= PEERS_MAX - PEERS_CONFIGURED_KEPT {
                        return None;
                    }
                    let (index, mtu) = (self.add_peer_entry(None, false)?, self.mtu_of(*addr));
                    self.peer_mut(index)?.add_path(*addr, mtu);
                    Some(index)
                })
            }
        };
        match (found, node) {
            (Some(index), _) => self.wait_for_peer(now, wait, index),
            (None, NodeSpec::Addr(_)) => {
                let max = (PEERS_MAX - PEERS_CONFIGURED_KEPT) as u64;
                self.fail_wait(wait, ImportError::TableFull { max });
            }
            (None, NodeSpec::Name(_)) => {
                self.set_at(wait, WaitAt::NodeName);
                self.name_waits.insert(wait);
                for index in 0..self.peers.len() as u16 {
                    if self.peer(index).is_some_and(|peer| peer.name.is_none()) {
                        self.connect(now, index);
                    }
                }
                self.fail_hopeless_name_waits(ImportError::UnknownNode);
            }
        }
    }

    fn set_at(&mut self, wait: Key<Wait>, at: WaitAt) {
        if let Some(entry) = self.tables.waits.get_mut(wait) {
            entry.at = at;
        }
    }

    fn wait_for_peer(&mut self, now: Time, wait: Key<Wait>, index: u16) {
        let Some(peer) = self.peer_mut(index) else { return };
        if let Some(session) = peer.session.as_deref() {
            let via = session.via;
            return self.ask(now, wait, via);
        }
        peer.waiting.insert(wait);
        self.set_at(wait, WaitAt::Peer(index));
        self.connect(now, index);
    }

    /// Withdraws an import that has no answer yet, by the id that [`import`](Self::import) gave;
    /// its answer is then `Cancelled`.
    pub fn cancel_import(&mut self, now: Time, process: ProcessId, import: ImportId) {
        self.now = now;
        if let Some(Route::Pending(wait)) = self.tables.import_mut(process, import.into()).map(|import| import.route) {
            self.withdraw(wait, ImportError::Cancelled);
        }
    }

    /// Ends a wait before its answer: the other node and the lists that name it are notified.
    pub(super) fn withdraw(&mut self, key: Key<Wait>, why: ImportError) {
        let Some(wait) = self.tables.waits.get(key) else { return };
        let at = wait.at;
        if let WaitFor::Import { process, import, spec } = &wait.what {
            let handle = Handle { process: process.0, import: import.to_u64() };
            match (at, &spec.what) {
                // Others are answered at once.
                (WaitAt::Answer(via), what @ ImportTarget::Name(_)) if spec.wait => {
                    let chunk = Chunk::ImportCancel { handle, what: what.clone() };
                    if let Some(session) = self.session_mut(via) {
                        session.queue_control(&chunk);
                    }
                    self.wake(via.peer);
                    self.arm(via.peer);
                }
                (WaitAt::LocalName, ImportTarget::Name(name)) => {
                    let name = name.clone();
                    self.tables.waiters.remove(&name, WaiterKey::Local(key));
                }
                _ => {}
            }
        }
        match at {
            WaitAt::Turn { via, uid } => {
                if let Some(session) = self.session_mut(via) {
                    session.asks.withdraw(uid, key);
                }
            }
            WaitAt::NodeName => {
                self.name_waits.remove(&key);
            }
            WaitAt::Peer(index) => {
                if let Some(peer) = self.peer_mut(index) {
                    peer.waiting.remove(&key);
                }
            }
            _ => {}
        }
        self.fail_wait(key, why);
    }

    /// Gives an import back. What was sent through it before still arrives.
    ///
    /// # Errors
    /// [`UnimportError`].
    pub fn unimport(&mut self, now: Time, process: ProcessId, import: ImportId) -> Result<(), UnimportError> {
        self.now = now;
        let key = import.into();
        match self.tables.import_mut(process, key).map(|import| import.route) {
            None | Some(Route::Pending(_)) => Err(UnimportError::StaleImport { import }),
            Some(_) => {
                self.release_import(process, key);
                Ok(())
            }
        }
    }

    fn release_import(&mut self, process: ProcessId, key: Key<Import>) {
        let Some(entry) = self.tables.import_mut(process, key) else { return };
        let (route, export, broken) = (entry.route, entry.export, entry.broken.is_some());
        match route {
            Route::Pending(wait) => return self.withdraw(wait, ImportError::Cancelled),
            Route::Local { position } if !broken => self.tables.unlink_local(export.into(), position),
            Route::Local { .. } => {}
            Route::Remote { via, grant } => {
                if let Some(process) = self.tables.process_mut(process) {
                    process.imports.remove_and_shrink(key);
                }
                self.send_unimport(process, via, key, grant);
                return;
            }
        }
        if let Some(process) = self.tables.process_mut(process) {
            process.imports.remove_and_shrink(key);
        }
    }

    /// Sends the end of an import to its exporter, behind all that the process has queued through
    /// it.
    fn send_unimport(&mut self, process: ProcessId, via: SessionId, import: Key<Import>, grant: u64) {
        if let Some(session) = self.session_mut(via) {
            session.imports -= 1;
            session.queue_unimport(process, import.into(), grant);
        }
        self.wake(via.peer);
        self.arm(via.peer);
    }

    /// Measures the round trip to a node; the answer is [`Event::Pong`].
    pub fn ping(&mut self, now: Time, node: NodeSpec, by: PingBy, cookie: Cookie, deadline: Time) {
        self.now = now;
        let refused = if self.is_self(&node) {
            Some(Ok(std::time::Duration::ZERO))
        } else if self.tables.waits.len() >= IMPORTS_WAITING_MAX + PINGS_MAX {
            Some(Err(ImportError::TableFull { max: PINGS_MAX as u64 }))
        } else {
            None
        };
        if let Some(result) = refused {
            self.tables.events.push_back(Event::Pong { by, cookie, result });
            return;
        }
        let what = WaitFor::Ping { by, node: node.clone(), sent: now };
        let wait = self.tables.waits.insert(Wait { what, cookie, started: now, deadline, at: WaitAt::NodeName });
        self.wait_for_node(now, wait, &node);
        self.watch_deadline(wait);
    }
}
