//! A cluster as it is to start: with the logs of its directory, or an empty table.

use std::fs;
use std::path::PathBuf;

use anyhow::{ensure, Result};
use inband_box::durable::Durability;
use inband_box::membership::{ids, Membership};
use inband_box::promise::majority;
use inband_box::stored::{has_log, has_promised, is_new};
use serde::{Deserialize, Serialize};

use super::{name_of, Options, Quorum};
use crate::supervisor::host_dir;

/// The options with which the cluster was started, in its directory.
pub(super) const FILE: &str = "cluster.json";
/// The nodes of the cluster since then, likewise.
pub(super) const MEMBERS_FILE: &str = "members.json";
/// What a cluster that begins with an empty table must not find.
pub(super) const FILES: [&str; 2] = [FILE, MEMBERS_FILE];

#[derive(Debug, Clone)]
pub struct Spec {
    pub data: PathBuf,
    pub options: Options,
    /// The nodes' program; by default the `inband-box` next to this one.
    pub program: Option<PathBuf>,
}

/// The nodes of a cluster, for its next start.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Nodes {
    /// All that are to start.
    pub(super) reach: Vec<u8>,
    /// The one of them that was joining, so that it may not have a log, or have started at all; 0: none. It may have
    /// become a member since.
    pub(super) joining: u8,
}

impl Nodes {
    pub(super) fn of(membership: &Membership) -> Nodes {
        Nodes {
            reach: ids(membership.reach()).collect(),
            joining: membership.joining,
        }
    }

    /// Reads the file of a cluster; earlier versions stored a list without saying who was joining.
    fn read(text: &[u8]) -> Option<Nodes> {
        let list = || {
            let reach = serde_json::from_slice(text).ok()?;
            Some(Nodes { reach, joining: 0 })
        };
        serde_json::from_slice(text).ok().or_else(list)
    }
}

impl Spec {
    /// The nodes that the cluster had last, if there are any on disk; else those that begin together.
    pub(super) fn nodes(&self) -> Nodes {
        let founding = || Nodes::of(&Membership::founding(self.options.nodes, Quorum::default()));
        if self.options.durability == Durability::Memory || self.options.accept_loss {
            return founding();
        }
        let text = fs::read(self.data.join(MEMBERS_FILE));
        let stored = text.ok().and_then(|text| Nodes::read(&text));
        stored.unwrap_or_else(founding)
    }

    /// The nodes that start with the cluster.
    pub(super) fn members(&self) -> Vec<u8> {
        self.nodes().reach
    }

    /// The nodes of which a majority must have the log.
    fn names(&self) -> impl Iterator<Item = String> {
        let Nodes { reach, joining } = self.nodes();
        let members = reach.into_iter().filter(move |id| *id != joining);
        members.map(name_of)
    }

    pub(super) fn is_there(&self, name: &str) -> bool {
        has_promised(&host_dir(&self.data, name))
    }

    /// Returns whether the cluster continues with the logs on its nodes' disks. If a first start was interrupted, there
    /// may be nodes that have not begun.
    pub(super) fn goes_on(&self) -> bool {
        let options = &self.options;
        let has_begun = |name: &String| self.is_there(name) && !is_new(&host_dir(&self.data, name));
        let is_sync = options.durability == Durability::Sync;
        is_sync && !options.accept_loss && self.names().any(|name| has_begun(&name))
    }

    /// How many nodes began together, as far as the directory says.
    fn begun_with(&self) -> Option<u8> {
        let text = fs::read(self.data.join(FILE)).ok()?;
        let options: Options = serde_json::from_slice(&text).ok()?;
        Some(options.nodes)
    }

    pub(super) fn check_loss(&self) -> Result<()> {
        let (options, data) = (&self.options, self.data.display());
        if options.accept_loss {
            return Ok(());
        }
        let has_log = |name: &String| has_log(&host_dir(&self.data, name));
        let members = self.names().count();
        let with_log = self.names().filter(has_log).count();
        let there = self.names().filter(|name| self.is_there(name)).count();
        if options.durability == Durability::Memory {
            ensure!(
                with_log == 0,
                "--durability memory: the table in {data} is on disk; give --durability sync to go on with it, or --accept-loss to begin with an empty one"
            );
            ensure!(
                there == 0,
                "--data: the table in {data} was lost when its nodes stopped (it is kept in their memory alone); give --accept-loss to begin with an empty one"
            );
            return Ok(());
        }
        if !self.goes_on() {
            return Ok(());
        }
        let before = self.begun_with().unwrap_or(options.nodes);
        ensure!(
            before == options.nodes,
            "--nodes {}: the cluster in {data} began with {before}; give as many as then, or give --accept-loss to begin with an empty table",
            options.nodes
        );
        ensure!(
            with_log >= majority(members as u8),
            "--durability sync: only {with_log} of {members} nodes in {data} have their log on disk; if they ran with --durability memory their table is lost: give --accept-loss to begin with an empty one"
        );
        Ok(())
    }
}
