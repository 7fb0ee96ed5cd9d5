//! The command and its daemon: messages, permissions, and kept data.

mod bad_input;
mod client_programs;
#[path = "../common/mod.rs"]
mod common;
mod copies;
mod daemon;
mod damaged_volume;
mod find_buffer;
mod fstab;
mod grow;
mod integrity;
mod json;
mod lending;
mod lost_buffer;
mod messages;
mod metrics;
mod mount_list;
mod mounted;
mod owners;
mod private;
mod progress;
mod replace_buffer;
mod rules;
mod service_manager;
mod several_mounts;
mod sparse;
mod top;
mod trace;
mod tune;
mod vectors;
mod volatile;
mod volumes;
