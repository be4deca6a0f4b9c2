//! On SIGTERM, a leader hands over its lead before it exits, so that followers need not wait until they suspect it.

use crate::control::Control;
use crate::node::{Node, Out, State, To};
use crate::promise::Nanos;
use crate::role::Role;

impl Node {
    /// Asks the follower with the most of the log to lead, again and again while it is called and this node leads. Returns
    /// whether the node may stop: it follows another leader, did not lead, or has nobody to ask. A node that was deposed
    /// may not stop before that: the next leader may need what only its log has.
    pub fn hand_over(&mut self, now: Nanos, role: &impl Role, out: &mut Out) -> bool {
        let State::Leading(leading) = &self.state else {
            let is_led = matches!(self.state, State::Following { .. });
            return is_led || self.hand_over_at.is_none();
        };
        let (cluster, registers) = (self.cluster(), role.view());
        let may_lead = |node: &u8| {
            cluster.membership.is_member(*node)
                && leading.has_log(*node, &registers)
                && registers.is_heard(*node, &cluster.config, now)
        };
        let candidates = cluster.others().filter(may_lead);
        let Some(next) = candidates.max_by_key(|node| leading.has(&registers, *node)) else {
            return true;
        };
        if self.hand_over_at.is_none_or(|at| now >= at) {
            self.hand_over_at = Some(now + self.config.resend_after_ns());
            self.say(To::Node(next), self.epoch(), &Control::TakeOver, out);
        }
        false
    }

    /// Handles our leader's request to lead: nobody needs to be asked whether it is missed.
    pub(crate) fn on_take_over(
        &mut self,
        now: Nanos,
        from: u8,
        epoch: u64,
        role: &impl Role,
        out: &mut Out,
    ) {
        let is_led = matches!(self.state, State::Following { .. })
            && (from, epoch) == (self.hint, self.epoch());
        if is_led && !self.recovering && self.latest(role).is_member(self.config.node) {
            self.elect(now, role, out);
        }
    }
}
