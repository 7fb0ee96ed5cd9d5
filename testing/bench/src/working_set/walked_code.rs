//! One MiB of code that differs from place to place, in blocks.

/// About the bytes of a block's code: pairs of an exclusive or and an addition of 64-bit constants, 26 bytes each.
pub(super) const BLOCK_BYTES: usize = 1024;

/// Code that changes a value.
type CodeBlock = fn(u64) -> u64;

/// All blocks.
pub(super) static BLOCKS: [[CodeBlock; 32]; 32] = {
    macro_rules! row_of_blocks {
        ($row:literal: $($number:literal)*) => { [$(block::<{ $row * 32 + $number }>),*] };
    }
    macro_rules! rows_of_blocks {
        ($($row:literal)*) => {
            [$(row_of_blocks!($row: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)),*]
        };
    }
    rows_of_blocks!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
};

/// A constant that no compiler shortens. Its lowest and its highest bit are set.
const fn constant(number: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63 | 1
}

/// A block of straight code. Blocks differ in all constants, so that none is folded into another.
#[inline(never)]
fn block<const NUMBER: u64>(mut value: u64) -> u64 {
    macro_rules! pairs {
        ($($pair:literal)*) => {
            $(
                value ^= const { constant(NUMBER * 100 + 2 * $pair) };
                value = value.wrapping_add(const { constant(NUMBER * 100 + 2 * $pair + 1) });
            )*
        };
    }
    pairs!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38);
    value
}
