//! Delivers decided instances in order, and answers proposers.

use inband_host::session::Verdict;

use super::{Delivered, Learner, Out};
use crate::control::To;
use crate::request::Value;
use crate::wire::{emit, flag, node, Header, Type};

impl Learner {
    pub(super) fn deliver(&mut self, out: &mut Out) {
        if self.is_paused() {
            return;
        }
        while let Some(next) = self.instances.get(&(self.position() + 1)) {
            let Some(value) = next.decided.clone() else {
                return;
            };
            let instance = self.position() + 1;
            self.instances.remove(&instance);
            self.log.push_back(value.clone());
            let applies = self.applies(instance, &value, out);
            out.delivered.push(Delivered {
                instance,
                value,
                applies,
            });
        }
    }

    pub(super) fn admit(&mut self, instance: u64, value: &Value, out: &mut Out) -> Verdict {
        let Some(request) = value else {
            self.counts.noops += 1;
            return Verdict::Nothing;
        };
        let verdict = self.sessions.admit(instance, &request.origin());
        self.counts.duplicates += u64::from(verdict == Verdict::Duplicate);
        let reply = Header {
            node: node::learner(self.config.number).into(),
            flags: if verdict == Verdict::Refused {
                flag::REFUSED
            } else {
                0
            },
            client: request.client,
            request: request.number,
            instance,
            ..Header::of(Type::Reply)
        };
        out.packets
            .push((To::Proposer(request.reply_to), emit(&reply, &[])));
        verdict
    }
}
