//! Transactions on the objects of a volume, and a plain model of these objects.

use super::OBJECT_BYTES;
use cache::{Cache, ObjectChange};
use crash_oracle::{CrashFile, CrashModel, WritePath, bytes_difference};
use device::{ObjectId, PageNo, PageTransfer, TransferKind};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ops::Range;
use store::VolumeId;

static ZEROS: [u8; OBJECT_BYTES] = [0; OBJECT_BYTES];

/// One change of a transaction, owned.
#[derive(Debug, Clone)]
pub enum ObjectStep {
    Write(ObjectId, usize, Vec<u8>),
    /// Whole pages that may bypass the buffer.
    Bypass(ObjectId, usize, Vec<u8>),
    LogBypassed(ObjectId),
    Zero(ObjectId, usize, usize),
    Delete(ObjectId),
    Transfer(PageTransfer),
}

impl ObjectStep {
    /// The change in a volume.
    pub fn change(&self, volume: VolumeId) -> ObjectChange<'_> {
        let in_volume = |object: &ObjectId| object.in_volume(volume);
        let transfer = |transfer: &PageTransfer| PageTransfer {
            from: in_volume(&transfer.from),
            to: in_volume(&transfer.to),
            ..*transfer
        };
        match self {
            ObjectStep::Write(object, at, bytes) => {
                ObjectChange::Write { object: in_volume(object), offset: *at as u64, bytes }
            }
            ObjectStep::Bypass(object, at, bytes) => {
                let (object, offset) = (in_volume(object), *at as u64);
                ObjectChange::FileWrite { object, offset, bytes, size: offset + bytes.len() as u64 }
            }
            ObjectStep::LogBypassed(object) => ObjectChange::LogBypassed { object: in_volume(object) },
            ObjectStep::Zero(object, at, len) => {
                ObjectChange::Zero { object: in_volume(object), offset: *at as u64, len: *len as u64 }
            }
            ObjectStep::Delete(object) => ObjectChange::Delete { object: in_volume(object) },
            ObjectStep::Transfer(pages) => ObjectChange::Transfer(transfer(pages)),
        }
    }
}

/// The objects of a volume, each of `OBJECT_BYTES`. A deleted object reads as zeros, as if it had never been.
#[derive(Debug, Clone, Default)]
pub struct VolumeModel(BTreeMap<ObjectId, CrashFile>);

/// The bytes of objects in a cache.
pub type FoundObjects = BTreeMap<ObjectId, Vec<u8>>;

/// Reads objects of a volume, which are named as those of the main one.
pub fn read_objects(
    cache: &Cache,
    volume: VolumeId,
    objects: impl IntoIterator<Item = ObjectId>,
) -> FoundObjects {
    let objects: BTreeSet<ObjectId> = objects.into_iter().collect();
    let read = |object: ObjectId| cache.read_now(object.in_volume(volume), 0, OBJECT_BYTES);
    objects.into_iter().map(|object| (object, read(object).expect("a read with power"))).collect()
}

fn bytes_of(pages: Range<PageNo>) -> Range<u64> {
    pages.start.offset()..pages.end.offset()
}

fn has_bytes(object: &CrashFile) -> bool {
    object.bytes().iter().any(|&byte| byte != 0)
}

impl VolumeModel {
    /// All objects that the volume has or had.
    pub fn objects(&self) -> impl Iterator<Item = ObjectId> {
        self.0.keys().copied()
    }

    pub fn bytes(&self, object: ObjectId) -> &[u8] {
        self.0.get(&object).map_or(&ZEROS, CrashFile::bytes)
    }

    pub fn forget_zeros(&mut self) {
        self.0.retain(|_, object| has_bytes(object));
    }

    /// The generation of the object in a slot that has bytes.
    pub fn generation(&self, slot: u64) -> Option<u32> {
        let mut objects = self.0.iter();
        objects.find(|(name, object)| name.slot == slot && has_bytes(object)).map(|(name, _)| name.generation)
    }

    /// Describes how `found` differs from all states that may be left of this one after a crash.
    pub fn difference(&self, found: &FoundObjects) -> Option<String> {
        found.iter().find_map(|(object, bytes)| {
            let difference = match self.0.get(object) {
                Some(expected) => expected.difference(bytes),
                None => bytes_difference(&ZEROS, bytes),
            };
            difference.map(|what| format!("object {object}: {what}"))
        })
    }

    /// Takes over what was found, which has no difference.
    pub fn found(&mut self, found: &FoundObjects) {
        for (object, expected) in &mut self.0 {
            expected.found(&found[object]);
        }
    }

    fn object(&mut self, object: ObjectId) -> &mut CrashFile {
        self.0.entry(object).or_insert_with(|| CrashFile::zeros(OBJECT_BYTES))
    }

    fn step(&mut self, step: &ObjectStep, bypass: WritePath) {
        match step {
            ObjectStep::Write(object, at, bytes) => {
                self.object(*object).write(*at as u64, bytes, WritePath::Logged);
            }
            ObjectStep::Bypass(object, at, bytes) => {
                self.object(*object).write(*at as u64, bytes, bypass);
            }
            ObjectStep::LogBypassed(object) => self.settle_before(Some(object), u64::MAX),
            ObjectStep::Zero(object, at, len) => self.zero(*object, *at as u64..(*at + *len) as u64),
            ObjectStep::Delete(object) => self.zero(*object, 0..OBJECT_BYTES as u64),
            ObjectStep::Transfer(transfer) => {
                self.clone_pages(transfer);
                if transfer.kind == TransferKind::Move {
                    self.zero(transfer.from, bytes_of(transfer.source()));
                }
            }
        }
    }

    fn zero(&mut self, object: ObjectId, range: Range<u64>) {
        self.0.entry(object).and_modify(|object| object.zero(range));
    }

    fn clone_pages(&mut self, transfer: &PageTransfer) {
        let range = bytes_of(transfer.source());
        let bytes = self.bytes(transfer.from)[range.start as usize..range.end as usize].to_vec();
        // A clone logs the pages first.
        self.0.entry(transfer.from).and_modify(|source| source.settle(range));
        self.object(transfer.to).write(bytes_of(transfer.target()).start, &bytes, WritePath::Logged);
    }
}

impl CrashModel for VolumeModel {
    type Change = Vec<ObjectStep>;
    type File = ObjectId;
    type Made = ();
    type Refusal = Infallible;

    fn apply(&mut self, transaction: &Vec<ObjectStep>, bypass: WritePath) -> Result<(), Infallible> {
        transaction.iter().for_each(|step| self.step(step, bypass));
        Ok(())
    }

    fn settle_before(&mut self, object: Option<&ObjectId>, number: u64) {
        let chosen = self.0.iter_mut().filter(|(name, _)| object.is_none_or(|object| object == *name));
        chosen.for_each(|(_, object)| object.settle_before(number));
    }

    fn describe(transaction: &Vec<ObjectStep>) -> String {
        let describe = |step: &ObjectStep| format!("{step:?}").chars().take(120).collect::<String>();
        transaction.iter().map(describe).collect::<Vec<_>>().join(", ")
    }
}
