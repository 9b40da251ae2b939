//! Station with a raw process side.

mod hostile;
mod network;
mod one_node;
mod revocation;
mod scale;
