//! Clients: accepting them, taking their requests, writing their replies.

use std::time::Instant;

use inband_resp::reply::Reply;
use inband_resp::request::Args;

use super::{end_subscriptions, Replica, ReplicaConfig, DRAINING, NO_MEMBER};
use crate::cluster_clock::ClusterClock;
use crate::connection::{Connection, Intake, Item, Next, Written};
use crate::control::{add, ReplicaControl};
use crate::limit_hits::LimitHit;
use crate::limits::VALUES_REPLY_BYTES_MAX;
use crate::local::{self, World};
use crate::machine::Machine;
use crate::peer_exchange::{Condition, View};
use crate::space::Room;
use crate::table::CommandId;

/// The conditions for requests at one time.
pub(super) struct Terms {
    partitions: usize,
    refusal: Option<Reply>,
    write_refusal: Option<Reply>,
    has_room_to_delete: bool,
    now: Instant,
    view: Option<View>,
}

impl Terms {
    pub(super) fn intake<'a>(
        &'a self,
        config: &ReplicaConfig,
        control: &'a ReplicaControl,
        machine: &'a Machine,
    ) -> Intake<'a> {
        Intake {
            partitions: self.partitions,
            refusal: self.refusal.as_ref(),
            write_refusal: self.write_refusal.as_ref(),
            has_room_to_delete: self.has_room_to_delete,
            reads: config.reads,
            now: self.now,
            hits: &control.limit_hits,
            scripts: machine.scripts(),
            redirection: self.view.as_ref().and_then(View::redirection),
        }
    }
}

impl Replica {
    pub(super) fn terms(&self) -> Terms {
        Terms {
            partitions: self.identity.partitions,
            refusal: self.refusal(),
            write_refusal: self.write_refusal.clone(),
            has_room_to_delete: self.space.room() < Room::None,
            now: self.now,
            view: self.config.discovery.redirects.then(|| self.peers.view()),
        }
    }

    /// A replica that loads or drains accepts clients and answers LOADING. When the process is exiting, new clients
    /// wait for its successor: a supervisor or systemd may hold the socket; otherwise they are disconnected at exit.
    pub(super) fn accepts(&self) -> bool {
        !self.control.is_ending()
    }

    /// Clients must present something else than before.
    pub(super) fn change_access(&mut self) {
        let Some(new) = self.control.take_access() else {
            return;
        };
        if let Some(password) = new.password {
            self.config.password = Some(password);
        }
        if let Some(tls) = new.tls {
            self.front.set_tls(tls);
        }
    }

    /// The clients of a host that was removed must go elsewhere: they are disconnected once they are answered.
    pub(super) fn look_at_membership(&mut self) {
        let was_member = std::mem::replace(&mut self.is_member, self.log.is_member());
        if self.is_member || !was_member {
            return;
        }
        tracing::warn!(
            "this host is in no configuration of its cluster; its clients are disconnected"
        );
        let places = self.front.connections.places();
        for slot in places.map(|(slot, _)| slot).collect::<Vec<_>>() {
            if let Some(connection) = self.front.connections.get_mut(slot) {
                connection.is_closing = true;
            }
            self.want_attention(slot);
        }
    }

    /// Returns what clients are told when this replica takes no more commands.
    pub(super) fn farewell(&self) -> Option<&'static str> {
        match self.is_member {
            false => Some(NO_MEMBER),
            true => self.control.is_draining().then_some(DRAINING),
        }
    }

    pub(super) fn accept(&mut self) {
        if self.accepts() {
            let partitions = self.identity.partitions;
            let is_trusted = self.config.password.is_none();
            let latencies = &self.control.latencies;
            let make = |arrival| Connection::new(arrival, partitions, is_trusted, latencies);
            let accepted = self.front.accept(self.now, make);
            self.guard.note_refused(&accepted);
            for slot in accepted.slots {
                self.want_attention(slot);
            }
        }
    }

    pub(super) fn want_attention(&mut self, slot: usize) {
        if let Some(connection) = self.front.connections.get_mut(slot) {
            if !connection.is_in_attention_list {
                connection.is_in_attention_list = true;
                self.attention.push(slot);
            }
        }
    }

    /// Serves all connections on the attention list.
    pub(super) fn serve_attention(&mut self) {
        let slots = std::mem::take(&mut self.attention);
        self.take_ahead(&slots);
        for slot in &slots {
            if let Some(connection) = self.front.connections.get_mut(*slot) {
                connection.is_in_attention_list = false;
                self.serve(*slot);
            }
        }
        // Connections that were added meanwhile are served in the next turn.
        if self.attention.is_empty() {
            self.attention = slots;
            self.attention.clear();
        }
    }

    /// Processes a connection's requests, and answers those that this replica answers itself.
    pub(super) fn serve(&mut self, slot: usize) {
        let Some(connection) = self.front.connections.get_mut(slot) else {
            return;
        };
        // Already counted, if it was taken ahead.
        let mut found = connection.found_ahead();
        if found.is_none() {
            connection.start_turn();
        }
        self.finish_alone(slot);
        let terms = self.terms();
        let mut requests = 0;
        loop {
            let intake = terms.intake(&self.config, &self.control, &self.machine);
            let Some(connection) = self.front.connections.get_mut(slot) else {
                return;
            };
            let before = connection.requests;
            let next = match found.take() {
                Some(found) => found,
                None => connection.next(&intake, &mut self.scratch),
            };
            requests += connection.requests - before;
            match next {
                Ok(Next::Nothing) => break,
                Ok(Next::Answered) => {}
                Ok(Next::Command(lane)) => {
                    self.waiting_commands += 1;
                    self.lanes[lane].packer.push_ready(slot, connection);
                }
                Ok(Next::Local(id, args)) => {
                    let args = args.args();
                    let is_done = self.change_subscriptions(slot, id, args)
                        || self.change_watchers(slot, id, args);
                    if !is_done {
                        let reply = self.execute_local(slot, id, args);
                        self.answer_local(slot, reply);
                    }
                }
                Ok(Next::Scan(args)) => self.start_scan(slot, args),
                Ok(Next::Pop(pop)) => self.start_pop(slot, pop),
                Ok(Next::Export) => {
                    self.start_export(slot);
                    break;
                }
                Ok(Next::LocalTransaction(items)) => {
                    let reply = self.complete(slot, items, Vec::new());
                    self.answer_local(slot, reply);
                }
                Err(error) => {
                    tracing::debug!("reading from {}: {error}", connection.peer);
                    if error.kind() == std::io::ErrorKind::InvalidData {
                        self.control.limit_hits.count(LimitHit::Tls);
                    }
                    self.close(slot);
                    break;
                }
            }
        }
        add(&self.control.counters.requests_total, requests);
        self.dirty.push(slot);
        self.close_if_gone(slot);
        if let (Some(connection), false) = (self.front.connections.get_mut(slot), self.is_member) {
            // A new client is told why.
            connection.is_closing |= connection.requests > 0;
        }
        let has_more = self.front.connections.get(slot).map(|c| c.has_input_work());
        if has_more == Some(true) {
            self.want_attention(slot);
        }
    }

    /// Returns the reply to commands for the logs while they are refused.
    pub(super) fn refusal(&self) -> Option<Reply> {
        if self.is_loading && self.is_member {
            self.publish();
            return Some(Reply::error(local::loading_error(&self.control.status())));
        }
        if let Some(farewell) = self.farewell() {
            return Some(Reply::error(farewell));
        }
        if let Some(behind) = self.behind_refusal() {
            return Some(behind);
        }
        let is_timeless = self.is_timeless;
        let refusal = is_timeless.then(|| self.clock.look(ClusterClock::refusal));
        refusal.flatten().map(Reply::error)
    }

    /// How this replica is, for clients that look for one.
    pub(super) fn condition(&self) -> Condition {
        let is_behind = self.catch_up.is_behind(self.now);
        if self.is_loading || is_behind || self.is_timeless || self.farewell().is_some() {
            return Condition::Refuses;
        }
        match self.is_any_stuck() {
            true => Condition::Stuck,
            false => Condition::Serves,
        }
    }

    pub(super) fn answer_local(&mut self, slot: usize, reply: Reply) {
        if let Some(connection) = self.front.connections.get_mut(slot) {
            connection.answer_local(reply);
        }
    }

    pub(super) fn execute_local(&mut self, slot: usize, id: CommandId, args: Args<'_>) -> Reply {
        if let Some(asked) = local::unblock(id, args) {
            return match asked {
                Ok((client, with_error)) => self.unblock(client, with_error),
                Err(reply) => reply,
            };
        }
        // As in Redis; health checks rely on it.
        let is_behind = self.catch_up.is_behind(self.now);
        let is_loading = self.is_loading || is_behind || !self.is_member;
        if let (CommandId::Ping, true, Some(refusal)) = (id, is_loading, self.refusal()) {
            return refusal;
        }
        self.publish();
        let control = &self.control;
        let mut world = World {
            status: control.status(),
            expiring_keys: &|| control.expiring_keys(),
            connections: &mut self.front.connections,
            slot,
            password: self.config.password.as_ref(),
            hits: &self.control.limit_hits,
            identity: &self.identity,
            scripts: self.machine.scripts(),
            subscriptions: &self.subscriptions,
            peers: &self.peers,
            events: Some(self.machine.store(0).events()),
            now: self.now,
        };
        local::execute(id, args, &mut world)
    }

    /// Processes the reply of a request that runs alone.
    pub(super) fn finish_alone(&mut self, slot: usize) {
        if self.finish_attempt(slot) {
            return;
        }
        let connection = self.front.connections.get_mut(slot);
        let Some((items, reply)) = connection.and_then(|c| c.take_alone()) else {
            return;
        };
        let reply = match reply {
            Reply::Array(replies) if !items.is_empty() => self.complete(slot, items, replies),
            other => other,
        };
        self.answer_alone(slot, reply);
    }

    /// Answers a request that runs alone, unless the client is gone.
    pub(super) fn answer_alone(&mut self, slot: usize, reply: Reply) {
        if let Some(connection) = self.front.connections.get_mut(slot) {
            connection.answer_alone(reply);
        }
    }

    /// Returns the reply to a transaction; `replies` are those of its commands that went through the log.
    pub(super) fn complete(&mut self, slot: usize, items: Vec<Item>, replies: Vec<Reply>) -> Reply {
        let mut replies = replies.into_iter();
        let (mut all, mut len_bytes) = (Vec::with_capacity(items.len()), 0);
        for item in items {
            let reply = match item {
                Item::Replicated => replies.next().unwrap_or(Reply::Nil),
                Item::Local(..) if len_bytes > VALUES_REPLY_BYTES_MAX => Reply::error(format!(
                    "ERR the replies of the transaction are over the limit of \
                     {VALUES_REPLY_BYTES_MAX} bytes; this command was not executed"
                )),
                Item::Local(id, args) => self.execute_local(slot, id, args.args()),
                Item::Answered(reply) => reply,
            };
            len_bytes += reply.len_bytes();
            all.push(reply);
        }
        Reply::Array(all)
    }

    pub(super) fn write_replies(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        self.write_ahead(&dirty);
        for slot in dirty.drain(..) {
            let Some(connection) = self.front.connections.get_mut(slot) else {
                continue;
            };
            if connection.is_over_output_limit() {
                self.close_for(slot, LimitHit::Output);
                continue;
            }
            let Written { was_full, result } = connection.write(self.now);
            if let Err(error) = result {
                tracing::debug!("writing to {}: {error}", connection.peer);
                self.close(slot);
                continue;
            }
            self.watchers.note_room(connection);
            let limit = self.config.subscriber_output_bytes_max;
            if connection.subscriptions() > 0 && connection.output.len() > limit {
                self.close_for(slot, LimitHit::Subscriber);
                continue;
            }
            if connection.is_finished() {
                connection.wire.say_goodbye();
                self.close(slot);
                continue;
            }
            if was_full {
                // There was no room for its replies before; there may be now.
                for (log, lane) in self.lanes.iter_mut().enumerate() {
                    if connection.is_ready_to_pack(log) {
                        lane.packer.push_ready(slot, connection);
                    }
                }
                if connection.has_input_work() {
                    self.want_attention(slot);
                }
            }
            self.front.connections.account(slot);
        }
        self.dirty = dirty;
        self.bound_memory();
    }

    pub(super) fn close(&mut self, slot: usize) {
        if let Some(mut connection) = self.front.close(slot) {
            end_subscriptions(&self.subscriptions, slot, &mut connection);
            self.watchers.close(slot, &mut connection);
            self.waiting_commands -= connection.waiting_commands();
            self.forget_waiting(connection.waiting_number());
        }
    }
}
