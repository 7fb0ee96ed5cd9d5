//! Devices that fail below a real mount: what was acknowledged is there afterwards, and `weir status` says what is wrong.

#[path = "../common/mod.rs"]
mod common;
mod medium;
mod mounts;
