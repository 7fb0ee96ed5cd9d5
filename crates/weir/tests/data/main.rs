//! The calls that read, write, map, lock and shape the data of a file, on a real mount, and the effect of a
//! mount's end on programs that use it.

mod atomic_writes;
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
