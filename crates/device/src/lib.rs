#![doc = include_str!("../README.md")]
mod address;
mod contract;
mod device;
mod machine;
mod overlay;
mod page;

pub use address::{
    BLOCK_BYTES, Block, BufferId, Incarnation, Lsn, ObjectId, PageNo, PageTransfer, StoreId, TransferKind,
    VolumeId,
};
pub use contract::{check_contract, check_growth};
pub use device::{BlockRead, Device, DeviceError, DeviceOperation};
pub use machine::{Clock, SeededRng, nanos_since_epoch};
pub use overlay::OverlayDevice;
pub use page::{Page, SharedPage, pages};
