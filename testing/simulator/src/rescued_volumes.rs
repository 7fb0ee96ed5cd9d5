//! What a buffer that fails takes with it is in a volume: all that anybody was told of, as it was in memory.

use crate::change::ModelChange;
use crate::oracle::HistoryOracle;
use crate::run_state::SimulationRun;
use crate::stack::delete_rescued;
use store::VolumeId;

/// The volume that a life may leave whose buffer failed.
pub(crate) struct ExpectedRescue {
    /// That of what was mounted.
    name: String,
    /// Somebody was told that it is there.
    told: bool,
    oracle: HistoryOracle,
    outstanding: Vec<ModelChange>,
}

impl SimulationRun {
    /// A life ends: what is to be found of it if its buffer failed.
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

    /// The next life has begun: looks at what was rescued, then deletes it, as somebody would who needs the space.
    pub(crate) fn look_at_rescued(&mut self) -> Result<(), String> {
        let cache = self.stack().cache.clone();
        if let Some(ExpectedRescue { name, told, mut oracle, outstanding }) = self.rescued.take() {
            match cache.store().volume_named(&name) {
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
