#![doc = include_str!("../README.md")]
mod clock;
mod disk;
mod faults;
mod hooked;
mod power;
mod scratched;
mod space;

pub use clock::SimClock;
pub use disk::SimDisk;
pub use faults::{Damage, Dropped, Faults};
pub use hooked::{Hooked, Hooks};
pub use power::Power;
pub use scratched::Scratched;
