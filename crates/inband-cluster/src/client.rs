//! A RESP client that sends one command at a time: for checks and benchmarks.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use inband_kv::access::{Access, ClientStream};

/// A complete reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// `+OK` and the like.
    Status(String),
    /// An error, including its code.
    Error(String),
    Integer(i64),
    /// A string of one line.
    Text(String),
    /// No value, or a transaction that was not executed.
    Nil,
    Array(Vec<Answer>),
}

#[derive(Debug)]
pub struct Client {
    stream: BufReader<ClientStream>,
    request: String,
}

impl Client {
    /// Connects to a replica that needs neither a password nor TLS; `limit` is also the timeout of every reply.
    pub fn connect(address: SocketAddr, limit: Duration) -> Result<Client> {
        Client::connect_with(&Access::default(), address, limit)
    }

    /// Connects to a replica that may need a password or TLS.
    pub fn connect_with(access: &Access, address: SocketAddr, limit: Duration) -> Result<Client> {
        let stream = access.connect(address, limit);
        Ok(Client {
            stream: stream.with_context(|| format!("connecting to {address}"))?,
            request: String::new(),
        })
    }

    /// Sends a command and returns the first line of its reply.
    pub fn call(&mut self, parts: &[&str]) -> Result<String> {
        self.request.clear();
        self.request += &format!("*{}\r\n", parts.len());
        for part in parts {
            self.request += &format!("${}\r\n{part}\r\n", part.len());
        }
        let stream = self.stream.get_mut();
        stream.write_all(self.request.as_bytes())?;
        stream.flush()?;
        self.line()
    }

    /// Sends a command and returns its complete reply.
    pub fn ask(&mut self, parts: &[&str]) -> Result<Answer> {
        let line = self.call(parts)?;
        self.rest_of(&line)
    }

    fn rest_of(&mut self, line: &str) -> Result<Answer> {
        let (kind, text) = line.split_at_checked(1).context("an empty answer")?;
        let text = text.to_owned();
        Ok(match kind {
            "+" => Answer::Status(text),
            "-" => Answer::Error(text),
            ":" => Answer::Integer(text.parse()?),
            "$" | "*" if text == "-1" => Answer::Nil,
            "$" => Answer::Text(self.line()?),
            "*" => {
                let mut items = Vec::new();
                for _ in 0..text.parse::<usize>()? {
                    let line = self.line()?;
                    items.push(self.rest_of(&line)?);
                }
                Answer::Array(items)
            }
            _ => bail!("an answer begins with {line:?}"),
        })
    }

    /// Returns the TCP connection, which must be without TLS. No reply may be outstanding.
    pub fn into_stream(self) -> Result<TcpStream> {
        match self.stream.into_inner() {
            ClientStream::Plain(tcp) => Ok(tcp),
            ClientStream::Tls(_) => bail!("the load generator does not speak TLS"),
        }
    }

    /// Reads another line of a reply.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(
            self.stream.read_line(&mut line)? > 0,
            "the connection was closed"
        );
        Ok(line.trim_end().to_owned())
    }
}
