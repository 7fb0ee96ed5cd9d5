//! Inode numbers: slots under a keyed permutation, so that numbers are stable and tell nobody where inodes lie.

use crate::format::{INODES_MAX, Slot};
use crate::types::Ino;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// Numbers have 52 bits, so that programs that keep numbers as floating point (JSON, JavaScript) hold them exactly.
const BITS: u32 = 52;
const MASK: u64 = (1 << BITS) - 1;
const HALF: u32 = BITS / 2;

/// Odd, so that multiplying by them modulo 2^52 can be undone.
const FACTORS: [u64; 2] = [0xd_51af_d7ed_558c | 1, 0x4_ceb9_fe1a_85ec | 1];
const INVERSES: [u64; 2] = [inverse(FACTORS[0]), inverse(FACTORS[1])];

/// The inverse of an odd number modulo 2^52: each of Newton's steps doubles the number of right bits.
const fn inverse(odd: u64) -> u64 {
    let mut found = odd;
    let mut step = 0;
    while step < 6 {
        found = found.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(found)));
        step += 1;
    }
    found & MASK
}

/// The permutation of one file system.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    before: u64,
    after: u64,
}

impl Numbers {
    pub(crate) fn new(secret: &[u8; 16]) -> Numbers {
        let derive = |label: u8| {
            let mut hasher = SipHasher24::new_with_key(secret);
            hasher.write(&[label]);
            hasher.finish() & MASK
        };
        Numbers { before: derive(1), after: derive(2) }
    }

    /// The number of a slot. 0 and 1 keep theirs; what would get them walks on along its cycle.
    pub(crate) fn ino(&self, slot: Slot) -> Ino {
        let mut number = u64::from(slot.0);
        if number > 1 {
            number = self.mix(number);
            while number <= 1 {
                number = self.mix(number);
            }
        }
        Ino(number)
    }

    /// The slot of a number; `None` if no slot has it.
    pub(crate) fn slot(&self, ino: Ino) -> Option<Slot> {
        let mut number = ino.0;
        if number > MASK {
            return None;
        }
        if number > 1 {
            number = self.unmix(number);
            while number <= 1 {
                number = self.unmix(number);
            }
        }
        let slot = u32::try_from(number).ok()?;
        (slot != 0 && slot <= INODES_MAX).then_some(Slot(slot))
    }

    fn mix(&self, mut number: u64) -> u64 {
        number ^= self.before;
        for factor in FACTORS {
            number = number.wrapping_mul(factor) & MASK;
            number ^= number >> HALF;
        }
        number ^ self.after
    }

    fn unmix(&self, mut number: u64) -> u64 {
        number ^= self.after;
        for inverse in INVERSES.into_iter().rev() {
            number ^= number >> HALF;
            number = number.wrapping_mul(inverse) & MASK;
        }
        number ^ self.before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_root_is_1_whatever_the_secret() {
        for seed in 0..50 {
            let numbers = Numbers::new(&[seed; 16]);
            assert_eq!(numbers.ino(Slot(1)), Ino::ROOT);
            assert_eq!(numbers.slot(Ino::ROOT), Some(Slot(1)));
            assert_eq!(numbers.slot(Ino(0)), None);
        }
    }

    #[test]
    fn neighbours_are_far_apart_and_secrets_matter() {
        let (one, other) = (Numbers::new(&[1; 16]), Numbers::new(&[2; 16]));
        let near = (2..1000).filter(|&slot| one.ino(Slot(slot)).0.abs_diff(one.ino(Slot(slot + 1)).0) < 1000);
        assert!(near.count() < 3);
        assert!((2..1000).all(|slot| one.ino(Slot(slot)) != other.ino(Slot(slot))));
    }

    proptest! {
        #[test]
        fn a_number_leads_back_to_its_slot(secret: [u8; 16], slot in 1..=INODES_MAX) {
            let numbers = Numbers::new(&secret);
            let ino = numbers.ino(Slot(slot));
            prop_assert!(ino.0 <= MASK && ino.0 > 0);
            prop_assert_eq!(numbers.slot(ino), Some(Slot(slot)));
        }

        #[test]
        fn mixing_can_be_undone(secret: [u8; 16], number in 0..=MASK) {
            let numbers = Numbers::new(&secret);
            prop_assert_eq!(numbers.unmix(numbers.mix(number)), number);
        }
    }
}
