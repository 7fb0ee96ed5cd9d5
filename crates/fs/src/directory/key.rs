//! Keys of names: a keyed hash, so that a program cannot choose names that collide, and a rank for names that
//! still do.

use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// The lowest bits of a key: the rank among names that share a hash.
const RANK_BITS: u32 = 4;

/// Names of one directory that may share a hash. Two of about 2^58 pairs do by chance, so a seventeenth name
/// is refused with "no space", and needs no structure of its own.
pub(crate) const KEYS_PER_HASH: u64 = 1 << RANK_BITS;

/// A name's hash: the first of its possible keys. It has 63 bits, so that cookies are positive everywhere,
/// and is at least 16, so that 0 and the front ends' own cookies are free.
pub(crate) fn hash_of(secret: &[u8; 16], name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(name);
    (hasher.finish() >> 1 & !(KEYS_PER_HASH - 1)).max(KEYS_PER_HASH)
}

/// The hash within a key.
pub(crate) fn hash_in(key: u64) -> u64 {
    key & !(KEYS_PER_HASH - 1)
}
