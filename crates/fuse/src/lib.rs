#![doc = include_str!("../README.md")]
mod attributes;
mod directory;
mod door;
mod errno;
mod latency;
mod session;

pub use door::Door;
pub use latency::{Class, Latencies, Summary};
pub use session::{Options, Session, mount};
