#![doc = include_str!("../README.md")]
mod admit;
mod bulk;
mod cache;
mod checkpoint;
mod commit;
mod cut;
mod delta;
mod error;
mod gather;
mod page;
mod read;
mod records;
mod recover;
mod relog;
mod rescue;
mod scan;
mod seek;
mod settings;
mod state;
mod status;
mod sync;
mod table;
mod trouble;
mod volume;
mod write_back;

pub use admit::Credit;
pub use bulk::read_at_home;
pub use cache::{Cache, Progress, Task, Then};
pub use delta::Delta;
pub use error::CacheError;
#[cfg(feature = "planted-bugs")]
pub use page::PlantedBug;
pub use recover::Recovered;
pub use rescue::UNFINISHED;
pub use seek::Wanted;
pub use settings::{Change, Cost, FetchMode, Settings};
pub use status::{Counters, Status, Stuck};
