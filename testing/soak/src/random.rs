//! Numbers that a seed determines.

/// A generator (xorshift64*) for one step of one client.
pub(crate) struct Random(u64);

impl Random {
    /// The generator of `step`; other steps and seeds have unrelated ones.
    pub(crate) fn new(seed: u64, step: u64) -> Random {
        let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step.wrapping_add(0x6a09_e667_f3bc_c909);
        for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(factor);
        }
        Random((mixed ^ (mixed >> 31)) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}
