#![doc = include_str!("../README.md")]
mod attributes;
mod complaint;
mod directory;
mod errno;
mod kernel;
mod latency;
mod privileges;
mod server;
mod session;
mod space;
mod traffic;
mod write;
mod xattr;

pub use kernel::{KernelCache, ask_of_kernel};
pub use latency::{Class, Latencies, Summary};
pub use server::Server;
pub use session::{Options, Session, mount};
pub use traffic::Traffic;
