//! Creates an empty file system.

use crate::arena::{Arena, FsState, FsTransaction};
use crate::error::FsError;
use crate::format::{HEAP_UNITS_PER_PAGE, MAGIC, ROOT, VERSION};
use crate::owner_table::OwnerAndMode;
use crate::types::{CallerCredentials, FileKind};
use device::VolumeId;
use zerocopy::little_endian::U32;

/// All users may read and search the root directory; its owner may write.
const ROOT_MODE: u16 = 0o755;

impl FsState {
    /// The state from which [`FsTransaction::format_volume`] starts.
    pub(crate) fn blank(volume: VolumeId, secret: [u8; 16]) -> Result<FsState, FsError> {
        let mut arena = Arena::empty();
        // The numbers need the secret before there is a header.
        arena.bytes_mut(24, 16).copy_from_slice(&secret);
        FsState::new(volume, arena)
    }
}

impl FsTransaction<'_> {
    /// Writes the header and an empty root directory.
    pub(crate) fn format_volume(
        &mut self,
        owner: CallerCredentials,
        secret: [u8; 16],
    ) -> Result<(), FsError> {
        // `blank` wrote the secret outside of a transaction; clearing it makes the next write record it.
        self.change_header(|header| header.secret = [0; 16]);
        self.change_header(|header| {
            header.magic = MAGIC;
            header.version = U32::new(VERSION);
            header.secret = secret;
            // The heap's first page stays empty, so that 0 can mean none.
            header.heap_used = U32::new(HEAP_UNITS_PER_PAGE);
        });
        let rights = OwnerAndMode { uid: owner.uid, gid: owner.gid, mode: ROOT_MODE };
        let (slot, mut inode) = self.allocate_inode(FileKind::Directory, rights)?;
        assert_eq!(slot, ROOT, "the root is the first inode");
        inode.links = U32::new(2);
        inode.next = U32::new(ROOT.0);
        self.set_inode(slot, &inode);
        Ok(())
    }
}
