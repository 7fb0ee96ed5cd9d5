//! Keys of names: a keyed hash, so that nobody can choose names that collide, and a rank for those that still do.

use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// The lowest bits of a key number the names that share a hash.
const RANK_BITS: u32 = 4;

/// Names of one directory that may share a hash. Two do by chance once in about 2^58 pairs, so a seventeenth is
/// refused (no space) rather than given a structure of its own.
pub(crate) const KEYS_PER_HASH: u64 = 1 << RANK_BITS;

/// The first of the keys that a name may have: 63 bits, so that cookies are positive numbers everywhere, and at
/// least 16, so that 0 and the front ends' own cookies are free.
pub(crate) fn hash_of(secret: &[u8; 16], name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(name);
    (hasher.finish() >> 1 & !(KEYS_PER_HASH - 1)).max(KEYS_PER_HASH)
}

/// The hash within a key.
pub(crate) fn hash_in(key: u64) -> u64 {
    key & !(KEYS_PER_HASH - 1)
}
