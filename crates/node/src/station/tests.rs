//! Station with a raw process side.
