//! A connection that watches keys: it gets pushes whenever there are any.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

/// A part of what a replica has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    Line(String),
    Error(String),
    Text(Option<String>),
    Many(Vec<Sent>),
}

#[derive(Debug)]
pub struct Subscription {
    stream: TcpStream,
    /// What has arrived and is not complete yet.
    input: Vec<u8>,
}

impl Subscription {
    pub fn connect(address: SocketAddr, limit: Duration) -> Result<Subscription> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_write_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
        Ok(Subscription {
            stream,
            input: Vec::new(),
        })
    }

    pub fn send(&mut self, words: &[&str]) -> Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        Ok(self.stream.write_all(request.as_bytes())?)
    }

    /// Returns what comes next; `None` if nothing does within `limit`.
    pub fn next(&mut self, limit: Duration) -> Result<Option<Sent>> {
        self.stream.set_read_timeout(Some(limit))?;
        loop {
            let mut rest = &self.input[..];
            if let Some(sent) = parse(&mut rest)? {
                let taken = self.input.len() - rest.len();
                self.input.drain(..taken);
                return Ok(Some(sent));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => bail!("the connection was closed"),
                Ok(len) => self.input.extend_from_slice(&bytes[..len]),
                Err(error)
                    if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Takes something complete from the front of the input; `None` if there is not enough yet.
fn parse(input: &mut &[u8]) -> Result<Option<Sent>> {
    let Some(end) = input.windows(2).position(|two| two == b"\r\n") else {
        return Ok(None);
    };
    let line = String::from_utf8_lossy(&input[..end]).into_owned();
    let (kind, text) = line.split_at_checked(1).context("an empty line was sent")?;
    let mut rest = &input[end + 2..];
    let sent = match kind {
        "$" => {
            let len: usize = text.parse()?;
            let Some((bytes, after)) = rest.split_at_checked(len + 2) else {
                return Ok(None);
            };
            rest = after;
            Sent::Text(Some(String::from_utf8_lossy(&bytes[..len]).into_owned()))
        }
        "_" => Sent::Text(None),
        "*" | "%" | ">" => {
            let parts: usize = text.parse()?;
            let mut sent = Vec::new();
            for _ in 0..if kind == "%" { 2 * parts } else { parts } {
                match parse(&mut rest)? {
                    Some(part) => sent.push(part),
                    None => return Ok(None),
                }
            }
            Sent::Many(sent)
        }
        "-" => Sent::Error(text.to_owned()),
        kind => {
            ensure!("+:".contains(kind), "{line:?} was sent");
            Sent::Line(text.to_owned())
        }
    };
    *input = rest;
    Ok(Some(sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_must_have_arrived() {
        let bytes = b">3\r\n$5\r\na\r\nbc\r\n_\r\n*1\r\n:7\r\n-GONE x\r\n";
        let push = Sent::Many(vec![
            Sent::Text(Some("a\r\nbc".into())),
            Sent::Text(None),
            Sent::Many(vec![Sent::Line("7".into())]),
        ]);
        let whole = bytes.len() - "-GONE x\r\n".len();
        for len in 0..whole {
            assert_eq!(parse(&mut &bytes[..len]).unwrap(), None, "{len} bytes");
        }
        let mut rest = &bytes[..];
        assert_eq!(parse(&mut rest).unwrap(), Some(push));
        let error = Sent::Error("GONE x".into());
        assert_eq!(parse(&mut rest).unwrap(), Some(error));
        assert!(rest.is_empty());
        assert!(parse(&mut &b"?x\r\n"[..]).is_err());
    }
}
