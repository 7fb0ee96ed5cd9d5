//! How much too long a thread's pauses were. Timers and processors are late, never early, so a row of short pauses would take
//! longer than the program did; the next ones make up for it.

/// Nanoseconds of lateness that are made up for. What is more was a stall of the machine, not of one pause.
const MAX: u64 = 10_000_000;

/// One thread's, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Debt(u64);

impl Debt {
    /// What is left of a pause.
    pub(super) fn shorten(&mut self, pause: u64) -> u64 {
        let repaid = pause.min(self.0);
        self.0 -= repaid;
        pause - repaid
    }

    /// A pause ended so much too late.
    pub(super) fn add(&mut self, late: u64) {
        self.0 = self.0.saturating_add(late).min(MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_that_end_late_take_as_long_in_all_as_they_should() {
        let mut debt = Debt::default();
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
        let mut debt = Debt::default();
        debt.add(u64::MAX);
        debt.add(1);
        assert_eq!(debt.shorten(MAX + 7), 7);
    }
}
