//! A host's acceptor as its part in the control plane sees it: registers, and a journal if the host keeps one. It does what
//! the program's own does (`control_plane` of `inband`): what a reconfiguration changes is on disk before it counts.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use inband_control::acceptor::{AcceptorError, AcceptorState, Holds, Merged, Piece, Position};
use inband_control::configuration::Epoch;
use inband_control::registers::RegisterState;
use inband_ground::auth::Digest;
use inband_paxos::dataplane::soft::{Geometry, Registers};
use inband_paxos::host::Host;
use inband_paxos::journal::{self, AcceptorDisk, Reconfigured, Synced};
use inband_paxos::timing::Micros;

/// What a member needs of its host to write to the journal, lent to it for one event.
pub(crate) struct Desk {
    pub host: Host,
    pub disk: AcceptorDisk,
    now: Micros,
    /// Everything that the acceptor has done is on disk.
    pub is_written: bool,
}

impl Desk {
    pub fn new((host, disk): (Host, AcceptorDisk), now: Micros) -> Desk {
        Desk {
            host,
            disk,
            now,
            is_written: false,
        }
    }

    fn keep(&mut self, what: Reconfigured, holds: Option<Holds>) -> Result<(), AcceptorError> {
        let (journal, registers) = self.host.journal_mut().expect("it keeps one");
        let holds = holds.map(|Holds { epoch, base }| journal::Holds { epoch, base });
        journal.reconfigured(what, holds);
        match self.disk.sync(self.now, journal, registers) {
            Synced::Done | Synced::Again => {
                self.is_written = true;
                Ok(())
            }
            Synced::Failed(error) | Synced::FailedAgain(error) => {
                self.is_written = false;
                Err(AcceptorError::Unreachable(error.to_string()))
            }
        }
    }
}

type State = RegisterState<Arc<Registers>>;

pub(crate) struct SimAcceptor {
    state: State,
    /// Empty on a host without a journal.
    desk: Rc<RefCell<Option<Desk>>>,
}

impl SimAcceptor {
    pub fn new(
        registers: Arc<Registers>,
        geometry: Geometry,
        holds: Option<journal::Holds>,
        desk: Rc<RefCell<Option<Desk>>>,
    ) -> SimAcceptor {
        let holds = holds.map(|journal::Holds { epoch, base }| Holds { epoch, base });
        SimAcceptor {
            state: RegisterState::restored(registers, geometry, Digest::PLAIN, holds),
            desk,
        }
    }

    fn change(
        &mut self,
        keep: Option<Reconfigured>,
        change: impl FnOnce(&mut State) -> Result<(), AcceptorError>,
    ) -> Result<(), AcceptorError> {
        let mut state = self.state.clone();
        change(&mut state)?;
        if let (Some(what), Some(desk)) = (keep, &mut *self.desk.borrow_mut()) {
            desk.keep(what, state.holds())?;
        }
        self.state = state;
        Ok(())
    }
}

impl AcceptorState for SimAcceptor {
    fn partitions(&self) -> usize {
        self.state.partitions()
    }

    fn digest(&self) -> Digest {
        self.state.digest()
    }

    fn position(&self, partition: usize) -> Position {
        self.state.position(partition)
    }

    fn epoch(&self) -> Epoch {
        self.state.epoch()
    }

    fn is_voting(&self) -> bool {
        self.state.is_voting()
    }

    fn holds(&self) -> Option<Holds> {
        self.state.holds()
    }

    fn seal(&mut self, epoch: Epoch) -> Result<(), AcceptorError> {
        self.change(Some(Reconfigured::Registers), |a| a.seal(epoch))
    }

    fn export(
        &self,
        partition: usize,
        from: u64,
        len_bytes_max: usize,
    ) -> Result<Piece, AcceptorError> {
        self.state.export(partition, from, len_bytes_max)
    }

    fn install(&mut self, partition: usize, merged: &Merged) -> Result<(), AcceptorError> {
        self.change(None, |a| a.install(partition, merged))
    }

    fn installed(&mut self, holds: Holds) -> Result<(), AcceptorError> {
        self.change(Some(Reconfigured::Slots), |a| a.installed(holds))
    }

    fn start_fresh(&mut self, epoch: Epoch, first: &[u64]) -> Result<(), AcceptorError> {
        self.change(Some(Reconfigured::Slots), |a| a.start_fresh(epoch, first))
    }

    fn open(&mut self) -> Result<(), AcceptorError> {
        self.change(Some(Reconfigured::Registers), State::open)
    }
}
