//! The services that every node has.
//!
//! Invariant: this is the one place that names them; all else knows them by [`Service`].

use crate::station::StationConfig;
use vmmc_service::Service;

/// One of each, for a node that is set up so.
pub(crate) fn all(node: &StationConfig) -> Vec<Box<dyn Service>> {
    vec![Box::new(vmmc_sockets_service::Sockets::new(node.talks()))]
}
