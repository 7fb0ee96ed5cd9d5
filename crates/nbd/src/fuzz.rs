//! Entrances for the targets in `fuzz/`, and compiled for them only.

use crate::connection::{Export, serve_requests};
use crate::disk::{Disk, DiskCompletion, DiskError, Durability, Extent, ExtentKind};
use crate::handshake::shake_hands;
use crate::negotiation::{ExportDescription, NegotiatedFeatures};
use crate::reply::ReplyFormat;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The size of the disk in bytes. An odd size, so that ranges end anywhere.
const SIZE: usize = 100_003;

/// Serves `bytes` twice: as everything that a client sends, and as everything after a handshake in which the
/// client agreed on all features.
pub fn client(bytes: &[u8]) {
    let disk = Arc::new(MemoryDisk { bytes: Mutex::new(vec![0; SIZE]) });
    let description = ExportDescription { name: "disk".into(), size: SIZE as u64, is_read_only: false };
    let export = Export { disk, description };
    let mut input = bytes;
    if let Ok(Some(features)) = shake_hands(&mut input, &mut io::sink(), &export.description) {
        let _ = serve_requests(&mut input, &mut io::sink(), features, &export, || ());
    }
    let all_features =
        NegotiatedFeatures { reply_format: ReplyFormat::Structured, has_allocation_context: true };
    let mut input = bytes;
    let _ = serve_requests(&mut input, &mut io::sink(), all_features, &export, || ());
}

/// A disk that completes each request during the call.
struct MemoryDisk {
    bytes: Mutex<Vec<u8>>,
}

impl MemoryDisk {
    /// Calls `access` with the bytes of a range. Panics if the range is empty or not inside the disk.
    fn with_range<T>(
        &self,
        offset: u64,
        len: u64,
        access: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, DiskError> {
        assert!(len > 0, "an empty range");
        let range = Range { start: offset as usize, end: (offset + len) as usize };
        Ok(access(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner)[range]))
    }
}

impl Disk for MemoryDisk {
    fn size(&self) -> u64 {
        SIZE as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, len: usize, done: DiskCompletion<Vec<u8>>) {
        done(self.with_range(offset, len as u64, |range| range.to_vec()));
    }

    fn write(&self, offset: u64, bytes: Vec<u8>, _: Durability, done: DiskCompletion<()>) {
        done(self.with_range(offset, bytes.len() as u64, |range| range.copy_from_slice(&bytes)));
    }

    fn zero(&self, offset: u64, len: u64, _: Durability, done: DiskCompletion<()>) {
        done(self.with_range(offset, len, |range| range.fill(0)));
    }

    fn flush(&self, done: DiskCompletion<()>) {
        done(Ok(()));
    }

    fn extents(&self, offset: u64, len: u64, max: usize, done: DiskCompletion<Vec<Extent>>) {
        let kind_of = |byte: &u8| if *byte == 0 { ExtentKind::Hole } else { ExtentKind::Data };
        let extent_of = |chunk: &[u8]| Extent { len: chunk.len() as u64, kind: kind_of(&chunk[0]) };
        done(self.with_range(offset, len, |range| {
            range.chunk_by(|left, right| kind_of(left) == kind_of(right)).map(extent_of).take(max).collect()
        }));
    }
}
