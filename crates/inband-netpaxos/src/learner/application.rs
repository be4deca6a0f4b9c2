//! A learner that serves an application, such as a store. The application keeps the state and the sessions, and says
//! which part of the log it no longer needs; the learner keeps the end of the log for others that are behind.

use super::{Learner, Out};
use crate::request::Value;

/// Number of instances kept although the application has applied them. A learner that is further behind needs a
/// checkpoint of the application's state.
pub const KEPT_MAX: usize = 1 << 14;

/// What a learner's application has reported.
#[derive(Debug, Default)]
pub(super) struct Application {
    /// The last applied instance, as durable as the application makes it.
    applied: u64,
    is_paused: bool,
}

impl Learner {
    /// Creates a learner for an application that has applied nothing; otherwise call [`Learner::reset`].
    pub fn under_application(config: super::Config) -> Learner {
        Learner {
            application: Some(Application::default()),
            ..Learner::new(config)
        }
    }

    /// Tells the learner that the application has the state after this instance: it delivers from the next one on.
    pub fn reset(&mut self, applied: u64) {
        if applied > self.position() {
            self.log.clear();
            self.base = applied;
            self.instances = self.instances.split_off(&(applied + 1));
            self.see(applied);
        }
        self.applied(applied);
    }

    /// Tells the learner that the application has applied everything up to this instance, and will not lose it.
    pub fn applied(&mut self, instance: u64) {
        let Some(application) = &mut self.application else {
            return;
        };
        application.applied = application.applied.max(instance);
        let applied = application.applied;
        while self.log.len() > KEPT_MAX && self.base < applied {
            self.log.pop_front();
            self.base += 1;
        }
    }

    /// Pauses or resumes delivery.
    pub fn pause(&mut self, is_paused: bool) {
        if let Some(application) = &mut self.application {
            application.is_paused = is_paused;
        }
    }

    /// Returns whether the next instances are forgotten everywhere, so that the application needs a checkpoint.
    pub fn needs_checkpoint(&self) -> bool {
        self.position() < self.forgotten
    }

    /// Returns the instance up to which storage servers may forget once a majority of the learners has reached it.
    pub(super) fn kept(&self) -> u64 {
        let application = self.application.as_ref();
        application.map_or(self.position(), |application| application.applied)
    }

    pub(super) fn is_paused(&self) -> bool {
        let application = self.application.as_ref();
        application.is_some_and(|application| application.is_paused)
    }

    /// Returns whether a value is to be applied. An application decides that itself.
    pub(super) fn applies(&mut self, instance: u64, value: &Value, out: &mut Out) -> bool {
        if self.application.is_some() {
            self.counts.noops += u64::from(value.is_none());
            return value.is_some();
        }
        self.admit(instance, value, out) == inband_host::session::Verdict::Apply
    }
}
