//! A connection that speaks memcached's protocol, one command at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::workload::End;

pub struct Connection {
    stream: BufReader<TcpStream>,
    pub address: SocketAddr,
    limit: Duration,
}

/// The result of `gets`: the value and its cas unique.
pub type Found = Option<(String, u64)>;

impl Connection {
    /// `limit` applies to connecting and to every reply.
    pub fn open(address: SocketAddr, limit: Duration) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Connection {
            stream: BufReader::new(stream),
            address,
            limit,
        })
    }

    /// Returns a value and its cas unique. The error is the outcome of the read.
    pub fn gets(&mut self, key: &str) -> Result<Found, End> {
        let line = self.ask(&format!("gets {key}\r\n"))?;
        let Some(found) = line.strip_prefix("VALUE ") else {
            return match &line[..] {
                "END" => Ok(None),
                line => Err(refused(line)),
            };
        };
        // VALUE KEY FLAGS BYTES UNIQUE
        let words: Vec<&str> = found.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let (Some(len), Some(unique)) = (number(2), number(3)) else {
            return Err(End::Unknown(format!("a reply: {line:?}")));
        };
        let mut value = vec![0; len as usize + 2];
        let read = self.stream.read_exact(&mut value);
        read.map_err(|error| self.unknown(&error))?;
        value.truncate(len as usize);
        match &self.line()?[..] {
            "END" => Ok(Some((String::from_utf8_lossy(&value).into_owned(), unique))),
            line => Err(End::Unknown(format!("a reply: {line:?}"))),
        }
    }

    /// Executes a command. `replies` maps the server's replies to those of the operation.
    pub fn command(&mut self, request: &str, replies: &[(&str, Option<&str>)]) -> End {
        match self.ask(request) {
            Ok(line) => match replies.iter().find(|(said, _)| *said == line) {
                Some((_, reply)) => End::Ok(vec![reply.map(str::to_owned)]),
                None => refused(&line),
            },
            Err(end) => end,
        }
    }

    /// `incr` by one.
    pub fn incr(&mut self, key: &str) -> End {
        match self.ask(&format!("incr {key} 1\r\n")) {
            Ok(line) if line == "NOT_FOUND" => End::Ok(vec![None]),
            Ok(line) if line.parse::<u64>().is_ok() => End::Ok(vec![Some(line)]),
            Ok(line) if line.contains("non-numeric value") => {
                End::Ok(vec![Some("not a number".into())])
            }
            Ok(line) => refused(&line),
            Err(end) => end,
        }
    }

    /// Sends a request and reads the first line of the reply.
    fn ask(&mut self, request: &str) -> Result<String, End> {
        let sent = self.stream.get_mut().write_all(request.as_bytes());
        sent.map_err(|error| self.unknown(&error))?;
        self.line()
    }

    fn line(&mut self) -> Result<String, End> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        let read = read.map_err(|error| self.unknown(&error))?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None if read == 0 => Err(End::Unknown("the connection was closed".into())),
            None => Err(End::Unknown(format!("a reply: {line:?}"))),
        }
    }

    fn unknown(&self, error: &io::Error) -> End {
        End::Unknown(match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("no reply within {:?}", self.limit)
            }
            _ => error.to_string(),
        })
    }
}

/// Returns the outcome for a line that is not one of the command's own replies.
fn refused(line: &str) -> End {
    let is_refusal = ["SERVER_ERROR", "CLIENT_ERROR", "ERROR"]
        .iter()
        .any(|begin| line.starts_with(begin));
    match line {
        // The gateway's wording.
        line if line.contains("is unknown") => End::Unknown(line.into()),
        line if is_refusal => End::Failed(line.into()),
        line => End::Unknown(format!("a reply: {line:?}")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A connection to a server that answers each line that it reads with the next of these replies.
    fn connection(replies: &'static [&'static str]) -> Connection {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut lines = BufReader::new(stream.try_clone().expect("a second handle")).lines();
            for reply in replies {
                lines.next();
                stream.write_all(reply.as_bytes()).expect("sent");
            }
        });
        Connection::open(address, Duration::from_secs(20)).expect("connected")
    }

    fn ended(end: End) -> String {
        match end {
            End::Ok(replies) => format!("ok {replies:?}"),
            End::Failed(why) => format!("failed {why}"),
            End::Unknown(why) => format!("unknown {why}"),
        }
    }

    #[test]
    fn replies_say_how_an_operation_ended() {
        let mut to = connection(&[
            "STORED\r\n",
            "SERVER_ERROR out of memory storing object\r\n",
            "SERVER_ERROR no quorum; whether it was done is unknown\r\n",
            "7\r\n",
            "NOT_FOUND\r\n",
            "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
            "STO",
        ]);
        let mut set = || ended(to.command("x\r\n", &[("STORED", Some("OK"))]));
        assert_eq!(set(), r#"ok [Some("OK")]"#);
        assert!(set().starts_with("failed"));
        assert!(set().starts_with("unknown"));
        assert_eq!(ended(to.incr("k")), r#"ok [Some("7")]"#);
        assert_eq!(ended(to.incr("k")), "ok [None]");
        assert_eq!(ended(to.incr("k")), r#"ok [Some("not a number")]"#);
        let torn = ended(to.command("x\r\n", &[("STO", None)]));
        assert!(torn.starts_with("unknown"), "{torn}");
    }

    #[test]
    fn a_value_comes_with_its_cas_unique() {
        let mut to = connection(&["VALUE k 0 3 77\r\n1,2\r\nEND\r\n", "END\r\n"]);
        assert_eq!(to.gets("k").ok(), Some(Some(("1,2".into(), 77))));
        assert_eq!(to.gets("k").ok(), Some(None));
    }
}
