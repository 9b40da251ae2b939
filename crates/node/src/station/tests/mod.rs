//! Station with a raw process side.

mod hostile;
mod left;
mod network;
mod one_node;
mod pins;
mod redirections;
mod revocation;
mod scale;
