//! A RESP client of one command at a time: for checks and benchmarks.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{ensure, Context, Result};

/// One connection.
pub struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    request: String,
}

impl Client {
    /// Connect; `limit` also holds for every answer.
    pub fn connect(address: SocketAddr, limit: Duration) -> Result<Client> {
        let stream = TcpStream::connect_timeout(&address, limit)
            .with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(Client {
            stream,
            reader,
            request: String::new(),
        })
    }

    /// Send a command and return the first line of its answer.
    pub fn call(&mut self, parts: &[&str]) -> Result<String> {
        self.request.clear();
        self.request += &format!("*{}\r\n", parts.len());
        for part in parts {
            self.request += &format!("${}\r\n{part}\r\n", part.len());
        }
        self.stream.write_all(self.request.as_bytes())?;
        self.line()
    }

    /// The connection itself. No answer may be outstanding.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// A further line of an answer.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(
            self.reader.read_line(&mut line)? > 0,
            "the connection was closed"
        );
        Ok(line.trim_end().to_owned())
    }
}
