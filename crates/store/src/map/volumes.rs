//! The volumes of a map: what each is called and where its tree of objects begins; and the nodes that deleted ones left.

use super::node::{NodeId, Tree};
use crate::bug::{PlantedBug, is_planted};
use crate::error::StoreError;
use crate::volume::{MAIN_NAME, VolumeId, VolumeInfo, VolumeMode};
use std::collections::BTreeMap;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A volume in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Volume {
    pub(crate) objects: Tree,
    pub(crate) mode: VolumeMode,
}

/// What the map keeps of a volume for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) name: String,
    pub(crate) created: u64,
    pub(crate) from: VolumeId,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LabelBytes {
    volume: U32,
    from: U32,
    created: U64,
    name: U32,
    reserved: U32,
}

const LABEL_BYTES: usize = size_of::<LabelBytes>();
const _: () = assert!(LABEL_BYTES == 24);

/// Volumes at most: the volume table is written with every checkpoint, 32 bytes for each.
const VOLUMES_MAX: usize = 4096;
/// All volumes. Owned by the map, under its lock. After a crash: those of the newest root, and the log entries after it.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    all: BTreeMap<VolumeId, Volume>,
    /// What they are called.
    labels: BTreeMap<VolumeId, Label>,
    /// The number that the next one gets: higher than any that there ever was, because the buffer may have records of a
    /// deleted one.
    next: VolumeId,
    /// Nodes that deleted volumes referred to, and what these did: each has one reference from here.
    dying: Vec<NodeId>,
}

impl Volumes {
    /// Those of a new store.
    pub(crate) fn main_only(objects: Tree) -> Volumes {
        let main = Volume { objects, mode: VolumeMode::Writable };
        Volumes::new(BTreeMap::from([(VolumeId::MAIN, main)]), BTreeMap::new(), VolumeId(1), Vec::new())
    }

    pub(crate) fn new(
        all: BTreeMap<VolumeId, Volume>,
        labels: BTreeMap<VolumeId, Label>,
        next: VolumeId,
        dying: Vec<NodeId>,
    ) -> Volumes {
        Volumes { all, labels, next, dying }
    }

    pub(crate) fn get(&self, volume: VolumeId) -> Option<&Volume> {
        self.all.get(&volume)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (VolumeId, &Volume)> {
        self.all.iter().map(|(&id, volume)| (id, volume))
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// A number that none ever had.
    pub(crate) fn next_id(&self) -> VolumeId {
        match is_planted(PlantedBug::VolumeNumberUsedAgain) {
            true => VolumeId(self.all.keys().next_back().map_or(0, |last| last.0) + 1),
            false => self.next,
        }
    }

    /// The roots of all trees, of deleted ones, too.
    pub(crate) fn roots(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.all.values().map(|volume| volume.objects.root).chain(self.dying())
    }

    pub(crate) fn set_objects(&mut self, volume: VolumeId, objects: Tree) {
        if let Some(volume) = self.all.get_mut(&volume) {
            volume.objects = objects;
        }
    }

    /// Whether there may be one more.
    pub(crate) fn ensure_one_more(&self) -> Result<(), StoreError> {
        if self.all.len() >= VOLUMES_MAX {
            return Err(StoreError::TooManyVolumes { limit: VOLUMES_MAX });
        }
        Ok(())
    }

    /// Adds `to`, a clone of `volume`. Returns the root that has one more reference by that.
    pub(super) fn clone_volume(
        &mut self,
        volume: VolumeId,
        to: VolumeId,
        mode: VolumeMode,
        created: u64,
    ) -> Option<NodeId> {
        let source = self.all.get(&volume).copied().filter(|_| !self.all.contains_key(&to))?;
        self.all.insert(to, Volume { objects: source.objects, mode });
        self.next = self.next.max(VolumeId(to.0.saturating_add(1)));
        self.labels.insert(to, Label { name: String::new(), created, from: volume });
        Some(source.objects.root).filter(|root| root.is_some())
    }

    /// Deletes a volume: its root is dying.
    pub(super) fn delete(&mut self, volume: VolumeId) {
        let Some(gone) = self.all.remove(&volume) else { return };
        self.labels.remove(&volume);
        self.dying.extend(Some(gone.objects.root).filter(|root| root.is_some()));
    }

    /// The nodes that deleted volumes left, those that go first at the end.
    pub(crate) fn dying(&self) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator + '_ {
        self.dying.iter().copied()
    }

    pub(super) fn pop_dying(&mut self) -> Option<NodeId> {
        self.dying.pop()
    }

    pub(super) fn push_dying(&mut self, id: NodeId) {
        self.dying.push(id);
    }

    /// Those that cannot go now come last.
    pub(super) fn put_back_dying(&mut self, ids: Vec<NodeId>) {
        self.dying.splice(0..0, ids);
    }

    /// All volumes, for people.
    pub(crate) fn describe_all(&self) -> Vec<VolumeInfo> {
        self.all.iter().map(|(&id, volume)| self.describe(id, volume.mode)).collect()
    }

    fn describe(&self, id: VolumeId, mode: VolumeMode) -> VolumeInfo {
        if id == VolumeId::MAIN {
            return VolumeInfo { id, mode, name: MAIN_NAME.to_owned(), created: 0, from: None };
        }
        let Label { mut name, created, from } = self.labels.get(&id).cloned().unwrap_or_default();
        if name.is_empty() {
            name = format!("#{id}");
        }
        VolumeInfo { id, mode, name, created, from: Some(from) }
    }

    /// A part of a name, after those before it.
    pub(super) fn name(&mut self, volume: VolumeId, part: &[u8]) {
        if let Some(label) = self.labels.get_mut(&volume) {
            label.name.push_str(&String::from_utf8_lossy(part));
        }
    }

    /// How many have a label.
    pub(crate) fn labels(&self) -> usize {
        self.labels.len()
    }

    /// Bytes of [`encode_labels`](Volumes::encode_labels).
    pub(crate) fn label_bytes(&self) -> usize {
        self.labels.values().map(|label| LABEL_BYTES + label.name.len()).sum()
    }

    /// The labels, as the tables' stream has them.
    pub(crate) fn encode_labels(&self, into: &mut Vec<u8>) {
        for (volume, label) in &self.labels {
            let head = LabelBytes {
                volume: volume.0.into(),
                from: label.from.0.into(),
                created: label.created.into(),
                name: (label.name.len() as u32).into(),
                reserved: 0.into(),
            };
            into.extend(head.as_bytes());
            into.extend(label.name.as_bytes());
        }
    }
}

/// One label, and what follows it; `None` if it is none.
pub(crate) fn decode_label(bytes: &[u8]) -> Option<(VolumeId, Label, &[u8])> {
    let (head, rest) = LabelBytes::read_from_prefix(bytes).ok()?;
    let (name, rest) = rest.split_at_checked(head.name.get() as usize)?;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    let label = Label { name, created: head.created.get(), from: VolumeId(head.from.get()) };
    Some((VolumeId(head.volume.get()), label, rest))
}
