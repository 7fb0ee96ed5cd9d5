#![doc = include_str!("../README.md")]
mod clock;
mod disk;

pub use clock::SimClock;
pub use disk::{Faults, Power, SimDisk};
