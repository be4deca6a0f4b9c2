//! Keeps the service manager (systemd) informed about this host: ready, at work, stopping.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{sleep, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use inband_host::notify::Notifier;

use crate::serve::HostView;
use crate::{health, published};

/// How soon a stop and a turn of the main loop are noticed.
const POLL: Duration = Duration::from_millis(20);
/// How often it is checked whether the host is ready: until it is, and from then on. Each check asks a majority.
const UNREADY_PERIOD: Duration = Duration::from_millis(200);
const READY_PERIOD: Duration = Duration::from_secs(5);
/// What `systemctl status` shows of a host that is ready.
const READY: &str = "ready";

/// The thread that informs the service manager. It ends when the host stops, or when this is dropped; its last message is
/// sent before the drop returns.
pub struct Announcer {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Announcer {
    /// Informs the service manager, if there is one. `READY=1` is sent once, when `/ready` would answer 200 for the first
    /// time; after that only the status changes.
    pub fn start(view: HostView) -> Result<Announcer> {
        let is_over = Arc::new(AtomicBool::new(false));
        let notifier = view.notifier.clone();
        let thread = notifier
            .is_heard()
            .then(|| {
                let is_over = is_over.clone();
                let thread = std::thread::Builder::new().name("announce".into());
                thread.spawn(move || inform(&view, notifier, &is_over))
            })
            .transpose()?;
        Ok(Announcer { is_over, thread })
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn inform(view: &HostView, mut notifier: Notifier, is_over: &AtomicBool) {
    let mut was_ready = false;
    let mut said = String::new();
    let mut check_at = Instant::now();
    let stops = || view.is_stopping() || is_over.load(Ordering::Acquire);
    while !stops() {
        if let Some(turned_at) = published::read(&view.state).published_at {
            notifier.turned(turned_at);
        }
        if Instant::now() >= check_at {
            let result = health::ready(view);
            let is_ready = result.is_ok();
            let status = result.map_or_else(|why| format!("not ready: {why:#}"), |()| READY.into());
            if is_ready && !was_ready {
                notifier.ready(&status);
                was_ready = true;
            } else if status != said {
                notifier.status(&status);
            }
            said = status;
            check_at = Instant::now()
                + if is_ready {
                    READY_PERIOD
                } else {
                    UNREADY_PERIOD
                };
        }
        sleep(POLL);
    }
    notifier.stopping();
}
