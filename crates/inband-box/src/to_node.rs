//! How a node's gateway, on its own thread, reaches the node.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender};

use crate::gateway::{Event, Submit};
use crate::process::Asked;

/// The gateway's end of the connection.
pub(crate) struct ToNode {
    pub asked: Sender<Asked>,
    pub events: Receiver<Event>,
    /// A byte here wakes the node's thread.
    pub waker: UnixStream,
    pub seq: u64,
    pub wakes: bool,
}

impl Submit for ToNode {
    fn submit(&mut self, value: Vec<u8>) -> u64 {
        self.seq += 1;
        // If the node has ended, this thread will end, too.
        let _ = self.asked.send(Asked::Submit(value));
        self.wakes = true;
        self.seq
    }

    fn barrier(&mut self, id: u64) {
        let _ = self.asked.send(Asked::Barrier(id));
        self.wakes = true;
    }

    fn events(&mut self, into: &mut Vec<Event>) {
        into.extend(self.events.try_iter());
    }

    fn flush(&mut self) {
        if std::mem::take(&mut self.wakes) {
            // If the pipe is full the node wakes up as well.
            let _ = self.waker.write(&[0]);
        }
    }
}
