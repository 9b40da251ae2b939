//! The commands, one module each, and how they reach a node.
//!
//! Invariant: a command that only inspects nodes never starts one.

pub(crate) mod bench;
mod bench_network;
pub(crate) mod bench_sockets;
pub(crate) mod bench_techniques;
mod bench_utlb;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod man;
pub(crate) mod node;
mod node_log;
pub(crate) mod ping;
mod program;
pub(crate) mod rpc;
pub(crate) mod run;
pub(crate) mod sim;
pub(crate) mod sockets;
pub(crate) mod stats;
pub(crate) mod supervise;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod utlb;

use crate::failure::Failure;
use vmmc::{AttachError, CallError, ImportError, RefusalCode, Session};

/// Attaches to a node of this user that runs.
fn attach(name: &str) -> Result<Session, Failure> {
    try_attach(name).map_err(Failure::from)
}

/// A description for scripts, in which each export has its id also as all else spells it:
/// `"export_id": "12.3"`.
fn with_ids(description: &impl serde::Serialize) -> Result<serde_json::Value, Failure> {
    let mut value = serde_json::to_value(description).map_err(Failure::new)?;
    spell_ids(&mut value);
    Ok(value)
}

fn spell_ids(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Array(values) => values.iter_mut().for_each(spell_ids),
        serde_json::Value::Object(fields) => {
            if let Some(id) = fields.get("export").and_then(serde_json::Value::as_u64) {
                fields.insert("export_id".into(), vmmc::ExportId::from_u64(id).to_string().into());
            }
            fields.values_mut().for_each(spell_ids);
        }
        _ => {}
    }
}

/// The same, for those who go on without.
fn try_attach(name: &str) -> Result<Session, AttachError> {
    Session::builder().node(name).start_node(false).attach()
}

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Failure {
        let text = error.to_string();
        match error {
            AttachError::NoNode { .. } | AttachError::Version { .. } => Failure::NoNode(text),
            AttachError::Call { error, .. } => with_text(&error, text),
            _ => Failure::Failed(text),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        with_text(&error, error.to_string())
    }
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Failure {
        let text = error.to_string();
        match error {
            ImportError::Call { error, .. } => with_text(&error, text),
            ImportError::Map { .. } => Failure::Failed(text),
        }
    }
}

/// The exit code of a call's error, with the text of what it was part of.
fn with_text(error: &CallError, text: String) -> Failure {
    match (error, error.refusal()) {
        (CallError::NodeGone { .. }, _) => Failure::NoNode(text),
        (CallError::TimedOut { .. }, _) => Failure::Unreachable(text),
        (_, Some(RefusalCode::TimedOut | RefusalCode::Unreachable | RefusalCode::UnknownNode)) => {
            Failure::Unreachable(text)
        }
        _ => Failure::Failed(text),
    }
}

/// An export as lists show it: its name, or its id as errors spell it.
fn name_or_id(name: Option<&str>, export: u64) -> String {
    name.map_or_else(|| vmmc::ExportId::from_u64(export).to_string(), String::from)
}
