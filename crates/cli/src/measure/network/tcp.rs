//! TCP of the kernel between two namespaces, with a congestion control of its own.
//!
//! Invariant: a stream is over when its receiver has read the last byte and said so; no call waits
//! longer than a partner may.

use super::super::TaskError;
use super::{ENDS, Ends, Home, Moved, Pending, Ping, Pings};
use crate::limits::{PARTNER_WAIT, STREAM_BYTES};
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_congestion};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

pub(super) struct Tcp<'a> {
    pub(super) homes: &'a [Home; 2],
    pub(super) control: &'static str,
}

impl Tcp<'_> {
    /// Has `serve` take a connection on the far side, and says where.
    fn listen(&self, serve: fn(TcpStream) -> std::io::Result<()>) -> Result<SocketAddr, TaskError> {
        let listening = self.homes[1].start(|| {
            let listener = TcpListener::bind((ENDS[1], 0))?;
            set_socket_timeout(&listener, Timeout::Recv, Some(PARTNER_WAIT))?;
            Ok::<_, std::io::Error>((listener.local_addr()?, listener))
        });
        let (address, listener) = listening.wait(PARTNER_WAIT)??;
        self.homes[1].start(move || {
            // A connection that breaks is seen by the measuring side.
            let _ = listener.accept().and_then(|(stream, _)| {
                stream.set_nodelay(true)?;
                serve(stream)
            });
        });
        Ok(address)
    }
}

fn connect(address: SocketAddr, control: &str) -> Result<TcpStream, TaskError> {
    let stream = TcpStream::connect(address)?;
    // It takes effect at once.
    set_tcp_congestion(&stream, control)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PARTNER_WAIT))?;
    stream.set_write_timeout(Some(PARTNER_WAIT))?;
    Ok(stream)
}

fn read_all(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; STREAM_BYTES];
    while stream.read(&mut buffer)? > 0 {}
    stream.write_all(b"e")
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut message = [0; 8];
    loop {
        stream.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
}

impl Ends for Tcp<'_> {
    fn bulk(&self, time: Duration) -> Result<Pending<Result<Moved, TaskError>>, TaskError> {
        let (address, control) = (self.listen(read_all)?, self.control);
        Ok(self.homes[0].start(move || {
            let mut stream = connect(address, control)?;
            let data = vec![1; STREAM_BYTES];
            let (begun, mut bytes) = (Instant::now(), 0);
            while begun.elapsed() < time {
                stream.write_all(&data)?;
                bytes += data.len() as u64;
            }
            stream.shutdown(Shutdown::Write)?;
            stream.read_exact(&mut [0])?;
            Ok((bytes, begun.elapsed()))
        }))
    }

    fn pings(&self, how: Pings) -> Result<Pending<Result<Vec<Ping>, TaskError>>, TaskError> {
        let (address, control) = (self.listen(answer)?, self.control);
        Ok(self.homes[0].start(move || {
            let mut stream = connect(address, control)?;
            how.make(|| {
                stream.write_all(b"12345678")?;
                Ok(stream.read_exact(&mut [0; 8])?)
            })
        }))
    }
}
