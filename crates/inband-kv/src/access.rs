//! How the project's own clients authenticate to a replica: password, TLS, both or neither.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use inband_resp::password::Password;
use inband_transport::tls::client_of_server;
use rustls::{ClientConnection, StreamOwned};

use crate::import::{ImportError, TLS_ALERT};

/// What a replica requires of its clients.
#[derive(Debug, Clone, Default)]
pub struct Access {
    pub password: Option<Password>,
    /// Use TLS and verify the server against this CA.
    pub ca: Option<PathBuf>,
}

#[derive(Debug)]
pub enum ClientStream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Access {
    /// Connects and authenticates. `timeout` applies to the connection attempt and to each reply.
    pub fn connect(
        &self,
        address: SocketAddr,
        timeout: Duration,
    ) -> io::Result<BufReader<ClientStream>> {
        let tcp = TcpStream::connect_timeout(&address, timeout)?;
        tcp.set_read_timeout(Some(timeout))?;
        tcp.set_write_timeout(Some(timeout))?;
        tcp.set_nodelay(true)?;
        let stream = match &self.ca {
            None => ClientStream::Plain(tcp),
            Some(ca) => {
                let tls = client_of_server(ca, address.ip()).map_err(io::Error::other)?;
                ClientStream::Tls(Box::new(StreamOwned::new(tls, tcp)))
            }
        };
        let mut stream = BufReader::new(stream);
        if let Some(password) = &self.password {
            let said = password.as_bytes();
            let mut request = format!("*2\r\n$4\r\nAUTH\r\n${}\r\n", said.len()).into_bytes();
            request.extend_from_slice(said);
            request.extend_from_slice(b"\r\n");
            stream.get_mut().write_all(&request)?;
            let mut reply = String::new();
            stream.read_line(&mut reply)?;
            if reply.starts_with(TLS_ALERT) {
                return Err(io::Error::other(ImportError::Tls));
            }
            if reply != "+OK\r\n" {
                let says = format!("the password was answered {:?}", reply.trim_end());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, says));
            }
        }
        Ok(stream)
    }
}

impl Read for ClientStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            ClientStream::Plain(tcp) => tcp.read(into),
            ClientStream::Tls(tls) => tls.read(into),
        }
    }
}

impl Write for ClientStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ClientStream::Plain(tcp) => tcp.write(bytes),
            ClientStream::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            ClientStream::Plain(tcp) => tcp.flush(),
            ClientStream::Tls(tls) => tls.flush(),
        }
    }
}
