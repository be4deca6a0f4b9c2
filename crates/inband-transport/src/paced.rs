//! A TCP stream whose peer cannot block a thread indefinitely.
//!
//! A socket timeout bounds only a single call: a peer that sends an occasional byte never triggers it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How slow a peer may be.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// A peer that is silent for this long is disconnected.
    pub silence_max: Duration,
    /// The minimum rate is not enforced during this initial time.
    pub grace: Duration,
    /// After that, the minimum average rate in bytes per second; 0: no minimum.
    pub bytes_per_s_min: u64,
}

/// Text of the error for a slow peer; its kind is [`io::ErrorKind::TimedOut`].
pub const TOO_SLOW: &str = "the peer is too slow";

#[derive(Debug)]
pub struct Paced {
    stream: TcpStream,
    pace: Pace,
    begun: Instant,
    bytes: u64,
    deadline: Option<Instant>,
    // As set for the socket; a call that would change nothing is left out.
    read_timeout: Duration,
    write_timeout: Duration,
}

impl Paced {
    /// Enforce `pace` on a stream, which must be blocking.
    pub fn new(stream: TcpStream, pace: Pace) -> io::Result<Self> {
        stream.set_read_timeout(Some(pace.silence_max))?;
        stream.set_write_timeout(Some(pace.silence_max))?;
        Ok(Self {
            stream,
            pace,
            begun: Instant::now(),
            bytes: 0,
            deadline: None,
            read_timeout: pace.silence_max,
            write_timeout: pace.silence_max,
        })
    }

    /// Time limit for the current exchange; `None`: no limit.
    pub fn must_end_in(&mut self, limit: Option<Duration>) {
        self.deadline = limit.map(|limit| Instant::now() + limit);
    }

    /// A new exchange begins; its rate is measured from now on.
    pub fn begin(&mut self) {
        (self.begun, self.bytes) = (Instant::now(), 0);
    }

    /// Returns the stream itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Time limit for the next call.
    fn timeout(&self) -> io::Result<Duration> {
        let elapsed = self.begun.elapsed();
        let due = elapsed.as_secs_f64() * self.pace.bytes_per_s_min as f64;
        if elapsed > self.pace.grace && (self.bytes as f64) < due {
            return Err(too_slow());
        }
        let Some(deadline) = self.deadline else {
            return Ok(self.pace.silence_max);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(too_slow()),
            false => Ok(left.min(self.pace.silence_max)),
        }
    }

    fn count(&mut self, done: io::Result<usize>) -> io::Result<usize> {
        match done {
            Ok(len) => {
                self.bytes += len as u64;
                Ok(len)
            }
            // How a socket timeout is reported on Linux.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(too_slow()),
            Err(error) => Err(error),
        }
    }
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, TOO_SLOW)
}

impl Read for Paced {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let timeout = self.timeout()?;
        if timeout != self.read_timeout {
            self.stream.set_read_timeout(Some(timeout))?;
            self.read_timeout = timeout;
        }
        let done = self.stream.read(into);
        self.count(done)
    }
}

impl Write for Paced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let timeout = self.timeout()?;
        if timeout != self.write_timeout {
            self.stream.set_write_timeout(Some(timeout))?;
            self.write_timeout = timeout;
        }
        let done = self.stream.write(bytes);
        self.count(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let one = TcpStream::connect(address).expect("connects");
        (one, listener.accept().expect("accepts").0)
    }

    /// Sends a byte every few milliseconds until the reader is gone.
    fn drip(mut to: TcpStream) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            while to.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        })
    }

    fn read_until_it_fails(paced: &mut Paced) -> (io::Error, Duration) {
        let begun = Instant::now();
        loop {
            match paced.read(&mut [0; 16]) {
                Ok(len) => assert!(len > 0, "it hung up"),
                Err(error) => return (error, begun.elapsed()),
            }
        }
    }

    #[test]
    fn silence_trickles_and_deadlines_end() {
        let anything = Pace {
            silence_max: Duration::from_millis(100),
            grace: Duration::ZERO,
            bytes_per_s_min: 0,
        };
        let (near, _silent) = pair();
        let mut paced = Paced::new(near, anything).expect("a stream");
        let (error, _) = read_until_it_fails(&mut paced);
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        // Never silent, but with a time limit.
        let anything = Pace {
            silence_max: Duration::from_secs(60),
            ..anything
        };
        let (near, far) = pair();
        let mut paced = Paced::new(near, anything).expect("a stream");
        let dripping = drip(far);
        paced.must_end_in(Some(Duration::from_millis(150)));
        let (error, after) = read_until_it_fails(&mut paced);
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!((150..30_000).contains(&after.as_millis()), "{after:?}");
        // Without a limit it continues, as long as there is no minimum rate.
        paced.must_end_in(None);
        for _ in 0..20 {
            paced.read_exact(&mut [0]).expect("another byte");
        }
        drop(paced);
        dripping.join().expect("no panic");

        let (near, far) = pair();
        let dripping = drip(far);
        let pace = Pace {
            grace: Duration::from_millis(100),
            bytes_per_s_min: 1 << 20,
            ..anything
        };
        let mut paced = Paced::new(near, pace).expect("a stream");
        let (error, after) = read_until_it_fails(&mut paced);
        assert_eq!(error.to_string(), TOO_SLOW);
        assert!(after >= Duration::from_millis(100), "{after:?}");
        drop(paced);
        dripping.join().expect("no panic");
    }
}
