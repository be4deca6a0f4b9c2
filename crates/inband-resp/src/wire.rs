//! A client's socket, with or without TLS. It never blocks.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;
use rustls::ServerConnection;

/// Approximate memory of a TLS connection besides its contents.
const TLS_MEMORY_BYTES: usize = 32 * 1024;

pub struct Wire {
    pub tcp: TcpStream,
    tls: Option<Box<ServerConnection>>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tcp.fmt(f)
    }
}

impl Wire {
    /// Creates a socket that was just accepted; with `tls`, the client must use TLS.
    pub fn new(tcp: TcpStream, tls: Option<ServerConnection>) -> Self {
        Self {
            tcp,
            tls: tls.map(Box::new),
        }
    }

    /// Reads what is there, after an event said that the socket is readable. Returns the number of bytes, 0 at the end
    /// of the stream, or None if there is nothing now. `is_readable` becomes false once only another event can bring
    /// more: readiness is edge-triggered. `is_read_closed`: the client has closed its side, so that event may have come.
    pub fn read_available(
        &mut self,
        into: &mut [u8],
        is_readable: &mut bool,
        is_read_closed: bool,
    ) -> io::Result<Option<usize>> {
        while *is_readable {
            match self.read(into) {
                Ok(len) => {
                    // With TLS, a short read may leave more in this process.
                    let is_drained = len < into.len() && self.tls.is_none() && !is_read_closed;
                    *is_readable = len > 0 && !is_drained;
                    return Ok(Some(len));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => *is_readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Returns whether the TLS handshake is in progress.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Returns whether the system has accepted everything written.
    pub fn is_flushed(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.wants_write())
    }

    /// Approximate memory held.
    pub fn memory_bytes(&self) -> usize {
        self.tls.as_ref().map_or(0, |_| TLS_MEMORY_BYTES)
    }

    /// Takes the socket and its TLS state.
    pub fn into_parts(self) -> (TcpStream, Option<Box<ServerConnection>>) {
        (self.tcp, self.tls)
    }

    /// Tells the client that no more data follows, as far as that is possible without blocking.
    pub fn say_goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // The connection is closed in any case.
            let _ = flush(tls, &mut self.tcp);
        }
    }
}

fn flush(tls: &mut ServerConnection, tcp: &mut TcpStream) -> io::Result<()> {
    while tls.wants_write() {
        if tls.write_tls(tcp)? == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.tcp.read(into);
        };
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // An end without close_notify: what came before it is still answered.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            let len = tls.read_tls(&mut self.tcp)?;
            let processed = tls.process_new_packets();
            // A handshake message or alert. What cannot be sent now is sent at the next event.
            match flush(tls, &mut self.tcp) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            if len == 0 && tls.is_handshaking() {
                return Ok(0);
            }
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.tcp.write(bytes);
        };
        // Nothing new until the system has accepted all old data, so that data is buffered only once.
        flush(tls, &mut self.tcp)?;
        let len = tls.writer().write(bytes)?;
        match flush(tls, &mut self.tcp) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(len),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => flush(tls, &mut self.tcp),
            None => Ok(()),
        }
    }
}
