//! `weir-trace`: recording, compiling and replaying.

mod common;
mod compile_bounds;
mod record;
mod replay;
mod replay_bad;
mod replay_codes;
mod replay_killed;
mod replay_targets;
mod replay_together;
