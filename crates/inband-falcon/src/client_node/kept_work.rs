//! Work that is too long for a packet, for executors to fetch.

use std::collections::HashMap;

use crate::blobs::Blobs;
use crate::limits::INLINE_LEN_BYTES_MAX;
use crate::message::{Payload, Place};
use crate::task::TaskId;

/// See the module.
pub struct KeptWork {
    blobs: Blobs,
    by_task: HashMap<TaskId, Place>,
}

impl KeptWork {
    pub fn new(blobs: Blobs) -> KeptWork {
        let by_task = HashMap::new();
        KeptWork { blobs, by_task }
    }

    /// What to tell an executor that asks for a task's work. `None`: too much is kept now; let it ask again.
    pub fn payload(&mut self, id: TaskId, work: &[u8]) -> Option<Payload> {
        if work.len() <= INLINE_LEN_BYTES_MAX {
            return Some(Payload::Inline(work.to_vec()));
        }
        // Who asks again may already be fetching it by the answer before.
        if let Some(place) = self.by_task.get(&id) {
            return Some(Payload::At(*place));
        }
        let place = self.blobs.keep(work).ok()?;
        self.by_task.insert(id, place);
        Some(Payload::At(place))
    }

    /// Nobody needs the work of this task any more.
    pub fn forget(&mut self, id: TaskId) {
        if let Some(place) = self.by_task.remove(&id) {
            self.blobs.forget(place.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inband_dataplane::auth::Digest;
    use inband_transport::tls::Transport;
    use std::net::TcpListener;

    #[test]
    fn who_asks_again_is_told_the_same_until_the_task_is_done() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let blobs = Blobs::serve(listener, Transport::plain(), Digest::PLAIN).expect("a thread");
        let mut kept = KeptWork::new(blobs);
        let id = TaskId {
            user: 1,
            job: 2,
            task: 3,
        };
        let long = [7; INLINE_LEN_BYTES_MAX + 1];
        let first = kept.payload(id, &long).expect("there is room");
        assert!(matches!(first, Payload::At(_)));
        assert_eq!(kept.payload(id, &long), Some(first));
        assert_eq!(kept.blobs.len_bytes(), long.len());
        kept.forget(id);
        kept.forget(id);
        assert_eq!(kept.blobs.len_bytes(), 0);
        let short = Payload::Inline(vec![7; INLINE_LEN_BYTES_MAX]);
        assert_eq!(kept.payload(id, &long[1..]), Some(short));
    }
}
