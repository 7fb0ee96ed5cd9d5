//! The two slots that say where the buffer's log begins.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| buffer::fuzz::slot(bytes));
