//! Probes copies of the media between two lives of the stack, beside the run. One probe damages a block that
//! the media know to have been durable. The other puts the store back to an earlier state. The stack must
//! refuse to open, or show a state that the media themselves may show.

use crate::event_log::MediumRole;
use crate::run_state::SimulationRun;
use crate::stack::{RandomPick, SimulatedMedia};
use device::BLOCK_BYTES;
use sim_disk::{BlockDamage, SimDisk};
use std::sync::Arc;

/// One in this many ends of a life gets a probe of each kind.
const PROBES_ONE_IN: u64 = 12;

/// Whether to probe older stores. The stack must refuse a store that is older than its buffer expects.
const STORES_ARE_PUT_BACK: bool = true;

/// Whether reads after the open may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadExpectation {
    /// Some content may be lost. Reads of it must fail.
    MayFail,
    /// Once the stack is open, every read must succeed.
    Succeed,
}

impl SimulationRun {
    /// Runs random probes after the end of a life, before the media are opened again.
    pub(crate) fn probe(&mut self) -> Result<(), String> {
        if self.random.once_in(PROBES_ONE_IN) {
            let role = self.random.pick(&[MediumRole::Store, MediumRole::Buffer]);
            self.probe_rot(role)?;
        }
        if STORES_ARE_PUT_BACK && self.random.once_in(PROBES_ONE_IN) {
            self.probe_older_store()?;
        }
        Ok(())
    }

    /// Flips one bit in a block that a later durable write proves to have been durable.
    fn probe_rot(&mut self, role: MediumRole) -> Result<(), String> {
        let known = self.media.log.known_durable(role);
        if known.is_empty() {
            return Ok(());
        }
        let at = self.random.pick(&known);
        let bit = self.random.below(8 * BLOCK_BYTES as u64) as usize;
        let fork = self.media.fork(self.random.next_u64(), &self.options);
        fork.disk(role).damage(at, BlockDamage::Rot(bit));
        self.media.log.event(|| format!("=== a probe: {role:?} rots at {at}"), &[at.0]);
        let outcome = self.is_right_or_refused(&fork, ReadExpectation::MayFail);
        outcome.map_err(|what| format!("with a bit of the {role:?}'s block {at} turned: {what}"))
    }

    /// Puts the store back to an earlier start.
    fn probe_older_store(&mut self) -> Result<(), String> {
        let seed = self.random.next_u64();
        let mut fork = self.media.fork(seed, &self.options);
        let now = fork.store.clone();
        let Some(before) = self.older_store.replace(now) else { return Ok(()) };
        fork.store = before.fork(&fork.power, seed);
        self.media.log.event(|| "=== a probe: an older store".to_owned(), &[]);
        let outcome = self.is_right_or_refused(&fork, ReadExpectation::Succeed);
        outcome.map_err(|what| format!("with the store put back to an earlier start: {what}"))
    }

    /// Opens the stack on `media`, and compares the state if that succeeds.
    fn is_right_or_refused(&self, media: &SimulatedMedia, reads: ReadExpectation) -> Result<(), String> {
        let Ok(cache) = media.open_cache() else { return Ok(()) };
        let seen = media.mount_all(cache, &self.volumes.mounted()).and_then(|stack| stack.look());
        match (seen, reads) {
            (Ok(seen), _) => self.oracle.clone().recovered(&seen, &self.clients.outstanding()).map(drop),
            (Err(_), ReadExpectation::MayFail) => Ok(()),
            (Err(what), ReadExpectation::Succeed) => Err(what),
        }
    }
}

impl SimulatedMedia {
    fn disk(&self, role: MediumRole) -> &Arc<SimDisk> {
        match role {
            MediumRole::Store => &self.store,
            MediumRole::Buffer => &self.buffer,
        }
    }
}
