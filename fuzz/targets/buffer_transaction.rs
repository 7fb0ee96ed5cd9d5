//! Transactions of the buffer's log.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| buffer::fuzz::transaction(bytes));
