//! Checks volumes rescued from failed buffers. They must hold every change that a client was told of, with
//! the state in memory.

use crate::oracle::UnmountedStates;
use crate::run_state::SimulationRun;
use crate::stack::delete_rescued;
use store::VolumeId;

/// What a life with a failed buffer may leave of a mounted volume.
pub(crate) struct ExpectedRescue {
    /// The name of the rescued volume.
    name: String,
    /// Whether the status said that the volume was rescued.
    told: bool,
    states: UnmountedStates,
}

impl SimulationRun {
    /// At the end of a life with a failed buffer, notes the expected rescued volumes.
    pub(crate) fn expect_rescued(&mut self) {
        let Some(stack) = self.stack.as_ref() else { return };
        let status = stack.cache.status();
        if status.failed.is_none() || status.left_out > 0 {
            return;
        }
        let number = stack.cache.store().incarnation().0;
        let names = status.rescued.unwrap_or_default();
        let expected = stack.mounts.keys().map(|&volume| {
            let name = match volume {
                VolumeId::MAIN => format!("rescued-{number}"),
                other => format!("rescued-{number}-{other}"),
            };
            let told = names.split(", ").any(|one| one == name);
            let states = self.oracle.as_of_now(volume, self.clients.outstanding_in(volume));
            ExpectedRescue { name, told, states }
        });
        self.rescued = expected.collect();
    }

    /// In the next life, compares the rescued volumes, then deletes them, as a user who needs the space would.
    pub(crate) fn look_at_rescued(&mut self) -> Result<(), String> {
        let cache = self.stack().cache.clone();
        for ExpectedRescue { name, told, mut states } in std::mem::take(&mut self.rescued) {
            match cache.store().volumes().named(&name) {
                None if told => return Err(format!("{name} was rescued, and is not there")),
                None => {}
                Some(volume) => {
                    let outcome = self.media.open_to_look(volume.id).and_then(|stack| {
                        stack.check()?;
                        states.compare(&stack.look()?)
                    });
                    outcome.map_err(|what| format!("{name}: {what}"))?;
                    self.counts.rescued += 1;
                }
            }
        }
        delete_rescued(&cache);
        Ok(())
    }
}
