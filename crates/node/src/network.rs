//! Placeholder of the transport.
