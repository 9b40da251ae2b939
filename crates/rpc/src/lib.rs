//! Remote calls whose answers land where they are wanted, from whoever has them [GMS §3].
//!
//! ```text
//!   caller ── request, and a token for the bulk result ──▶ server ── handler
//!      ▲                                                     ├── answers: result, bulk by the token
//!      │                                                     └── passes the call on ──▶ another server
//!      └─────────── result, bulk straight into the caller's buffer ─────────────────────────┘
//! ```
//!
//! A service is a trait with the attribute [`service`]; its client is a struct with the same
//! methods. Everything goes through endpoints, so within a machine no node takes part in a call.
//!
//! ```
//! # use vmmc_node::{Embedded, KeySource, NodeConfig};
//! # let node = Embedded::start(NodeConfig::new("doc-rpc-typed").key(KeySource::Plain))?;
//! # let session = vmmc::Session::over(node.attach()?)?;
//! use vmmc_rpc::{Client, Server, service};
//!
//! #[service]
//! trait Pages {
//!     /// Bytes of a page, or none if there is no such page.
//!     fn size(&self, name: &str) -> Option<u64>;
//!     /// Fills `into` from a page.
//!     fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), String>;
//! }
//!
//! struct Zeros;
//! impl Pages for Zeros {
//!     fn size(&self, name: &str) -> Option<u64> {
//!         (name == "zero").then_some(1 << 20)
//!     }
//!     fn read(&self, _name: &str, _offset: u64, into: &mut [u8]) -> Result<(), String> {
//!         into.fill(0);
//!         Ok(())
//!     }
//! }
//! let server = Server::new(&session, "pages").serve(Zeros.into_handler())?; // in another process
//!
//! let pages = PagesClient::from(Client::new(&session, "pages").connect()?); // `.node("beta")`
//! assert_eq!(pages.size("zero")?, Some(1 << 20));
//! let mut page = [1; 4096];
//! pages.read("zero", 0, &mut page)??;
//! assert_eq!(page, [0; 4096]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Below that, a service is a name, and methods by number:
//!
//! ```
//! # use vmmc_node::{Embedded, KeySource, NodeConfig};
//! # let node = Embedded::start(NodeConfig::new("doc-rpc").key(KeySource::Plain))?;
//! # let session = vmmc::Session::over(node.attach()?)?;
//! use vmmc_rpc::{Call, Client, Server};
//! const GREET: u16 = 1;
//! let greet = |call: Call| match call.method() {
//!     GREET => {
//!         let greeting = [b"hello, ", call.arguments()].concat();
//!         call.answer(&greeting)
//!     }
//!     _ => call.no_method(),
//! };
//! let server = Server::new(&session, "greeter").serve(greet)?; // usually in another process
//!
//! let greeter = Client::new(&session, "greeter").connect()?; // `.node("beta")` for another node
//! assert_eq!(greeter.call(GREET, b"world")?, b"hello, world");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Promises.** A call has one outcome. Its handler runs once at most; where it may have run
//! though no result came, the error says so ([`RpcError::may_have_happened`]). A server that dies
//! is an error within a second. A bulk result lands in the caller's buffer, or nowhere.
//!
//! **Does not.** It does not call again by itself: who knows that a method may run twice calls
//! again.

#![forbid(unsafe_code)]

mod admission;
mod background;
mod call;
mod calls;
mod client;
mod connecting;
mod error;
mod figures;
#[doc(hidden)]
pub mod fuzzing;
pub mod limits;
mod link;
mod pieces;
mod polled;
mod recent;
mod server;
#[cfg(test)]
mod simulated;
mod typed;
mod wire;

pub use call::Call;
#[doc(hidden)]
pub use client::SERVICE_PREFIX;
pub use client::{Answer, Bulk, Client, ClientBuilder, Pending, Request, Then};
pub use error::{RpcError, ServeError};
pub use polled::PolledServer;
pub use server::{Handler, Server, ServerBuilder, ServerCounts};
pub use typed::{Reply, Typed};

/// Number of the method that no service has: the server answers a call of it with
/// [`RpcError::NoMethod`], without its handler.
pub const PING_METHOD: u16 = 0;
#[doc(hidden)]
pub use typed::{bulk_of, decode, encode};
pub use vmmc::TokenRegion;
pub use vmmc_rpc_macros::service;
