//! The sessions of this process, one for each node, for all its clients and servers.
//!
//! Invariant: a session whose node has gone is not given out again, and none of the parent's in the
//! child of a fork.

use crate::error::OncError;
use std::sync::Mutex;
use vmmc::Session;

/// By process and name of the node.
static SESSIONS: Mutex<Vec<(u32, Option<String>, Session)>> = Mutex::new(Vec::new());

/// The session with the node of this name; none: the default one.
///
/// # Errors
/// [`OncError::Attach`].
pub fn session(node: Option<&str>) -> Result<Session, OncError> {
    let pid = std::process::id();
    let mut sessions = SESSIONS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // A parent's is left alone: what it holds belongs to the parent.
    sessions.retain(|(of, _, session)| *of != pid || session.is_alive());
    if let Some((_, _, session)) = sessions.iter().find(|(of, name, _)| *of == pid && name.as_deref() == node) {
        return Ok(session.clone());
    }
    let builder = node.into_iter().fold(Session::builder(), |builder, node| builder.node(node));
    let session = builder.attach().map_err(|error| OncError::Attach(Box::new(error)))?;
    sessions.push((pid, node.map(str::to_string), session.clone()));
    Ok(session)
}
