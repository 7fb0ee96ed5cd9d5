//! All tests of the cache in one program, so that the stack is linked once and not for every file. Only `hand_over.rs`
//! is a program of its own: it compiles the cache's sources again, with `shuttle`'s locks.

mod appended_bytes;
mod bypass;
mod bypass_prefix;
mod bypass_trouble;
mod bypassed_age;
mod classes;
mod common;
mod differences;
mod lost_tails;
mod media;
mod prefix;
mod punches;
mod races;
mod range_op_trouble;
mod range_ops;
mod read_ahead;
mod request_waits;
mod rescue;
mod rule_shares;
mod seek;
mod snapshots;
mod space;
mod stuck;
mod synchronous_reads;
mod threads;
mod volume_life;
mod volumes;
