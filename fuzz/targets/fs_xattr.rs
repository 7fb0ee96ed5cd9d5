//! An inode's string of extended attributes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fs::fuzz::xattr_records(bytes));
