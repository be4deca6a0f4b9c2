//! `[host]`: what a replica tells clients that look for replicas.

use toml::Spanned;

use super::file::{mistake, Mistake, RawHost};
use super::{ClientAddress, NodeConfig, Role};

pub(super) struct Discovery {
    pub(super) announce: Option<ClientAddress>,
    pub(super) is_cluster: bool,
    pub(super) redirects: bool,
}

impl Discovery {
    pub(super) fn check(host: &RawHost, this: &NodeConfig) -> Result<Self, Mistake> {
        let is_on = |setting: &Spanned<bool>| *setting.get_ref();
        let is_cluster = host.redis_cluster.as_ref().is_some_and(is_on);
        let redirects = host.redis_cluster_redirect.as_ref().is_some_and(is_on);
        let announce = match &host.announce {
            None => None,
            Some(text) => {
                let address = text.get_ref().parse();
                let why = |why: String| mistake(text, format!("announce = {why}"));
                Some(address.or_else(why)?)
            }
        };
        let no_replica = |name: &str| {
            format!(
                "{name} is set, but node {} ({:?}) is not a replica; only replicas serve clients",
                this.id, this.name
            )
        };
        let is_replica = this.has(Role::Replica);
        match (&host.announce, &host.redis_cluster) {
            (Some(at), _) if !is_replica => return mistake(at, no_replica("announce")),
            (_, Some(at)) if is_cluster && !is_replica => {
                return mistake(at, no_replica("redis_cluster"));
            }
            _ => {}
        }
        if let (Some(at), true, false) = (&host.redis_cluster_redirect, redirects, is_cluster) {
            return mistake(
                at,
                "redis_cluster_redirect = true needs redis_cluster = true: only clients of Redis \
                 Cluster follow redirections",
            );
        }
        Ok(Self {
            announce,
            is_cluster,
            redirects,
        })
    }
}
