#![doc = include_str!("../README.md")]
mod address;
mod contract;
mod device;
mod machine;
mod overlay;
mod page;

pub use address::{
    BLOCK_BYTES, Block, BufferId, Incarnation, Lsn, ObjectId, PageNo, StoreId, Transfer, VolumeId,
};
pub use contract::{check_contract, check_growth};
pub use device::{Device, DeviceError, Operation, Read};
pub use machine::{Clock, Random, nanos_since_epoch};
pub use overlay::Overlay;
pub use page::{Page, SharedPage, pages};
