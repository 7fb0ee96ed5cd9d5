//! Compensates for a thread's late pauses. Timers and processors are late, never early, so a row of short
//! pauses would take longer than in the program. The next pauses are shortened by the lateness.

/// Maximum lateness to make up for, in nanoseconds. More lateness is a stall of the machine, not of one
/// pause.
const MAX: u64 = 10_000_000;

/// The lateness of one thread, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct PauseCompensation(u64);

impl PauseCompensation {
    /// Returns the length of a pause after it repays lateness.
    pub(super) fn shorten(&mut self, pause: u64) -> u64 {
        let repaid = pause.min(self.0);
        self.0 -= repaid;
        pause - repaid
    }

    /// Adds the lateness of a pause.
    pub(super) fn add(&mut self, late: u64) {
        self.0 = self.0.saturating_add(late).min(MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_that_end_late_take_as_long_in_all_as_they_should() {
        let mut debt = PauseCompensation::default();
        let late = [50, 0, 500, 20, 0, 0, 0, 0, 0, 0, 0];
        let took = late.map(|late| {
            let left = debt.shorten(100);
            debt.add(late);
            left + late
        });
        assert_eq!(took.iter().sum::<u64>(), 100 * late.len() as u64, "{took:?}");
        assert_eq!(debt.shorten(100), 100);
    }

    #[test]
    fn a_stall_of_the_machine_is_not_made_up_for() {
        let mut debt = PauseCompensation::default();
        debt.add(u64::MAX);
        debt.add(1);
        assert_eq!(debt.shorten(MAX + 7), 7);
    }
}
