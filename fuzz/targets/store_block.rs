//! Every structure of the store that takes one block.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::fuzz::block_structures(bytes));
