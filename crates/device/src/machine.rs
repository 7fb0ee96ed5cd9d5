//! What crates ask the machine for: time and randomness. Both come in as arguments, so that the simulator runs
//! what ships.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time.
pub trait Clock: Send + Sync {
    /// Time since some fixed point; never goes back.
    fn monotonic(&self) -> Duration;

    /// The time of day, in nanoseconds since 1970-01-01 UTC. May jump, and may stand still for some milliseconds.
    fn wall_nanos(&self) -> i64;
}

/// A wall-clock time as nanoseconds since 1970-01-01 UTC, negative before it; saturates in the year 2262.
pub fn nanos_since_epoch(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}

/// Seeded randomness: the same seed gives the same numbers on every machine (splitmix64). Not for secrets.
#[derive(Debug, Clone)]
pub struct SeededRng(u64);

impl SeededRng {
    /// A generator that repeats for this seed.
    pub fn new(seed: u64) -> SeededRng {
        SeededRng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "nothing is below 0");
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// An index of a list that has so many elements, and is not empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True once in `times` calls, on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (mut one, mut other) = (SeededRng::new(7), SeededRng::new(7));
        assert!((0..100).all(|_| one.next_u64() == other.next_u64()));
        assert_ne!(SeededRng::new(7).next_u64(), SeededRng::new(8).next_u64());
    }

    #[test]
    fn every_number_below_the_end_comes_up_and_none_above() {
        let mut random = SeededRng::new(1);
        let mut seen = [0; 10];
        (0..10_000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|&times| (800..1200).contains(&times)), "{seen:?}");
    }

    #[test]
    fn times_before_1970_are_negative() {
        assert_eq!(nanos_since_epoch(UNIX_EPOCH - Duration::from_nanos(5)), -5);
        assert_eq!(nanos_since_epoch(UNIX_EPOCH + Duration::from_secs(1)), 1_000_000_000);
    }
}
