//! Devices that fail below a real mount: acknowledged data survives, and `weir status` reports the problem.

#[path = "../common/mod.rs"]
mod common;
mod medium;
mod mounts;
mod why;
