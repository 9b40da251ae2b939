//! Opening an import: what is asked for, and of whom.
//!
//! Invariant: an import that the node granted is given back if it cannot be used. Source:
//! [NT §3.1].

use super::Import;
use crate::error::ImportError;
use crate::limits::ANSWER_GRACE;
use crate::session::Session;
use std::time::Duration;
use vmmc_host::control::{Answer, Call, Owner, What, timeout_ms};
use vmmc_nic::{ExportId, Rights};

/// Choices for an import; made by [`Session::import`].
#[must_use = "nothing is imported before `open`"]
pub struct ImportBuilder {
    session: Session,
    what: What,
    node: Option<String>,
    owner: Owner,
    rights: Rights,
    wait: Option<Duration>,
    own_order: bool,
}

impl ImportBuilder {
    pub(crate) fn new(session: Session, what: What) -> ImportBuilder {
        ImportBuilder {
            session,
            what,
            node: None,
            owner: Owner::default(),
            rights: Rights::READ | Rights::WRITE,
            wait: None,
            own_order: false,
        }
    }

    /// Name or `address:port` of the exporting node; default this node.
    pub fn node(mut self, node: &str) -> Self {
        self.node = Some(node.to_string());
        self
    }

    /// Takes the export of this user only. By default a name means an export of this process's own
    /// user, or else one of root: names belong to users, and nobody can take one before its user
    /// does. An id means its export, whichever user has it.
    pub fn owner(mut self, uid: u32) -> Self {
        self.owner = Owner::User(uid);
        self
    }

    /// Takes an export of any user that has one of this name and lets this process import it: its
    /// own user first, then root. [`Import::owner`] says whose it is.
    pub fn any_owner(mut self) -> Self {
        self.owner = Owner::Any;
        self
    }

    /// Rights wanted; default read and write. Without read the memory cannot be mapped, and
    /// transfers go through the engine.
    pub fn rights(mut self, rights: Rights) -> Self {
        self.rights = rights;
        self
    }

    /// Wait this long for an export that does not exist yet; without this a missing export is an
    /// error at once.
    pub fn wait(mut self, timeout: Duration) -> Self {
        self.wait = Some(timeout);
        self
    }

    /// Gives what goes through this import an order of its own: a send of up to 4 KiB, an append, a
    /// fetch or an atomic operation follows all that went through it before, and need not wait for
    /// what this process has queued through other imports, nor for what of that was lost. So
    /// promises of `docs/memory-model.md` about sends before it (M5 among them) are then about
    /// those through this import. By default the operations of a process through a node are carried
    /// out in the order of the calls.
    ///
    /// What goes through other imports still follows all that went through this one before, and so
    /// does [`Import::flush`]. On a mapped import nothing waits, and this changes nothing.
    pub fn own_order(mut self) -> Self {
        self.own_order = true;
        self
    }

    /// Imports.
    ///
    /// # Errors
    /// [`ImportError`]; [`ImportError::refusal`] is the kind.
    pub fn open(self) -> Result<Import, ImportError> {
        let label = self.label();
        let asked = match &self.node {
            Some(node) => format!("{label} of node {node}"),
            None => label.clone(),
        };
        let core = self.session.core().clone();
        let timeout = self.wait.unwrap_or_else(|| core.timeout());
        let call = Call::Import {
            node: self.node,
            what: self.what,
            owner: self.owner,
            rights: self.rights.bits(),
            wait: self.wait.is_some(),
            timeout_ms: timeout_ms(timeout),
            own_order: self.own_order,
        };
        let deadline = core.deadline(timeout.saturating_add(ANSWER_GRACE));
        match core.call(call, &[], deadline) {
            Ok((Answer::Imported(grant), fds)) => {
                let import = grant.import;
                Import::granted(core.clone(), label.clone(), grant, fds).map_err(|error| {
                    core.post_call(Call::Unimport { import });
                    ImportError::Map { what: asked, error }
                })
            }
            Ok(_) => Err(ImportError::Call { what: asked, error: core.wrong_answer("to an import") }),
            Err(error) => Err(ImportError::Call { what: asked, error }),
        }
    }

    fn label(&self) -> String {
        match &self.what {
            What::Name(name) => format!("{name:?}"),
            What::Id(id) => ExportId::from_u64(*id).to_string(),
        }
    }
}
