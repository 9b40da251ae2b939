//! Making an endpoint.
//!
//! Invariant: an endpoint has its board before it has its ring, so whoever asks for a channel gets
//! one with a board. Source: [GMS §2].

use super::layout::Shape;
use super::{Endpoint, EndpointCounts};
use crate::error::ExportError;
use crate::limits::{ENDPOINT_CALLS_BYTES, ENDPOINT_FRAMES_MAX, ENDPOINT_SENDERS_MAX, FRAME_BYTES_MAX, QUICK_WAITS};
use crate::session::Session;
use crate::tokens::TokenPool;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;
use vmmc_host::control::Access;
use vmmc_host::wait::Backoff;

/// Choices for an endpoint; made by [`Session::endpoint`](crate::Session::endpoint).
#[must_use = "there is no endpoint before `create`"]
pub struct EndpointBuilder {
    session: Session,
    name: String,
    access: Access,
    mappable: bool,
    shape: Shape,
    notify: bool,
    tokens: Option<(u64, u64)>,
}

impl EndpointBuilder {
    pub(crate) fn new(session: Session, name: &str) -> EndpointBuilder {
        let shape = Shape { frames: 0, frame_bytes: 0 };
        EndpointBuilder {
            session,
            name: name.to_string(),
            access: Access::default(),
            mappable: true,
            shape,
            notify: false,
            tokens: None,
        }
    }

    /// Frames for payloads: so many for each sender, up to 64, of so many bytes, a multiple of 8 up
    /// to 64 KiB. Default none. Each sender costs their memory. A payload that is longer than a
    /// frame takes several, up to all, side by side.
    pub fn frames(mut self, count: u64, bytes: u64) -> Self {
        self.shape = Shape { frames: count, frame_bytes: bytes };
        self
    }

    /// Who may connect; default processes of the same user.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Whether senders of this node may map what they send to; default true. Without, they go
    /// through the engine, as those of other nodes do: it holds each send against the sender's
    /// rights, and each payload by token against the table, and none of them has the memory once
    /// the endpoint has ended. Then their messages take the time of the node.
    pub fn mappable(mut self, mappable: bool) -> Self {
        self.mappable = mappable;
        self
    }

    /// Whether it has a descriptor for event loops, [`Endpoint::event_fd`]; default false. A sender
    /// of another node then notifies with each message, which costs the owner some time.
    pub fn notify(mut self, notify: bool) -> Self {
        self.notify = notify;
        self
    }

    /// Buffers for payloads by token: so many, up to 4,096, of so many bytes; default none. See
    /// [`Endpoint::token_buffer`].
    pub fn tokens(mut self, count: u64, bytes: u64) -> Self {
        self.tokens = Some((count, bytes));
        self
    }

    /// Makes the endpoint.
    ///
    /// # Errors
    /// [`ExportError`]. [`ExportError::Frames`]: there are no such frames.
    pub fn create(self) -> Result<Endpoint, ExportError> {
        let EndpointBuilder { session, name, access, mappable, shape, notify, tokens } = self;
        let Shape { frames, frame_bytes } = shape;
        let some = frames == 0 || frame_bytes > 0 && frame_bytes % 8 == 0;
        if frames > ENDPOINT_FRAMES_MAX || frame_bytes > FRAME_BYTES_MAX || !some {
            return Err(ExportError::Frames { name, count: frames, bytes: frame_bytes });
        }
        let pool = |(count, bytes)| TokenPool::new(&session, &name, (&access, mappable), count, bytes);
        let tokens = tokens.map(pool).transpose()?;
        let board = session.export(ENDPOINT_SENDERS_MAX as u64).access(access.clone()).mappable(mappable);
        let board = board.notify(notify).create()?;
        let calls = session.ring(ENDPOINT_CALLS_BYTES).name(&name).access(access.clone()).notify(notify).create()?;
        let watch = || session.core().watch(&[board.id(), calls.export().id()]);
        let watched = notify.then(watch).transpose();
        let watched = watched.map_err(|e| ExportError::Descriptor { name: name.clone(), why: e.to_string() })?;
        let all_polled_at = session.core().waiting.waiter.now();
        let board_words = board.region();
        let regions = board.region_bit() | calls.export().region_bit();
        Ok(Endpoint {
            session,
            name,
            access,
            mappable,
            shape,
            watched,
            calls,
            board,
            board_words,
            regions,
            senders: Vec::new(),
            marks: Vec::new(),
            polled: Vec::new(),
            turn: 0,
            polls: 0,
            looks: AtomicU32::new(0),
            all_polled_at,
            all_due: false,
            quick_waits: Backoff::new(&QUICK_WAITS),
            reaped_at: all_polled_at,
            reap_next: 0,
            refused: VecDeque::new(),
            tokens,
            counts: EndpointCounts::default(),
        })
    }
}
