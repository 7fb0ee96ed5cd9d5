#![doc = include_str!("../README.md")]
mod batch;
mod client_sockets;
mod disk;
mod durability_probe;
mod error;
mod fork;
mod fuse_device;
mod io_counters;
mod machine;
mod max_latency;
mod mount_table;
mod open;
mod permissions;
mod pm_qos;
mod process;
mod processor_times;
mod shell;
mod sparse;
mod system_call;
mod task;
mod task_activity;
mod task_wait;
mod write_out;

pub use disk::HostDisk;
pub use durability_probe::{VolatileReason, probe_durability};
pub use error::HostError;
pub use fork::{ForkedProcess, fork};
pub use fuse_device::clone_fuse_device;
pub use io_counters::{CountingDevice, IoCounters, ReadBusyTime, ReadCounters, ReadCounts};
pub use machine::{
    SystemClock, WriteCache, are_on_one_disk, are_same_medium, mark_io_flusher, memory_bytes, random_bytes,
    write_cache,
};
pub use max_latency::{DeviceCall, MaxLatency};
pub use mount_table::{FuseMountOwner, MountEntry, MountTable, WEIR_FS_TYPE};
pub use open::{DiskAccess, ExistingFile, FileIdentity, has_direct_io};
pub use permissions::mode_if_public;
pub use pm_qos::{PmQosRequest, PmQosUnavailable};
pub use process::{
    SocketPeer, close_descriptors_on_exec, is_ending, is_hung_up, is_stopped, lock_holder, lock_holders,
    proc_has_own_pids, socket_peer,
};
pub use processor_times::ProcessorTimes;
pub use shell::shell_quoted;
pub use sparse::spare_bytes;
pub use task::{
    TAG_VARIABLE, TaskOrigin, TaskReadError, TaskSnapshot, is_killed, is_task, read_task, read_task_origin,
};
pub use task_activity::{TaskActivity, TaskActivityReader};
pub use task_wait::{
    OpenInode, TaskWait, TaskWaitReader, open_path, process_threads, process_tree, processes,
};
pub use write_out::write_out;
