//! `INBAND.EXPORT`: the connection becomes the stream of an export, written by a separate thread.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use inband_resp::reply::Reply;
use rustls::StreamOwned;

use super::{end_subscriptions, Replica};
use crate::connection::Connection;
use crate::control::ReplicaControl;
use crate::cut::CutWaiter;
use crate::export::{ExportError, Summary};
use crate::limit_hits::LimitHit;
use crate::limits::{EXPORTS_MAX, EXPORT_IO_TIMEOUT_MS};
use crate::machine::Machine;
use crate::packer::Submission;

/// Counts as an export in progress while it exists.
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    /// `None`: too many are in progress.
    fn begin(count: &Arc<AtomicUsize>) -> Option<Self> {
        let one = Self(count.clone());
        (count.fetch_add(1, Ordering::AcqRel) < EXPORTS_MAX).then_some(one)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Replica {
    /// Requests a cut through all partitions; `None` if there is only one partition. `Err` is the reply if it is not
    /// possible now.
    fn begin_cut(&mut self) -> Result<Option<CutWaiter>, Reply> {
        let Some(log) = self.machine.queue_log() else {
            return Ok(None);
        };
        if let Some(refusal) = self.several_refusal() {
            return Err(refusal);
        }
        // It would not be executed, and the reader would not learn why.
        if let Some(why) = self.space.why().filter(|_| self.is_disk_full()) {
            return Err(Reply::error(format!(
                "TRYAGAIN not exported: {why}; make room, then try again"
            )));
        }
        let mut to = Submission {
            connections: &mut self.front.connections,
            log: &mut *self.log,
            clock_ms: self.clock_ms,
            now: self.now,
        };
        let packer = &mut self.lanes[log].packer;
        let ticket = packer.submit_alone(&Machine::barrier(), &mut to);
        let full = || Reply::error("TRYAGAIN the log of commands over several partitions is full");
        Ok(Some(self.machine.cut_at(ticket.ok_or_else(full)?)))
    }

    /// Starts a thread that exports to this connection, which no longer belongs to the client table.
    pub(super) fn start_export(&mut self, slot: usize) {
        let Some(under_way) = UnderWay::begin(&self.exports) else {
            self.control.limit_hits.count(LimitHit::Exports);
            let text = format!("TRYAGAIN {EXPORTS_MAX} exports are under way; wait for one to end");
            return self.answer_local(slot, Reply::error(text));
        };
        let cut = match self.begin_cut() {
            Ok(cut) => cut,
            Err(reply) => return self.answer_local(slot, reply),
        };
        let Some(mut connection) = self.front.close(slot) else {
            return;
        };
        end_subscriptions(&self.subscriptions, slot, &mut connection);
        self.watchers.close(slot, &mut connection);
        let (control, peer) = (self.control.clone(), connection.peer);
        let limit = Duration::from_millis(self.config.deadline_ms);
        let export = move || {
            let source = match cut {
                Some(cut) => Source::Cut(cut, limit),
                None => Source::Now(&control),
            };
            match export(connection, source) {
                Ok(keys) => tracing::info!("exported {keys} keys to {peer}"),
                Err(error) => tracing::warn!("exporting to {peer}: {error}"),
            }
            drop(under_way);
        };
        let thread = std::thread::Builder::new().name("ib-export".into());
        if let Err(error) = thread.spawn(export) {
            tracing::warn!("starting a thread to export: {error}");
        }
    }
}

enum Source<'a> {
    /// The only partition, in its current state.
    Now(&'a ReplicaControl),
    /// All partitions at a cut, with the time limit for reaching it.
    Cut(CutWaiter, Duration),
}

impl Source<'_> {
    fn export(self, to: impl Write) -> Result<Summary, ExportError> {
        match self {
            Source::Now(control) => control.export(to),
            Source::Cut(cut, limit) => cut.export(to, limit),
        }
    }
}

/// Sends the remaining replies, then the export.
fn export(connection: Connection, source: Source<'_>) -> Result<u64, ExportError> {
    let (tcp, tls) = connection.wire.into_parts();
    let tcp = TcpStream::from(tcp);
    tcp.set_nonblocking(false)?;
    tcp.set_write_timeout(Some(Duration::from_millis(EXPORT_IO_TIMEOUT_MS)))?;
    let Some(tls) = tls else {
        return export_to(&mut &tcp, &connection.output, source);
    };
    let mut stream = StreamOwned::new(*tls, tcp);
    let result = export_to(&mut stream, &connection.output, source);
    // The stream itself shows whether the export is complete.
    stream.conn.send_close_notify();
    let _ = stream.flush();
    result
}

fn export_to(
    stream: &mut dyn Write,
    before: &[u8],
    source: Source<'_>,
) -> Result<u64, ExportError> {
    // Nothing is written before the cut is reached: the replica is paused until then.
    let mut to = AfterOk {
        stream,
        before: Some(before),
    };
    let result = source.export(&mut to);
    let AfterOk { stream, before } = to;
    if let (Err(error), Some(before)) = (&result, before) {
        stream.write_all(before)?;
        stream.write_all(format!("-TRYAGAIN {error}\r\n").as_bytes())?;
    }
    Ok(result?.keys)
}

/// Writes the remaining replies and `+OK` before the first bytes.
struct AfterOk<'a> {
    stream: &'a mut dyn Write,
    /// The remaining replies, until they are written.
    before: Option<&'a [u8]>,
}

impl Write for AfterOk<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(before) = self.before.take() {
            self.stream.write_all(before)?;
            self.stream.write_all(b"+OK\r\n")?;
        }
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
