//! A client's socket, with TLS or without. It never blocks.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;
use rustls::ServerConnection;

/// About what a connection's TLS keeps beside what is in it.
const TLS_MEMORY_BYTES: usize = 32 * 1024;

/// See the module.
pub struct Wire {
    /// The socket.
    pub tcp: TcpStream,
    tls: Option<Box<ServerConnection>>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tcp.fmt(f)
    }
}

impl Wire {
    /// A socket just accepted; with `tls` its client must speak that.
    pub fn new(tcp: TcpStream, tls: Option<ServerConnection>) -> Self {
        Self {
            tcp,
            tls: tls.map(Box::new),
        }
    }

    /// Does a read of less than was asked for mean that there is no more now?
    pub fn is_drained_by_short_read(&self) -> bool {
        self.tls.is_none()
    }

    /// Do both ends not yet understand each other?
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Has the system everything that was written?
    pub fn is_flushed(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.wants_write())
    }

    /// Memory held, about.
    pub fn memory_bytes(&self) -> usize {
        self.tls.as_ref().map_or(0, |_| TLS_MEMORY_BYTES)
    }

    /// Both parts, for those who go on with them.
    pub fn into_parts(self) -> (TcpStream, Option<Box<ServerConnection>>) {
        (self.tcp, self.tls)
    }

    /// Tell the client that nothing more comes, as far as that goes at once.
    pub fn say_goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // It is closed either way.
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
                // An end without a goodbye: what came before it is answered all the same.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            let len = tls.read_tls(&mut self.tcp)?;
            let processed = tls.process_new_packets();
            // An answer of the handshake, or why it fails. What does not go now goes with the next event.
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
        // Nothing new before the system has all that is old: so it is kept only once.
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
