#![doc = include_str!("../README.md")]
mod attributes;
mod connection;
mod directory;
mod errno;
mod error_log;
mod holes;
mod kernel;
mod kernel_pages;
mod latency;
mod privileges;
mod protocol;
mod server;
mod session;
mod space;
mod xattr;

pub use kernel::{KernelCache, ask_of_kernel};
pub use latency::{Class, Latencies, Summary, Traffic};
pub use server::Server;
pub use session::{Options, Session, mount};
