//! What is tried on copies of the media between two lives of the stack, beside the run: damage where the media know that something
//! was durable, and one medium that was put back. Either must be refused, or show what the media themselves may show.

use crate::log::Role;
use crate::run::Run;
use crate::stack::{Media, Pick};
use device::BLOCK_BYTES;
use sim_disk::{BlockDamage, SimDisk};
use std::sync::Arc;

/// Of so many ends of a life, one is followed by a probe of each kind.
const PROBES_ONE_IN: u64 = 12;

/// Not until the store refuses to be put back below a buffer that has lived on.
const STORES_ARE_PUT_BACK: bool = true;

/// Whether somebody is to be told of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// Some content may be lost, which is an error to who reads it.
    MayFail,
    /// Once it is open, everything is there.
    Succeed,
}

impl Run {
    /// The process is gone, and what the media hold will be opened next.
    pub(crate) fn probe(&mut self) -> Result<(), String> {
        if self.random.once_in(PROBES_ONE_IN) {
            let role = self.random.pick(&[Role::Store, Role::Buffer]);
            self.probe_rot(role)?;
        }
        if STORES_ARE_PUT_BACK && self.random.once_in(PROBES_ONE_IN) {
            self.probe_older_store()?;
        }
        Ok(())
    }

    /// One bit turns in what a later write, durable by now, knows to have been durable.
    fn probe_rot(&mut self, role: Role) -> Result<(), String> {
        let known = self.media.log.known_durable(role);
        if known.is_empty() {
            return Ok(());
        }
        let at = self.random.pick(&known);
        let bit = self.random.below(8 * BLOCK_BYTES as u64) as usize;
        let fork = self.media.fork(self.random.next_u64(), &self.options);
        fork.disk(role).damage(at, BlockDamage::Rot(bit));
        self.media.log.event(|| format!("=== a probe: {role:?} rots at {at}"), &[at.0]);
        let outcome = self.is_right_or_refused(&fork, Reads::MayFail);
        outcome.map_err(|what| format!("with a bit of the {role:?}'s block {at} turned: {what}"))
    }

    /// The store is as it was at an earlier start.
    fn probe_older_store(&mut self) -> Result<(), String> {
        let seed = self.random.next_u64();
        let mut fork = self.media.fork(seed, &self.options);
        let now = fork.store.clone();
        let Some(before) = self.older_store.replace(now) else { return Ok(()) };
        fork.store = before.fork(&fork.power, seed);
        self.media.log.event(|| "=== a probe: an older store".to_owned(), &[]);
        let outcome = self.is_right_or_refused(&fork, Reads::Succeed);
        outcome.map_err(|what| format!("with the store put back to an earlier start: {what}"))
    }

    /// Opens what is on `media`, and looks whether it may be there.
    fn is_right_or_refused(&self, media: &Media, reads: Reads) -> Result<(), String> {
        let volume = self.volumes.mounted();
        let Ok((cache, preloaded)) = media.open_cache(volume) else { return Ok(()) };
        let seen = media.open_fs(cache, volume, preloaded).and_then(|stack| stack.look());
        match (seen, reads) {
            (Ok(seen), _) => {
                let outstanding = self.describe_outstanding();
                self.oracle.clone().recovered(&seen, &outstanding).map(drop)
            }
            (Err(_), Reads::MayFail) => Ok(()),
            (Err(what), Reads::Succeed) => Err(what),
        }
    }
}

impl Media {
    fn disk(&self, role: Role) -> &Arc<SimDisk> {
        match role {
            Role::Store => &self.store,
            Role::Buffer => &self.buffer,
        }
    }
}
