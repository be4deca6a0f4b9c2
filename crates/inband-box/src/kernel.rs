//! The role in the kernel, as seen by the process beside it.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use inband_ground::auth::Keys;
use inband_ground::soft::Soft;
use inband_ground::xdp::XdpError;

use crate::registers::{Client, Clients};
use crate::role::{Record, Role};
use crate::store::Region;
use crate::xdp::Attached;
use crate::Zab;

/// How often the kernel is asked for the nodes' hardware addresses while some are unknown.
const UNRESOLVED_PERIOD: Duration = Duration::from_millis(20);
/// How often while all are known.
const RESOLVED_PERIOD: Duration = Duration::from_secs(1);

/// The program on its interface, and what the process remembers about it.
pub struct Kernel {
    attached: Attached,
    refresh_at: Instant,
    /// The role's `advances` when this turn began.
    seen: u64,
    clients: Option<Clients>,
}

impl Kernel {
    pub fn new(attached: Attached) -> Result<Kernel, XdpError> {
        Ok(Kernel {
            clients: attached.clients()?,
            attached,
            refresh_at: Instant::now(),
            seen: 0,
        })
    }

    /// Returns the client of a record that the program here made from a SET. Ask before the record is said to be
    /// applied.
    pub(crate) fn client_of(&self, record: &Record) -> Option<Client> {
        self.clients.as_ref()?.of(record)
    }

    /// As [`Attached::set_keys`].
    pub(crate) fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        self.attached.set_keys(keys)
    }

    /// Begins a turn: the process looks at the registers, and must not be woken.
    pub(crate) fn begin_turn(&mut self, role: &Soft<Zab>) -> Result<(), XdpError> {
        self.attached.set_polling(true);
        self.attached.take_notes();
        self.seen = role.advances();
        let now = Instant::now();
        if now >= self.refresh_at {
            let unresolved = self.attached.refresh_neighbours()?;
            self.refresh_at = now
                + match unresolved.is_empty() {
                    true => RESOLVED_PERIOD,
                    false => UNRESOLVED_PERIOD,
                };
        }
        Ok(())
    }

    /// Ends a turn. Returns the descriptor to sleep on, or `None` if the registers have advanced meanwhile.
    pub(crate) fn end_turn(&mut self, role: &Soft<Zab>) -> Option<RawFd> {
        self.attached.set_polling(false);
        // After the full barrier in `advances`, the program checks whether it must wake us.
        (role.advances() == self.seen).then(|| self.attached.notes().fd().as_raw_fd())
    }

    /// Returns the memory for the table, if the program answers GETs from it.
    pub(crate) fn table(&self) -> Result<Option<Region>, XdpError> {
        self.attached.table()
    }

    pub(crate) fn answers_gets(&self) -> bool {
        self.attached.answers_gets()
    }

    pub(crate) fn proposes_sets(&self) -> bool {
        self.clients.is_some()
    }

    /// The other nodes that receive packets for all nodes.
    pub(crate) fn set_others(&mut self, reach: u8) -> Result<(), XdpError> {
        self.attached.set_others(reach)?;
        // New nodes must be resolved.
        self.refresh_at = Instant::now();
        Ok(())
    }

    /// Tells the program whether all links are up.
    pub(crate) fn set_links_up(&self, yes: bool) {
        self.attached.set_links_up(yes);
    }

    /// Returns the counters of packets handled in the kernel.
    pub(crate) fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.attached.counters().unwrap_or_default()
    }
}
