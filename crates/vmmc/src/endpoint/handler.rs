//! A handler for the messages of an endpoint, on a thread of its own.
//!
//! Invariant: when its end returns, the handler runs no more; the child of a fork waits for
//! nothing. Source: [GMS §2] upcalls.

use super::{Endpoint, Message};
use crate::core::Core;
use crate::error::WaitError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use vmmc_host::{Deadline, Nanos};

/// Runs a handler for the messages of an endpoint; made by [`Endpoint::on_message`]. Dropping it
/// ends the handler, after the call it is in, and the endpoint.
#[must_use = "dropping it ends the handler and the endpoint"]
pub struct MessageHandler {
    core: Arc<Core>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Endpoint>>,
}

impl Endpoint {
    /// Runs a handler on a thread of its own for every message.
    ///
    /// ```
    /// # use vmmc_node::{Embedded, KeySource, NodeConfig};
    /// # let node = Embedded::start(NodeConfig::new("doc-on-message").key(KeySource::Plain))?;
    /// # let session = vmmc::Session::over(node.attach()?)?;
    /// let (said, heard) = std::sync::mpsc::channel();
    /// let endpoint = session.endpoint("orders").create()?;
    /// let say = move |message: vmmc::Message| said.send(message.control().to_vec()).unwrap();
    /// let handler = endpoint.on_message(say)?;
    /// session.connect("orders").open()?.send(b"two, please", b"")?;
    /// assert_eq!(heard.recv()?, b"two, please");
    /// let endpoint = handler.stop().expect("the handler did not panic");
    /// assert_eq!(endpoint.counts().messages, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WaitError::System`] when no thread can be had, [`WaitError::Forked`].
    pub fn on_message(
        mut self,
        mut handler: impl FnMut(Message) + Send + 'static,
    ) -> Result<MessageHandler, WaitError> {
        let core = self.core().clone();
        if core.is_forked() {
            return Err(WaitError::Forked { parent: core.pid });
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            let stopped = || stopped.load(Ordering::Acquire);
            while let Ok(Some(at)) = self.wait_unless(Deadline(Nanos::MAX), stopped) {
                self.take(at).into_iter().for_each(&mut handler);
            }
            self
        };
        let thread = std::thread::Builder::new().name("vmmc-messages".into()).spawn(run);
        let thread = thread
            .map_err(|e| WaitError::System { what: "thread for a message handler".into(), why: e.to_string() })?;
        Ok(MessageHandler { core, stop, thread: Some(thread) })
    }
}

impl MessageHandler {
    /// Ends the handler, after the call it is in, and gives the endpoint back. `None`: the handler
    /// has panicked, or this process was forked since.
    pub fn stop(mut self) -> Option<Endpoint> {
        self.end()
    }

    fn end(&mut self) -> Option<Endpoint> {
        let thread = self.thread.take()?;
        if self.core.is_forked() {
            // The thread exists in the parent only; there is nothing to wait for.
            std::mem::forget(thread);
            return None;
        }
        self.stop.store(true, Ordering::Release);
        self.core.kick();
        if thread.thread().id() == std::thread::current().id() {
            return None;
        }
        // A handler that panicked has said so on stderr already.
        thread.join().ok()
    }
}

impl Drop for MessageHandler {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for MessageHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageHandler").finish_non_exhaustive()
    }
}
