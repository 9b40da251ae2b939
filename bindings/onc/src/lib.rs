//! Calls of ONC RPC (RFC 5531) over VMMC, for programs made by `rpcgen`: their stubs stay as they
//! are, and the call that makes the client or the transport is another one.
//!
//! ```text
//!   stub ─▶ CLIENT of libtirpc ─▶ c/clnt_vmmc.c ─▶ OncClient ══╗    a table of functions, XDR, records
//!                                                              ║    remote call
//!   dispatch ◀─ SVCXPRT ◀─ c/svc_vmmc.c ◀──────── OncServer ◀══╝    svc_run, who is it?
//! ```
//!
//! A record is the argument of a remote call ([`vmmc_rpc`]), and its reply the result: the control
//! message of an endpoint where it is short, a payload up to 64 KiB, and several messages beyond.
//! The C sources make a CLIENT and an SVCXPRT of it; they need libtirpc, which the workspace does
//! not. `docs/onc-rpc.md` tells how they are used.
//!
//! ```
//! # use vmmc_node::{Daemon, KeySource, NodeConfig};
//! # let name = format!("doc-onc-{}", std::process::id());
//! # let daemon = Daemon::start(NodeConfig::new(&name).key(KeySource::Plain))?;
//! # let stopper = daemon.stopper();
//! # let node = std::thread::spawn(move || daemon.run());
//! # let session = vmmc::Session::builder().node(&name).start_node(false).attach()?;
//! use onc_rpc::{Body, CallHeader, Message, OpaqueAuth};
//! use vmmc_onc::{ClientOptions, OncClient, OncServer};
//!
//! let mut server = OncServer::create(&session, 0x2000_0099, 1, vmmc::Access::SameUser)?;
//! # let theirs = session.clone();
//! let caller = std::thread::spawn(move || {
//!     let client = OncClient::open(&theirs, 0x2000_0099, 1, &ClientOptions::default())?;
//!     let (cred, verf) = (OpaqueAuth::none(), OpaqueAuth::none());
//!     let head = CallHeader { prog: 0x2000_0099, vers: 1, proc: 0, cred, verf };
//!     let record = Message { xid: 1, body: Body::Call(head) }.encode();
//!     client.call(&record, std::time::Duration::from_secs(5))
//! });
//! let call = loop {
//!     if let Some(call) = server.poll()? {
//!         break call;
//!     }
//! };
//! server.reply(call, b"a reply");
//! assert_eq!(caller.join().expect("it does not panic")?, b"a reply");
//! # drop(server);
//! # stopper.stop();
//! # node.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Promises.** A record comes whole or not at all. Its caller's user is known by the nodes, and
//! an AUTH_SYS credential that says otherwise is denied. A server that dies is an error within a
//! second. What a hostile caller sends costs it its own calls.

mod binder;
mod client;
mod error;
pub mod ffi;
pub mod limits;
mod server;
mod sessions;
pub mod status;
mod wire;

pub use client::{ClientOptions, OncClient};
pub use error::OncError;
pub use server::{OncCall, OncCounts, OncServer};
pub use sessions::session;
pub use wire::service_name;
