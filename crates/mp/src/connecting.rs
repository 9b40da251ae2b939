//! Connects to members, on threads that nothing waits for: a member lets others in when it makes
//! calls, and meanwhile this one has to let others in too.
//!
//! Invariant: one thread for each member at most, which ends when the member is there, cannot be
//! reached, or these messages end.

use crate::error::MpError;
use crate::limits::{CONNECT_STACK_BYTES, CONNECT_TRY};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use vmmc::{ConnectError, Connection, ErrorKind, Kind, Session};

/// What the threads have to say.
#[derive(Default)]
pub(crate) struct Connecting {
    news: AtomicBool,
    came: Mutex<Vec<(u32, Result<Connection, ConnectError>)>>,
    ended: AtomicBool,
}

impl Connecting {
    /// Begins to connect to a member.
    pub(crate) fn begin(
        self: &Arc<Self>,
        session: &Session,
        rank: u32,
        endpoint: String,
        node: Option<String>,
    ) -> Result<(), MpError> {
        let (this, session) = (self.clone(), session.clone());
        let run = move || {
            let connect = || {
                let builder = session.connect(&endpoint).wait(CONNECT_TRY);
                node.iter().fold(builder, |builder, node| builder.node(node)).open()
            };
            let result = loop {
                match connect() {
                    // The member may still come, or make a call, or its node answer.
                    Err(error) if error.kind() == ErrorKind::TimedOut && !this.ended.load(Ordering::Acquire) => {}
                    result => break result,
                }
            };
            this.came.lock().expect("no panic while the lock is held").push((rank, result));
            this.news.store(true, Ordering::Release);
        };
        let builder = std::thread::Builder::new().name("vmmc-mp-connect".into()).stack_size(CONNECT_STACK_BYTES);
        builder.spawn(run).map(drop).map_err(|e| MpError::Thread { rank, why: e.to_string() })
    }

    /// Whether some have come.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// Connections that have come since the last call.
    #[inline]
    pub(crate) fn take(&self) -> Vec<(u32, Result<Connection, ConnectError>)> {
        if !self.news.load(Ordering::Relaxed) || !self.news.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.came.lock().expect("no panic while the lock is held"))
    }

    /// No more tries.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}
