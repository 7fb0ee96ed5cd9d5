//! Requests of the kernel.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuse::fuzz::request(bytes));
