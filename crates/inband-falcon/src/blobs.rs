//! Work and results that are too long for a packet: they stay where they were made, and others fetch them over TCP.
//!
//! A request names a token, which only the packets of its task carry. The answer is the length as u64, little endian,
//! and the bytes; if the token is unknown, the connection is closed.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inband_ground::auth::Digest;
use inband_transport::accept::Accepting;
use inband_transport::paced::Pace;
use inband_transport::tls::{Stream, Transport};

use crate::limits::{BLOBS_LEN_BYTES_MAX, FETCHES_MAX, WORK_LEN_BYTES_MAX};
use crate::message::Place;

/// How slow the other end may be.
const PACE: Pace = Pace {
    silence_max: Duration::from_secs(10),
    grace: Duration::from_secs(10),
    bytes_per_s_min: 64 << 10,
};
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// Why something long cannot be kept here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeepError {
    /// It is over the limit itself.
    #[error("{0} bytes of work or of a result are over the limit of {WORK_LEN_BYTES_MAX}; put them into a file or store that both ends reach, and send its name")]
    TooLong(usize),
    /// Together with the others it would be over the limit.
    #[error("{0} bytes are kept for others to fetch, and with these it would be more than {1}; wait for tasks to end")]
    TooMany(usize, usize),
}

#[derive(Debug)]
struct Kept {
    by_token: HashMap<u64, Arc<[u8]>>,
    len_bytes: usize,
    len_bytes_max: usize,
}

/// Dropping it stops serving.
#[derive(Debug)]
pub struct Blobs {
    kept: Arc<Mutex<Kept>>,
    accepting: Accepting,
    digest: Digest,
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Blobs {
    /// Serves what is kept to clients of this socket.
    pub fn serve(listener: TcpListener, transport: Transport, digest: Digest) -> io::Result<Blobs> {
        Self::serve_up_to(BLOBS_LEN_BYTES_MAX, listener, transport, digest)
    }

    fn serve_up_to(
        len_bytes_max: usize,
        listener: TcpListener,
        transport: Transport,
        digest: Digest,
    ) -> io::Result<Blobs> {
        let kept = Arc::new(Mutex::new(Kept {
            by_token: HashMap::new(),
            len_bytes: 0,
            len_bytes_max,
        }));
        let for_threads = Arc::clone(&kept);
        let accepting = Accepting::start(listener, "blobs", FETCHES_MAX, move |tcp| {
            // A client that was cut off will ask again.
            let _ = transport
                .accept(tcp, PACE)
                .and_then(|stream| give(stream, &for_threads));
        })?;
        Ok(Blobs {
            kept,
            accepting,
            digest,
        })
    }

    /// Keeps the bytes under a random token that cannot be guessed.
    pub fn keep(&self, bytes: &[u8]) -> Result<Place, KeepError> {
        let len_bytes = bytes.len();
        if len_bytes > WORK_LEN_BYTES_MAX {
            return Err(KeepError::TooLong(len_bytes));
        }
        let digest = self.digest.of(bytes);
        let mut kept = lock(&self.kept);
        if kept.len_bytes + len_bytes > kept.len_bytes_max {
            return Err(KeepError::TooMany(kept.len_bytes, kept.len_bytes_max));
        }
        let token = std::iter::repeat_with(rand::random::<u64>)
            .find(|token| !kept.by_token.contains_key(token))
            .expect("it never ends");
        kept.by_token.insert(token, bytes.into());
        kept.len_bytes += len_bytes;
        Ok(Place {
            address: self.accepting.address(),
            token,
            len_bytes: len_bytes as u64,
            digest,
        })
    }

    /// Drops what is kept under this token.
    pub fn forget(&self, token: u64) {
        let mut kept = lock(&self.kept);
        if let Some(bytes) = kept.by_token.remove(&token) {
            kept.len_bytes -= bytes.len();
        }
    }

    pub fn len_bytes(&self) -> usize {
        lock(&self.kept).len_bytes
    }
}

fn give(mut stream: Stream, kept: &Mutex<Kept>) -> io::Result<()> {
    let mut token = [0; 8];
    stream.read_exact(&mut token)?;
    let found = lock(kept).by_token.get(&u64::from_le_bytes(token)).cloned();
    let Some(bytes) = found else {
        return Ok(());
    };
    stream.paced_mut().begin();
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(&bytes)?;
    stream.flush()
}

/// Fetches what is kept elsewhere and verifies its digest.
pub fn fetch(transport: &Transport, digest: &Digest, place: &Place) -> io::Result<Vec<u8>> {
    let len_bytes = place.len_bytes;
    let is_short = usize::try_from(len_bytes).is_ok_and(|len| len <= WORK_LEN_BYTES_MAX);
    if !is_short {
        return Err(io::Error::other(KeepError::TooLong(len_bytes as usize)));
    }
    let mut stream = transport.connect(place.address, CONNECT_LIMIT, PACE)?;
    stream.write_all(&place.token.to_le_bytes())?;
    stream.flush()?;
    let mut said = [0; 8];
    stream.read_exact(&mut said)?;
    if u64::from_le_bytes(said) != len_bytes {
        return Err(io::Error::other(format!(
            "it has {} bytes, and {len_bytes} were promised",
            u64::from_le_bytes(said)
        )));
    }
    let mut bytes = vec![0; len_bytes as usize];
    stream.read_exact(&mut bytes)?;
    if digest.of(&bytes) != place.digest {
        return Err(io::Error::other("what came is not what was promised"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use inband_ground::auth::Secret;
    use std::net::SocketAddr;

    const DIGEST: Digest = Digest::PLAIN;

    fn blobs() -> Blobs {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        Blobs::serve_up_to(4_000_000, listener, Transport::plain(), DIGEST).expect("a thread")
    }

    fn fetch_it(place: &Place) -> io::Result<Vec<u8>> {
        fetch(&Transport::plain(), &DIGEST, place)
    }

    #[test]
    fn what_is_kept_can_be_fetched_until_it_is_forgotten() {
        let blobs = blobs();
        let long: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
        let (one, other) = (blobs.keep(&long).unwrap(), blobs.keep(&[7]).unwrap());
        assert_eq!(fetch_it(&one).expect("it is there"), long);
        assert_eq!(fetch_it(&other).expect("it is there"), [7]);
        assert_eq!(fetch_it(&one).expect("again"), long);
        let len_bytes = one.len_bytes + 1;
        assert!(fetch_it(&Place { len_bytes, ..one }).is_err());
        blobs.forget(one.token);
        blobs.forget(one.token);
        assert!(fetch_it(&one).is_err());
        assert_eq!(blobs.len_bytes(), 1);
    }

    #[test]
    fn other_bytes_than_those_promised_are_not_taken() {
        let blobs = blobs();
        let (one, other) = (blobs.keep(&[1; 9]).unwrap(), blobs.keep(&[2; 9]).unwrap());
        let token = other.token;
        let error = fetch_it(&Place { token, ..one }).expect_err("these are others");
        assert!(error.to_string().contains("promised"), "{error}");
        let keyed = Digest::keyed(Secret([3; 16]));
        let error = fetch(&Transport::plain(), &keyed, &one);
        assert!(error.is_err(), "who promised them did not have the key");
    }

    #[test]
    fn too_much_is_refused() {
        let blobs = blobs();
        let len_bytes = WORK_LEN_BYTES_MAX + 1;
        assert_eq!(
            blobs.keep(&vec![0; len_bytes]),
            Err(KeepError::TooLong(len_bytes))
        );
        blobs.keep(&[0; 3_999_999]).expect("there is room");
        blobs.keep(&[0]).expect("there is just room");
        let full = KeepError::TooMany(4_000_000, 4_000_000);
        assert_eq!(blobs.keep(&[0]), Err(full));
        let place = Place {
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            token: 1,
            len_bytes: u64::MAX,
            digest: 0,
        };
        assert!(fetch_it(&place).is_err());
    }
}
