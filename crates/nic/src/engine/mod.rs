//! API skeleton; bodies follow.
#![allow(unused_variables, missing_docs)]
use std::net::SocketAddr;

use crate::*;

/// One node's network interface.
pub struct Engine {
    stats: Stats,
}

/// A datagram to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where to.
    pub to: SocketAddr,
    /// Bytes, from the start of the buffer.
    pub len: usize,
}

impl Engine {
    pub fn new(config: Config, seed: [u8; 32], now: Time) -> Engine { unimplemented!() }
    pub fn name(&self) -> &NodeName { unimplemented!() }
    pub fn incarnation(&self) -> u64 { unimplemented!() }
    /// Says goodbye to every peer (best effort) and fails what is outstanding; poll_transmit afterwards.
    pub fn shutdown(&mut self, now: Time) { unimplemented!() }
    pub fn attach(&mut self, uid: u32) -> Result<ProcessId, AttachError> { unimplemented!() }
    pub fn detach(&mut self, now: Time, process: ProcessId) { unimplemented!() }
    pub fn export(&mut self, now: Time, process: ProcessId, spec: ExportSpec) -> Result<ExportId, ExportError> { unimplemented!() }
    pub fn unexport(&mut self, now: Time, process: ProcessId, export: ExportId) -> Result<(), UnexportError> { unimplemented!() }
    pub fn import(&mut self, now: Time, process: ProcessId, spec: ImportSpec, cookie: Cookie) { unimplemented!() }
    /// Withdraws an import that has not been answered; answers it with `Cancelled`.
    pub fn cancel_import(&mut self, now: Time, process: ProcessId, cookie: Cookie) { unimplemented!() }
    pub fn unimport(&mut self, now: Time, process: ProcessId, import: ImportId) -> Result<(), UnimportError> { unimplemented!() }
    #[allow(clippy::too_many_arguments)]
    pub fn redirect(&mut self, now: Time, process: ProcessId, export: ExportId, offset: u64, len: u64, to: RegionId, to_offset: u64, cookie: Cookie, dma: &mut dyn Dma) -> Result<RedirectId, RedirectError> { unimplemented!() }
    pub fn cancel_redirect(&mut self, now: Time, process: ProcessId, redirect: RedirectId) -> Result<RedirectReport, RedirectError> { unimplemented!() }
    pub fn redirect_report(&self, process: ProcessId, redirect: RedirectId) -> Result<RedirectReport, RedirectError> { unimplemented!() }
    pub fn consume(&mut self, process: ProcessId, export: ExportId, offset: u64, len: u64) -> Result<(), RedirectError> { unimplemented!() }
    pub fn add_peer(&mut self, now: Time, addrs: &[SocketAddr]) -> Result<(), PeerTableFull> { unimplemented!() }
    pub fn ping(&mut self, now: Time, node: NodeSpec, by: PingBy, cookie: Cookie, deadline: Time) { unimplemented!() }
    pub fn set_path_mtu(&mut self, addr: SocketAddr, bytes: usize) { unimplemented!() }

    pub fn post(&mut self, now: Time, process: ProcessId, command: Command<'_>, dma: &mut dyn Dma) -> Result<(), Busy> { unimplemented!() }
    pub fn handle_datagram(&mut self, now: Time, from: SocketAddr, datagram: &mut [u8], dma: &mut dyn Dma) { unimplemented!() }
    pub fn poll_transmit(&mut self, now: Time, buf: &mut [u8], dma: &mut dyn Dma) -> Option<Transmit> { unimplemented!() }
    /// One piece of a long local copy; true while there is more.
    pub fn poll_work(&mut self, now: Time, dma: &mut dyn Dma) -> bool { unimplemented!() }
    pub fn poll_event(&mut self) -> Option<Event> { unimplemented!() }
    pub fn poll_timeout(&self) -> Option<Time> { unimplemented!() }
    pub fn handle_timeout(&mut self, now: Time) { unimplemented!() }

    pub fn stats(&self) -> &Stats { &self.stats }
    pub fn peers(&self) -> impl Iterator<Item = PeerInfo> + '_ { std::iter::empty() }
    pub fn exports(&self) -> impl Iterator<Item = ExportInfo> + '_ { std::iter::empty() }
    pub fn imports(&self) -> impl Iterator<Item = ImportInfo> + '_ { std::iter::empty() }
    pub fn processes(&self) -> impl Iterator<Item = ProcessInfo> + '_ { std::iter::empty() }
}
