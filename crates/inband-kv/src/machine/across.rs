//! The keys of several partitions, for a cross-partition command.

use crate::events::{EventClass, EventClasses};
use crate::keyspace::{Keys, Record, View};
use crate::partition::partition_of;
use crate::script_cache::Scripts;
use crate::subscriptions::Subscriptions;
use crate::types::Kind;

const INVOLVED: &str = "a partition is involved";

/// The keyspaces of the partitions that a command involves.
pub(super) struct Across<'a> {
    views: Vec<Option<View<'a>>>,
}

impl<'a> Across<'a> {
    pub(super) fn new(partitions: usize) -> Self {
        Self {
            views: (0..partitions).map(|_| None).collect(),
        }
    }

    pub(super) fn put(&mut self, partition: usize, view: View<'a>) {
        self.views[partition] = Some(view);
    }

    fn of(&mut self, key: &[u8]) -> &mut View<'a> {
        let partition = partition_of(key, self.views.len());
        self.views[partition]
            .as_mut()
            .expect("the partition of every key of a command is involved")
    }

    fn first(&self) -> &View<'a> {
        self.involved().next().expect(INVOLVED)
    }

    fn involved(&self) -> impl Iterator<Item = &View<'a>> {
        self.views.iter().flatten()
    }
}

impl Keys for Across<'_> {
    fn now_ms(&self) -> u64 {
        self.involved().map(View::now_ms).max().unwrap_or(0)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Record<'_>>, rocksdb::Error> {
        self.of(key).get(key)
    }

    fn put_as(
        &mut self,
        kind: Kind,
        key: &[u8],
        expire_at_ms: u64,
        value: &[u8],
    ) -> Result<(), rocksdb::Error> {
        self.of(key).put_as(kind, key, expire_at_ms, value)
    }

    fn issue_token(&mut self, key: &[u8]) -> u64 {
        self.of(key).issue_token(key)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, rocksdb::Error> {
        self.of(key).delete(key)
    }

    fn count(&self) -> u64 {
        self.involved().map(View::count).sum()
    }

    fn flush(&mut self) {
        self.views.iter_mut().flatten().for_each(View::flush);
    }

    fn each(&mut self, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), rocksdb::Error> {
        let mut goes_on = true;
        for view in self.views.iter_mut().flatten() {
            view.each(&mut |key| {
                goes_on = visit(key);
                goes_on
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    fn grown_len_bytes_max(&self) -> usize {
        self.involved()
            .map(View::grown_len_bytes_max)
            .min()
            .unwrap_or(0)
    }

    fn put_bytes(&self) -> u64 {
        self.involved().map(View::put_bytes).sum()
    }

    fn has_channel(&self, channel: &[u8]) -> bool {
        self.views[partition_of(channel, self.views.len())].is_some()
    }

    fn publish(&mut self, channel: &[u8], payload: &[u8]) -> usize {
        self.of(channel).publish(channel, payload)
    }

    fn events(&self) -> EventClasses {
        self.first().events()
    }

    fn set_events(&mut self, classes: EventClasses) {
        let views = self.views.iter_mut().flatten();
        views.for_each(|view| view.set_events(classes));
    }

    fn notify(&mut self, class: EventClass, event: &str, key: &[u8]) {
        self.of(key).notify(class, event, key);
    }

    fn subscriptions(&self) -> &Subscriptions {
        self.first().subscriptions()
    }

    fn count_published(&mut self, bytes: u64) {
        let first = self.views.iter_mut().flatten().next();
        first.expect(INVOLVED).count_published(bytes);
    }

    fn scripts(&self) -> &Scripts {
        self.first().scripts()
    }
}
