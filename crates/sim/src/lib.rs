#![doc = include_str!("../README.md")]
mod clock;
mod disk;
mod scratched;

pub use clock::SimClock;
pub use disk::{Faults, Power, SimDisk};
pub use scratched::Scratched;
