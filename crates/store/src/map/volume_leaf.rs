//! Volume leaves: for each volume its name and the root of its tree of objects.

use super::node::{NodeId, NodeTree};
use crate::format::*;
use crate::volume::{VOLUME_NAME_BYTES_MAX, VolumeId, VolumeInfo, VolumeMode};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The entry of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct VolumeEntry {
    pub(crate) objects: NodeTree,
    pub(crate) mode: VolumeMode,
    /// Empty if the volume has no name.
    pub(crate) name: String,
    pub(crate) created: u64,
    /// The volume that it was cloned from; its own number if it is no clone.
    pub(crate) from: VolumeId,
    /// The bytes of a block device; 0 for a file system.
    pub(crate) size: u64,
}

impl VolumeEntry {
    /// The volume as users see it.
    pub(super) fn describe(&self, id: VolumeId) -> VolumeInfo {
        let name = if self.name.is_empty() { format!("#{id}") } else { self.name.clone() };
        let from = Some(self.from).filter(|&from| from != id);
        VolumeInfo { id, mode: self.mode, name, created: self.created, from }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct VolumeBytes {
    kind: u8,
    read_only: u8,
    height: u8,
    name_bytes: u8,
    from: U32,
    root: U64,
    created: U64,
    name: [u8; VOLUME_NAME_BYTES_MAX],
    reserved: u8,
    size: U64,
    reserved_too: [u8; 88],
}

const ENTRY_BYTES: usize = size_of::<VolumeBytes>();
const _: () = assert!(ENTRY_BYTES == 248 && 64 + ENTRY_BYTES * LEAF_VOLUMES as usize <= 4096);

const KIND_NONE: u8 = 0;
const KIND_VOLUME: u8 = 1;

/// The entries of a volume leaf.
pub(super) type VolumeEntries = [Option<VolumeEntry>; LEAF_VOLUMES as usize];

pub(super) fn encode(entries: &VolumeEntries, into: &mut [u8]) {
    for (entry, bytes) in entries.iter().zip(into.chunks_exact_mut(ENTRY_BYTES)) {
        let Some(entry) = entry else { continue };
        let mut volume = VolumeBytes::new_zeroed();
        volume.kind = KIND_VOLUME;
        volume.read_only = u8::from(entry.mode == VolumeMode::ReadOnly);
        volume.height = entry.objects.height;
        volume.name_bytes = entry.name.len() as u8;
        volume.from = entry.from.0.into();
        volume.root = entry.objects.root.0.into();
        volume.created = entry.created.into();
        volume.size = entry.size.into();
        volume.name[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
        volume.write_to(bytes).expect("exactly as long");
    }
}

pub(super) fn decode(bytes: &[u8]) -> Option<Box<VolumeEntries>> {
    let mut entries = Box::new([const { None }; LEAF_VOLUMES as usize]);
    for (entry, bytes) in entries.iter_mut().zip(bytes.chunks_exact(ENTRY_BYTES)) {
        let volume = VolumeBytes::read_from_bytes(bytes).ok()?;
        let mode = match (volume.kind, volume.read_only) {
            (KIND_NONE, _) => continue,
            (KIND_VOLUME, 0) => VolumeMode::Writable,
            (KIND_VOLUME, 1) => VolumeMode::ReadOnly,
            _ => return None,
        };
        let name = volume.name.get(..usize::from(volume.name_bytes))?;
        *entry = Some(VolumeEntry {
            objects: NodeTree { root: NodeId(volume.root.get()), height: volume.height },
            mode,
            name: std::str::from_utf8(name).ok()?.to_owned(),
            created: volume.created.get(),
            from: VolumeId(volume.from.get()),
            size: volume.size.get(),
        });
    }
    Some(entries)
}
