//! Clients of an NBD export.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nbd::fuzz::client(bytes));
