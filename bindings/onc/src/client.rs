//! The calling side: records go out, replies come back.
//!
//! Invariant: one call at a time, as with libtirpc's other transports. A reply is that of its
//! record, for it comes as the answer of the call that carried it. Source: RFC 5531, [SHRIMP §3].

use crate::binder;
use crate::error::OncError;
use crate::limits::{CREATE_TIMEOUT, FRAMES, RECORD_BYTES_MAX};
use crate::wire::{CONFIRM, HELLO, RECORD, VERSION, Welcome, service_name};
use std::time::Duration;
use vmmc::{Access, RefusalCode, Rights, Session};
use vmmc_rpc::{Client, Request, Then};

/// Where a program is, and how to get there.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// Name or `address:port` of its node; none: this one.
    pub node: Option<String>,
    /// The program of this user only; none: of this process's own user, or else of root.
    pub owner: Option<u32>,
    /// How long making the client may take; none: 5 s.
    pub timeout: Option<Duration>,
}

/// A way to a program that is served over VMMC.
#[derive(Debug)]
pub struct OncClient {
    service: String,
    client: Client,
    record_max: usize,
    owner: u32,
}

impl OncClient {
    /// Finds the program and connects to it.
    ///
    /// # Errors
    /// [`OncError`]; [`OncError::NotServed`] at once where there is no such program.
    pub fn open(session: &Session, prog: u32, vers: u32, options: &ClientOptions) -> Result<OncClient, OncError> {
        let service = service_name(prog, vers);
        let timeout = options.timeout.unwrap_or(CREATE_TIMEOUT);
        let owner = owner_of(session, prog, vers, options)?;
        let mut builder = Client::new(session, &service).owner(owner).timeout(timeout).frames(FRAMES.0, FRAMES.1);
        builder = options.node.iter().fold(builder, |builder, node| builder.node(node));
        let client = builder.answered_by(Access::Users(vec![owner])).bulk(1, 8).connect()?;
        let hello = client.request(HELLO).arguments(&VERSION.to_le_bytes()).timeout(timeout).call()?;
        let Some(welcome) = Welcome::decode(&hello.result) else {
            return Err(OncError::Protocol { service, what: "no welcome" });
        };
        if welcome.version != VERSION {
            return Err(OncError::Version { service, theirs: welcome.version, ours: VERSION });
        }
        client.request(CONFIRM).arguments(&welcome.key).timeout(timeout).call()?;
        let record_max = RECORD_BYTES_MAX.min(welcome.record_max as usize);
        Ok(OncClient { service, client, record_max, owner })
    }

    /// User of the server, for whom its node vouches.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Bytes of the longest record.
    pub fn record_max(&self) -> usize {
        self.record_max
    }

    /// Sends the record of a call, and waits for the reply.
    ///
    /// # Errors
    /// [`OncError`].
    pub fn call(&self, record: &[u8], timeout: Duration) -> Result<Vec<u8>, OncError> {
        Ok(self.request(record, timeout)?.call()?.result)
    }

    /// Sends the record of a call, and waits for nothing: it is carried out if the server takes it
    /// within this time.
    ///
    /// # Errors
    /// [`OncError`].
    pub fn send(&self, record: &[u8], timeout: Duration) -> Result<(), OncError> {
        Ok(self.request(record, timeout)?.then(|_| Then::Done)?)
    }

    fn request<'a>(&'a self, record: &'a [u8], timeout: Duration) -> Result<Request<'a>, OncError> {
        let len = record.len();
        if len > self.record_max {
            return Err(OncError::TooLong { service: self.service.clone(), len, max: self.record_max });
        }
        // What was sent without waiting, and is answered.
        self.client.poll();
        Ok(self.client.request(RECORD).arguments(record).timeout(timeout))
    }
}

/// Whose the program is; an error at once if there is none.
fn owner_of(session: &Session, prog: u32, vers: u32, options: &ClientOptions) -> Result<u32, OncError> {
    let name = format!("{}{}", vmmc_rpc::SERVICE_PREFIX, service_name(prog, vers));
    let mut builder = session.import(&name).rights(Rights::WRITE);
    builder = options.node.iter().fold(builder, |builder, node| builder.node(node));
    builder = options.owner.iter().fold(builder, |builder, uid| builder.owner(*uid));
    let node = options.node.clone().unwrap_or_else(|| format!("node {}", session.node().name));
    match builder.open() {
        Ok(import) => Ok(import.owner()),
        Err(error) if error.refusal() == Some(RefusalCode::UnknownName) => {
            let hint = binder::hint(options.node.as_deref(), prog, vers);
            Err(OncError::NotServed { prog, vers, node, hint })
        }
        Err(error) => Err(OncError::Import { prog, vers, node, error: Box::new(error) }),
    }
}
