//! Checks volumes rescued from failed buffers. They must hold every change that a client was told of, with
//! the state in memory.

use crate::change::ModelChange;
use crate::oracle::HistoryOracle;
use crate::run_state::SimulationRun;
use crate::stack::delete_rescued;
use store::VolumeId;

/// The volume that a life with a failed buffer may leave.
pub(crate) struct ExpectedRescue {
    /// The name of the rescued volume.
    name: String,
    /// Whether the status said that the volume was rescued.
    told: bool,
    oracle: HistoryOracle,
    outstanding: Vec<ModelChange>,
}

impl SimulationRun {
    /// At the end of a life with a failed buffer, notes the expected rescued volume.
    pub(crate) fn expect_rescued(&mut self) {
        let Some(stack) = self.stack.as_ref() else { return };
        let status = stack.cache.status();
        if status.failed.is_none() || status.left_out > 0 {
            return;
        }
        let number = stack.cache.store().incarnation().0;
        let name = match stack.volume {
            VolumeId::MAIN => format!("rescued-{number}"),
            other => format!("rescued-{number}-{other}"),
        };
        self.rescued = Some(ExpectedRescue {
            told: status.rescued.is_some_and(|names| names.split(", ").any(|one| one == name)),
            name,
            oracle: self.oracle.as_of_now(),
            outstanding: self.describe_outstanding(),
        });
    }

    /// In the next life, compares the rescued volume, then deletes it, as a user who needs the space would.
    pub(crate) fn look_at_rescued(&mut self) -> Result<(), String> {
        let cache = self.stack().cache.clone();
        if let Some(ExpectedRescue { name, told, mut oracle, outstanding }) = self.rescued.take() {
            match cache.store().volumes().named(&name) {
                None if told => return Err(format!("{name} was rescued, and is not there")),
                None => {}
                Some(volume) => {
                    let outcome = self.media.open_to_look(volume.id).and_then(|stack| {
                        stack.check()?;
                        oracle.recovered(&stack.look()?, &outstanding)
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
