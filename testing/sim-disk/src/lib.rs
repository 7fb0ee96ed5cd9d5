#![doc = include_str!("../README.md")]
mod clock;
mod disk;
mod disk_space;
mod faults;
mod hooked_disk;
mod power_supply;
mod scratched_blocks;

pub use clock::SimClock;
pub use disk::SimDisk;
pub use faults::{BlockDamage, DiskFaults, DroppedWrites};
pub use hooked_disk::{DiskHooks, HookedDisk};
pub use power_supply::PowerSupply;
pub use scratched_blocks::ScratchedBlocks;
