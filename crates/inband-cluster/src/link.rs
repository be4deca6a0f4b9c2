//! Faults of the links between a cluster's hosts: `inband link`.

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::network::{Lab, LabError, LinkFaults};

/// Longest delay of a link, and longest jitter.
pub const DELAY_US_MAX: u32 = 10_000_000;
const PPM_PER_PERCENT: f64 = 10_000.0;

/// Faults of a host's link. The default is a link without faults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct Faults {
    /// Delay every packet from and to the host by this much; at most 10 s
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(DELAY_US_MAX)))]
    pub delay_us: u32,
    /// Vary the delay by up to this much, which reorders packets; at most 10 s
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(DELAY_US_MAX)))]
    pub jitter_us: u32,
    /// Lose this share of the packets, at random, in each direction
    #[arg(long = "loss-percent", value_name = "N", default_value = "0", value_parser = ppm)]
    pub loss_ppm: u32,
    /// Lose all packets
    #[arg(long)]
    pub cut: bool,
}

/// A change of a host's link.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct Change {
    #[command(flatten)]
    #[serde(flatten)]
    pub faults: Faults,
    /// Only packets between the two hosts; with --cut, or without it to restore them
    #[arg(long, value_name = "HOST", conflicts_with_all = ["delay_us", "jitter_us", "loss_ppm"])]
    #[serde(default)]
    pub to: Option<String>,
}

/// Why a link cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("the hosts of this cluster are processes on loopback, which have no links; as root and without \
             --dataplane udp, `inband up` gives each host a namespace")]
    NoLinks,
    #[error("between two hosts packets can be lost (--cut), but not delayed: give --delay-us, --jitter-us and \
             --loss-percent without --to")]
    OnlyCut,
    #[error("{0} is both ends of the link; name another host with --to")]
    SameHost(String),
    #[error("a delay or jitter of {0} us; at most {DELAY_US_MAX} us are possible")]
    TooLong(u32),
    #[error(transparent)]
    Lab(#[from] LabError),
}

fn ppm(text: &str) -> Result<u32, String> {
    let percent: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if !(0.0..=100.0).contains(&percent) {
        return Err(format!("{percent} %; 0 to 100 are possible"));
    }
    Ok((percent * PPM_PER_PERCENT).round() as u32)
}

impl Change {
    /// Changes the link of a host of this network. A pause stays in force.
    pub fn apply(&self, lab: Option<&Lab>, host: &str) -> Result<(), LinkError> {
        let lab = lab.ok_or(LinkError::NoLinks)?;
        let faults = self.faults;
        if let Some(too_long) = [faults.delay_us, faults.jitter_us]
            .into_iter()
            .find(|us| *us > DELAY_US_MAX)
        {
            return Err(LinkError::TooLong(too_long));
        }
        let Some(to) = &self.to else {
            let held = lab.link(host)?.held;
            lab.set_link(
                host,
                LinkFaults {
                    loss_from_host_ppm: faults.loss_ppm,
                    loss_to_host_ppm: faults.loss_ppm,
                    cut_from_host: faults.cut,
                    cut_to_host: faults.cut,
                    held,
                    delay_us: faults.delay_us,
                    jitter_us: faults.jitter_us,
                    duplicated_ppm: 0,
                },
            )?;
            return Ok(());
        };
        if to == host {
            return Err(LinkError::SameHost(to.clone()));
        }
        if faults
            != (Faults {
                cut: faults.cut,
                ..Faults::default()
            })
        {
            return Err(LinkError::OnlyCut);
        }
        lab.cut_between(host, to, faults.cut)?;
        Ok(())
    }

    /// What it does to a host, in words: `its link has a delay of 5000 us`.
    pub fn in_words(&self) -> String {
        let Faults {
            delay_us,
            jitter_us,
            loss_ppm,
            cut,
        } = self.faults;
        if let Some(to) = &self.to {
            return match cut {
                true => format!("no packets to and from {to}"),
                false => format!("packets to and from {to} pass again"),
            };
        }
        let mut parts = Vec::new();
        if cut {
            parts.push("link cut".to_owned());
        }
        if delay_us > 0 || jitter_us > 0 {
            parts.push(format!("delay of {delay_us} us, jitter of {jitter_us} us"));
        }
        if loss_ppm > 0 {
            parts.push(format!(
                "{} % of the packets lost",
                f64::from(loss_ppm) / PPM_PER_PERCENT
            ));
        }
        match parts.is_empty() {
            true => "link without faults".into(),
            false => parts.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_of_packets() {
        assert_eq!((ppm("0.5"), ppm("100")), (Ok(5_000), Ok(1_000_000)));
        for bad in ["-1", "100.1", "NaN", "x"] {
            assert!(ppm(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn loopback_has_no_links() {
        let change = Change {
            faults: Faults::default(),
            to: None,
        };
        assert!(matches!(change.apply(None, "a"), Err(LinkError::NoLinks)));
    }

    #[test]
    fn a_request_names_only_what_it_changes() {
        let change: Change = serde_json::from_str(r#"{"delay_us": 7}"#).expect("a change");
        assert_eq!(
            (change.faults.delay_us, change.faults.cut, change.to),
            (7, false, None)
        );
    }
}
