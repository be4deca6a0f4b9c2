//! Notices that packets are dropped because of their key. A host with a wrong key is alive and otherwise only silent.

use std::time::{Duration, Instant};

/// The counters of packets that were dropped because they lacked a valid tag.
pub const KEY_DROPS: [&str; 2] = ["bad_key", "bad_tag"];
/// Shortest time between two lines of the log: anyone can send such packets.
const LOG_PERIOD: Duration = Duration::from_secs(60);
/// How long the last such packet counts as a reason why a host reaches no others.
const RECENT: Duration = Duration::from_secs(10);

/// Observes the counters of a host.
#[derive(Debug, Default)]
pub struct KeyDrops {
    /// All packets dropped so far.
    dropped: u64,
    /// When they last became more.
    grew_at: Option<Instant>,
    /// The last line of the log: when, and how many had been dropped.
    logged: Option<(Instant, u64)>,
}

impl KeyDrops {
    /// Looks at the counters and returns a line for the log, if one is due.
    pub fn look<'n>(
        &mut self,
        now: Instant,
        counters: impl IntoIterator<Item = (&'n str, u64)>,
    ) -> Option<String> {
        let counters = counters.into_iter();
        let of_keys = counters.filter(|(name, _)| KEY_DROPS.contains(name));
        let dropped = of_keys.map(|(_, count)| count).sum();
        if dropped > self.dropped {
            self.grew_at = Some(now);
        }
        self.dropped = dropped;
        let (is_due, logged) = match self.logged {
            None => (true, 0),
            Some((at, logged)) => (now.saturating_duration_since(at) >= LOG_PERIOD, logged),
        };
        if !is_due || dropped <= logged {
            return None;
        }
        self.logged = Some((now, dropped));
        Some(in_words(dropped - logged))
    }

    /// The same as [`look`](Self::look), and logs the line.
    pub fn note<'n>(&mut self, now: Instant, counters: impl IntoIterator<Item = (&'n str, u64)>) {
        if let Some(line) = self.look(now, counters) {
            tracing::warn!("{line}");
        }
    }

    /// Returns what to say of packets that were dropped lately.
    pub fn recent(&self, now: Instant) -> Option<String> {
        let grew_at = self.grew_at?;
        (now.saturating_duration_since(grew_at) < RECENT).then(|| in_words(self.dropped))
    }
}

fn in_words(dropped: u64) -> String {
    format!(
        "{dropped} packets were dropped because of their key ({}): their senders and this host do not have the same one. \
         Give all hosts of the cluster the same key file, or none",
        KEY_DROPS.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_with_other_keys_are_reported_at_intervals_and_forgotten() {
        let mut drops = KeyDrops::default();
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut look = |s, bad_key, bad_tag| {
            let counters = [
                ("bad_key", bad_key),
                ("bad_tag", bad_tag),
                ("bad_round", 99),
            ];
            let line = drops.look(at(s), counters);
            let number = |line: String| line.split(' ').next().map(str::to_owned);
            (line.and_then(number), drops.recent(at(s)).is_some())
        };
        assert_eq!(look(0, 0, 0), (None, false));
        assert_eq!(look(1, 2, 0), (Some("2".into()), true));
        assert_eq!(look(2, 2, 3), (None, true));
        assert_eq!(look(11, 2, 3), (None, true));
        assert_eq!(look(12, 2, 3), (None, false), "nothing since");
        assert_eq!(look(61, 2, 3), (Some("3".into()), false));
        assert_eq!(look(200, 2, 3), (None, false));
        assert_eq!(look(201, 2, 4), (Some("1".into()), true));
    }
}
