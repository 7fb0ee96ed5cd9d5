#![doc = include_str!("../README.md")]
mod connection;
mod disk;
mod handshake;
mod in_flight;
mod negotiation;
mod protocol;
mod reply;
mod request_check;
mod server;
mod socket;

pub use disk::{Disk, DiskCompletion, DiskError, Durability, Extent, ExtentKind};
pub use server::ExportServer;
pub use socket::Listener;

#[cfg(fuzzing)]
pub mod fuzz;
