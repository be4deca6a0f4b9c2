//! Faults of a link, and frames that a test drops on purpose.

use crate::error::LabError;

/// One million: every frame.
pub const LOSS_SCALE_PPM: u32 = 1_000_000;

/// Faults of the link between a host and the switch. The default is a perfect link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkFaults {
    /// Random loss from the host to the switch, in frames per million.
    pub loss_from_host_ppm: u32,
    /// Random loss from the switch to the host, in frames per million.
    pub loss_to_host_ppm: u32,
    /// Drop all frames from the host to the switch.
    pub cut_from_host: bool,
    /// Drop all frames from the switch to the host.
    pub cut_to_host: bool,
    /// Hold frames from and to the host, in order, until this is cleared.
    pub held: bool,
    /// Delay every frame from and to the host by this much ...
    pub delay_us: u32,
    /// ... plus or minus up to this much, so that frames are reordered.
    pub jitter_us: u32,
    /// Duplicate frames from and to the host, in frames per million.
    pub duplicated_ppm: u32,
}

impl LinkFaults {
    /// Returns the same random loss in both directions.
    pub fn loss(ppm: u32) -> Self {
        Self {
            loss_from_host_ppm: ppm,
            loss_to_host_ppm: ppm,
            ..Self::default()
        }
    }

    /// Cuts in both directions.
    pub fn cut() -> Self {
        Self {
            cut_from_host: true,
            cut_to_host: true,
            ..Self::default()
        }
    }

    /// Creates a slow link; it reorders if `jitter_us` exceeds the time between frames.
    pub fn delay(delay_us: u32, jitter_us: u32) -> Self {
        Self {
            delay_us,
            jitter_us,
            ..Self::default()
        }
    }

    pub(crate) fn check(&self) -> Result<(), LabError> {
        let ppms = [
            ("loss", self.loss_from_host_ppm),
            ("loss", self.loss_to_host_ppm),
            ("duplication", self.duplicated_ppm),
        ];
        for (what, ppm) in ppms {
            if ppm > LOSS_SCALE_PPM {
                return Err(LabError::BadLayout(format!(
                    "{what} of {ppm} frames per million is more than all {LOSS_SCALE_PPM}"
                )));
            }
        }
        Ok(())
    }

    /// Returns whether the link's frames must pass through user space.
    pub(crate) fn queues(&self) -> bool {
        self.held || self.delay_us > 0 || self.jitter_us > 0 || self.duplicated_ppm > 0
    }
}

/// Drops the messages of one type, for tests that need exactly that loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropRule {
    /// UDP port, source or destination.
    pub udp_port: u16,
    /// Message type in the Inband header.
    pub message_type: u8,
    /// Only frames from these hosts; empty means all.
    pub from_hosts: Vec<String>,
    /// Only frames to these hosts; empty means all.
    pub to_hosts: Vec<String>,
}

/// Identifies an active drop rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DropRuleId(pub(crate) u32);

/// Frame counters of one switch port since the lab was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct LinkCounters {
    /// Received from the host.
    pub from_host: u64,
    /// Sent to the host directly through the switch (broadcasts are not counted).
    pub to_host: u64,
    /// Dropped at random.
    pub lost: u64,
    /// Dropped by a cut.
    pub cut: u64,
    /// Dropped by a drop rule.
    pub ruled_out: u64,
    /// Received from the host and passed to user space (held, delayed, or a broadcast).
    pub queued: u64,
    /// Received from the host and dropped because the ring to user space was full.
    pub queue_full: u64,
    /// Received from the host for an unknown destination.
    pub unknown_destination: u64,
    /// Sent to the host after waiting in user space.
    pub released: u64,
    /// Addressed to the host and dropped because too many frames were waiting.
    pub overflowed: u64,
}
