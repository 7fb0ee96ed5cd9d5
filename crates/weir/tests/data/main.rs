//! The calls that read, write, map, lock and shape the data of a file, on a real mount; and what a mount's end does to
//! those who use it.

mod call;
#[path = "../common/mod.rs"]
mod common;
mod end;
mod exerciser;
mod limits;
mod locks;
mod mapping;
mod read_only;
mod space;
mod synchronous;
mod users;
