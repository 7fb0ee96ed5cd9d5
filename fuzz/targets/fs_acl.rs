//! POSIX access control lists.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fs::fuzz::acl(bytes));
