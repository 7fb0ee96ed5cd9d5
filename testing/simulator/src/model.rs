//! The plain model of a file system: the tree that the stack must show to programs. The oracle owns the
//! model. The model is simple on purpose.

use crate::change::{ChangeErrno, ModelChange};
use crash_oracle::{CrashFile, WritePath};
use device::TransferKind;
use fs::{CallerCredentials, FallocateMode, FileAttributes, FileKind, IfExists, Ino, SizePolicy};
use std::collections::BTreeMap;
use std::ops::Range;

/// The caller of every change.
pub(crate) const CALLER: CallerCredentials = CallerCredentials { uid: 1000, gid: 100, umask: 0o027 };

/// The model's own name for an inode. Names are never reused, and are the same in every replay of one
/// history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModelId(pub(crate) u64);

pub(crate) type ModelName = Vec<u8>;

impl ModelId {
    pub(crate) const ROOT: ModelId = ModelId(1);
}

/// Every file of the model.
#[derive(Debug, Clone)]
pub(crate) struct FsModel {
    pub(crate) inodes: BTreeMap<ModelId, ModelInode>,
    next: ModelId,
    /// The path of whole pages that may bypass the buffer.
    pub(crate) bypass: WritePath,
    /// The only file of a block volume. `None` in a file system.
    disk: Option<ModelId>,
}

/// The name and the number of the file that stands for the bytes of a block volume.
pub(crate) const DISK_NAME: &[u8] = b"disk";
pub(crate) const DISK_INO: Ino = Ino(2);

#[derive(Debug, Clone)]
pub(crate) struct ModelInode {
    /// The inode number in the real file system, once known: from the reply, or after a crash from the name.
    pub(crate) ino: Option<Ino>,
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) times: ModelTimes,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The number of names. A directory has one.
    pub(crate) links: u32,
    pub(crate) body: ModelBody,
}

/// Times in nanoseconds, or `None` where unknown. The time of a change that was not answered before a crash
/// is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModelTimes {
    pub(crate) accessed: Option<i64>,
    pub(crate) modified: Option<i64>,
    pub(crate) changed: Option<i64>,
    pub(crate) created: Option<i64>,
}

impl ModelTimes {
    fn all(now: Option<i64>) -> ModelTimes {
        ModelTimes { accessed: now, modified: now, changed: now, created: now }
    }

    /// Describes the first time that differs from `stat`.
    pub(crate) fn difference(&self, found: &FileAttributes) -> Option<String> {
        let pairs = [
            ("access", self.accessed, found.accessed),
            ("modification", self.modified, found.modified),
            ("change", self.changed, found.changed),
            ("creation", self.created, found.created),
        ];
        let (which, expected, found) = pairs
            .into_iter()
            .find(|(_, expected, found)| expected.is_some_and(|expected| expected != *found))?;
        Some(format!("its {which} time is {found}, expected {}", expected.unwrap_or_default()))
    }

    /// Takes over the times that `stat` reports.
    pub(crate) fn learn(&mut self, found: &FileAttributes) {
        *self = ModelTimes {
            accessed: Some(found.accessed),
            modified: Some(found.modified),
            changed: Some(found.changed),
            created: Some(found.created),
        };
    }
}

#[derive(Debug, Clone)]
pub(crate) enum ModelBody {
    File(CrashFile),
    Directory {
        parent: ModelId,
        names: BTreeMap<ModelName, ModelId>,
    },
    Symlink(Vec<u8>),
    /// A FIFO, a socket, or a device with its number.
    Node(FileKind, u32),
}

impl ModelBody {
    pub(crate) fn kind(&self) -> FileKind {
        match self {
            ModelBody::File(_) => FileKind::File,
            ModelBody::Directory { .. } => FileKind::Directory,
            ModelBody::Symlink(_) => FileKind::Symlink,
            ModelBody::Node(kind, _) => *kind,
        }
    }
}

impl ModelInode {
    fn new(body: ModelBody, mode: u16, now: Option<i64>) -> ModelInode {
        let (uid, gid, times) = (CALLER.uid, CALLER.gid, ModelTimes::all(now));
        ModelInode { ino: None, mode, uid, gid, times, xattrs: BTreeMap::new(), links: 1, body }
    }

    /// Records a change of attributes.
    pub(crate) fn change(&mut self, now: Option<i64>) {
        self.times.changed = now;
    }

    /// Records a change of content, which changes attributes, too.
    fn modify(&mut self, now: Option<i64>) {
        self.times.modified = now;
        self.change(now);
    }

    pub(crate) fn kind(&self) -> FileKind {
        self.body.kind()
    }

    /// Writes before change `number` are now certain.
    pub(crate) fn settle_before(&mut self, number: u64) {
        if let ModelBody::File(file) = &mut self.body {
            file.settle_before(number);
        }
    }

    /// The bytes of a regular file. Empty for other inodes.
    pub(crate) fn content(&self) -> &[u8] {
        match &self.body {
            ModelBody::File(file) => file.bytes(),
            _ => &[],
        }
    }

    /// Raised by each change of a regular file's bytes.
    pub(crate) fn version(&self) -> u64 {
        match &self.body {
            ModelBody::File(file) => file.version(),
            _ => 0,
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.body, ModelBody::Directory { .. })
    }

    pub(crate) fn is_file(&self) -> bool {
        matches!(self.body, ModelBody::File(_))
    }
}

impl FsModel {
    /// An empty root of mode 755.
    pub(crate) fn new() -> FsModel {
        let body = ModelBody::Directory { parent: ModelId::ROOT, names: BTreeMap::new() };
        let mut root = ModelInode::new(body, 0o755, None);
        root.ino = Some(Ino::ROOT);
        FsModel {
            inodes: BTreeMap::from([(ModelId::ROOT, root)]),
            next: ModelId(2),
            bypass: WritePath::Logged,
            disk: None,
        }
    }

    /// A block volume of `size` zeros: a file below the root, without times.
    pub(crate) fn block_volume(size: u64) -> FsModel {
        let mut model = FsModel::new();
        let body = ModelBody::File(CrashFile::zeros(size as usize));
        let disk = ModelInode::new(body, 0o600, None);
        let disk = model.add(ModelId::ROOT, DISK_NAME, disk, None).expect("the root is empty");
        model.get_mut(disk).ino = Some(DISK_INO);
        model.disk = Some(disk);
        model
    }

    /// The file that stands for the bytes of a block volume. `None` in a file system.
    pub(crate) fn disk(&self) -> Option<ModelId> {
        self.disk
    }

    pub(crate) fn get(&self, id: ModelId) -> &ModelInode {
        self.inodes.get(&id).expect("only inodes of the model are asked for")
    }

    pub(crate) fn get_mut(&mut self, id: ModelId) -> &mut ModelInode {
        self.inodes.get_mut(&id).expect("only inodes of the model are changed")
    }

    /// The entries of a directory.
    pub(crate) fn names(&self, directory: ModelId) -> Result<&BTreeMap<ModelName, ModelId>, ChangeErrno> {
        match &self.inodes.get(&directory).ok_or(ChangeErrno::NotFound)?.body {
            ModelBody::Directory { names, .. } => Ok(names),
            _ => Err(ChangeErrno::NotDirectory),
        }
    }

    fn names_mut(&mut self, directory: ModelId) -> &mut BTreeMap<ModelName, ModelId> {
        match &mut self.get_mut(directory).body {
            ModelBody::Directory { names, .. } => names,
            _ => unreachable!("checked to be a directory"),
        }
    }

    pub(crate) fn lookup(&self, parent: ModelId, name: &[u8]) -> Result<ModelId, ChangeErrno> {
        self.names(parent)?.get(name).copied().ok_or(ChangeErrno::NotFound)
    }

    /// The bytes of all regular files. A block volume counts as none: its size never changes.
    pub(crate) fn bytes(&self) -> u64 {
        if self.disk.is_some() {
            return 0;
        }
        self.inodes.values().map(|inode| inode.content().len() as u64).sum()
    }

    /// The number of subdirectories directly in this directory.
    pub(crate) fn subdirectories(&self, directory: ModelId) -> u32 {
        let names = self.names(directory).expect("a directory");
        names.values().filter(|&&child| self.get(child).is_directory()).count() as u32
    }

    /// Drops inodes without a name: after a crash they have no holders.
    pub(crate) fn drop_nameless(&mut self) {
        self.inodes.retain(|&id, inode| inode.links > 0 || id == ModelId::ROOT);
    }

    /// Makes `change` at time `now`, or says why not. Returns the new inode if there is one.
    pub(crate) fn make(
        &mut self,
        change: &ModelChange,
        now: Option<i64>,
    ) -> Result<Option<ModelId>, ChangeErrno> {
        match change {
            ModelChange::Make { parent, name, kind, mode } => {
                let body = match kind {
                    FileKind::Directory => ModelBody::Directory { parent: *parent, names: BTreeMap::new() },
                    FileKind::File => ModelBody::File(CrashFile::default()),
                    kind => ModelBody::Node(*kind, 0),
                };
                return self.add(*parent, name, ModelInode::new(body, *mode, now), now).map(Some);
            }
            ModelChange::MakeDevice { parent, name, kind, number, mode } => {
                let inode = ModelInode::new(ModelBody::Node(*kind, *number), *mode, now);
                return self.add(*parent, name, inode, now).map(Some);
            }
            ModelChange::Symlink { parent, name, target } => {
                let inode = ModelInode::new(ModelBody::Symlink(target.clone()), 0o777, now);
                return self.add(*parent, name, inode, now).map(Some);
            }
            ModelChange::Link { file, parent, name } => self.link(*file, *parent, name, now)?,
            ModelChange::Unlink { parent, name } => self.unlink(*parent, name, now)?,
            ModelChange::RemoveDirectory { parent, name } => self.remove_directory(*parent, name, now)?,
            ModelChange::Rename { from, to, if_exists } => self.rename(from, to, *if_exists, now)?,
            ModelChange::WhiteOut { from, to, if_exists } => {
                self.rename(from, to, *if_exists, now)?;
                // A rename between two names of one file changes nothing.
                if self.lookup(from.0, &from.1).is_err() {
                    let whiteout = ModelInode::new(ModelBody::Node(FileKind::CharDevice, 0), 0, now);
                    return self.add(from.0, &from.1, whiteout, now).map(Some);
                }
            }
            ModelChange::Exchange { one, other } => self.exchange(one, other, now)?,
            ModelChange::Write { file, offset, bytes, bypasses } => {
                let size = self.get(*file).content().len() as u64;
                let (start, end) = (*offset, offset + bytes.len() as u64);
                let bypassing = bypasses.bypassing(start, bytes.len() as u64, size).unwrap_or(end..end);
                let bypass = self.bypass;
                let content = self.file_mut(*file)?;
                for (part, path) in [
                    (start..bypassing.start, WritePath::Logged),
                    (bypassing.clone(), bypass),
                    (bypassing.end..end, WritePath::Logged),
                ] {
                    if !part.is_empty() {
                        let of_bytes = (part.start - start) as usize..(part.end - start) as usize;
                        content.write(part.start, &bytes[of_bytes], path);
                    }
                }
                self.get_mut(*file).modify(now);
            }
            ModelChange::SetSize { file, size } => {
                self.file_mut(*file)?.set_size(*size);
                self.get_mut(*file).modify(now);
            }
            ModelChange::Allocate { file, what, offset, len, size } => {
                self.allocate(*file, *what, *offset..*offset + *len, *size, now)?;
            }
            ModelChange::Copy { from, offset, len, to, at } => {
                self.copy(*from, *offset, *len, (*to, *at), now)?
            }
            ModelChange::SetMode { inode, mode } => self.set_mode(*inode, *mode, now),
            ModelChange::SetOwner { inode, uid, gid } => self.set_owner(*inode, *uid, *gid, now),
            ModelChange::DropPowers { inode } => self.drop_powers(*inode, now),
            ModelChange::SetXattr { inode, name, value, how } => {
                self.set_xattr(*inode, name, value, *how, now)?;
            }
            ModelChange::RemoveXattr { inode, name } => self.remove_xattr(*inode, name, now)?,
            ModelChange::SetTimes { inode, accessed, modified } => {
                let inode = self.get_mut(*inode);
                inode.times.accessed = accessed.or(inode.times.accessed);
                inode.times.modified = modified.or(inode.times.modified);
                inode.change(now);
            }
            ModelChange::Batch(parts) => {
                let mut after = self.clone();
                for part in parts {
                    after.expect_equal(part)?;
                }
                for part in parts {
                    after.make(part, now)?;
                    if let ModelChange::Write { file, .. }
                    | ModelChange::Allocate { file, .. }
                    | ModelChange::Transfer { to: file, .. }
                    | ModelChange::CloneFrom { to: file, .. } = part
                    {
                        // Its bypassed pages are logged with it.
                        after.file_mut(*file)?.settle_before(u64::MAX);
                    }
                }
                *self = after;
            }
            ModelChange::Transfer { kind, from, offset, len, to, at } => {
                self.transfer(*kind, (*from, *offset..*offset + *len), (*to, *at), now)?;
            }
            ModelChange::CloneFrom { bytes, to, at, .. } => {
                self.file_mut(*to)?.write(*at, bytes, WritePath::Logged);
                self.get_mut(*to).modify(now);
            }
            ModelChange::ExpectEqual { .. } => {}
            ModelChange::Forget { inode } => drop(self.inodes.remove(inode)),
        }
        Ok(None)
    }

    fn living_directory(&self, directory: ModelId) -> Result<(), ChangeErrno> {
        self.names(directory)?;
        if self.get(directory).links == 0 { Err(ChangeErrno::NotFound) } else { Ok(()) }
    }

    fn free_name(&self, parent: ModelId, name: &[u8]) -> Result<(), ChangeErrno> {
        self.living_directory(parent)?;
        match self.lookup(parent, name) {
            Ok(_) => Err(ChangeErrno::Exists),
            Err(_) => Ok(()),
        }
    }

    fn add(
        &mut self,
        parent: ModelId,
        name: &[u8],
        mut inode: ModelInode,
        now: Option<i64>,
    ) -> Result<ModelId, ChangeErrno> {
        self.free_name(parent, name)?;
        let id = self.next;
        self.next = ModelId(id.0 + 1);
        inode.inherit(self.get(parent));
        self.get_mut(parent).modify(now);
        self.inodes.insert(id, inode);
        self.names_mut(parent).insert(name.to_vec(), id);
        Ok(id)
    }

    fn link(
        &mut self,
        file: ModelId,
        parent: ModelId,
        name: &[u8],
        now: Option<i64>,
    ) -> Result<(), ChangeErrno> {
        self.free_name(parent, name)?;
        if self.get(file).links == 0 {
            return Err(ChangeErrno::NotFound);
        }
        self.names_mut(parent).insert(name.to_vec(), file);
        self.get_mut(parent).modify(now);
        let file = self.get_mut(file);
        file.settle_before(u64::MAX);
        file.links += 1;
        file.change(now);
        Ok(())
    }

    fn unlink(&mut self, parent: ModelId, name: &[u8], now: Option<i64>) -> Result<(), ChangeErrno> {
        let file = self.lookup(parent, name)?;
        if self.get(file).is_directory() {
            return Err(ChangeErrno::IsDirectory);
        }
        self.names_mut(parent).remove(name);
        self.get_mut(parent).modify(now);
        let file = self.get_mut(file);
        file.links -= 1;
        file.change(now);
        Ok(())
    }

    fn remove_directory(
        &mut self,
        parent: ModelId,
        name: &[u8],
        now: Option<i64>,
    ) -> Result<(), ChangeErrno> {
        let directory = self.lookup(parent, name)?;
        if !self.names(directory)?.is_empty() {
            return Err(ChangeErrno::NotEmpty);
        }
        self.names_mut(parent).remove(name);
        self.get_mut(parent).modify(now);
        let directory = self.get_mut(directory);
        directory.links = 0;
        directory.change(now);
        Ok(())
    }

    fn is_within(&self, mut directory: ModelId, ancestor: ModelId) -> bool {
        loop {
            if directory == ancestor {
                return true;
            }
            match &self.get(directory).body {
                ModelBody::Directory { parent, .. } if directory != ModelId::ROOT => directory = *parent,
                _ => return false,
            }
        }
    }

    fn rename(
        &mut self,
        from: &(ModelId, ModelName),
        to: &(ModelId, ModelName),
        if_exists: IfExists,
        now: Option<i64>,
    ) -> Result<(), ChangeErrno> {
        let moved = self.lookup(from.0, &from.1)?;
        self.living_directory(to.0)?;
        let replaced = self.lookup(to.0, &to.1).ok();
        if self.get(moved).is_directory() && self.is_within(to.0, moved) {
            return Err(ChangeErrno::Invalid);
        }
        if replaced.is_some() && if_exists == IfExists::Refuse {
            return Err(ChangeErrno::Exists);
        }
        if replaced == Some(moved) {
            return Ok(());
        }
        if let Some(replaced) = replaced {
            match (self.get(moved).is_directory(), self.get(replaced).is_directory()) {
                (true, false) => return Err(ChangeErrno::NotDirectory),
                (false, true) => return Err(ChangeErrno::IsDirectory),
                (true, true) if !self.names(replaced)?.is_empty() => return Err(ChangeErrno::NotEmpty),
                _ => {}
            }
            let replaced = self.get_mut(replaced);
            replaced.links -= 1;
            replaced.change(now);
        }
        self.names_mut(from.0).remove(&from.1);
        self.names_mut(to.0).insert(to.1.clone(), moved);
        self.get_mut(from.0).modify(now);
        self.get_mut(to.0).modify(now);
        let moved = self.get_mut(moved);
        moved.settle_before(u64::MAX);
        moved.change(now);
        if let ModelBody::Directory { parent, .. } = &mut moved.body {
            *parent = to.0;
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        one: &(ModelId, ModelName),
        other: &(ModelId, ModelName),
        now: Option<i64>,
    ) -> Result<(), ChangeErrno> {
        let (first, second) = (self.lookup(one.0, &one.1)?, self.lookup(other.0, &other.1)?);
        for (moved, to) in [(first, other.0), (second, one.0)] {
            if self.get(moved).is_directory() && self.is_within(to, moved) {
                return Err(ChangeErrno::Invalid);
            }
        }
        if first == second {
            return Ok(());
        }
        for (place, now_there) in [(one, second), (other, first)] {
            self.names_mut(place.0).insert(place.1.clone(), now_there);
            self.get_mut(place.0).modify(now);
            let moved = self.get_mut(now_there);
            moved.settle_before(u64::MAX);
            moved.change(now);
            if let ModelBody::Directory { parent, .. } = &mut moved.body {
                *parent = place.0;
            }
        }
        Ok(())
    }

    fn file_mut(&mut self, file: ModelId) -> Result<&mut CrashFile, ChangeErrno> {
        match &mut self.get_mut(file).body {
            ModelBody::File(file) => Ok(file),
            ModelBody::Directory { .. } => Err(ChangeErrno::IsDirectory),
            ModelBody::Symlink(_) | ModelBody::Node(..) => Err(ChangeErrno::Invalid),
        }
    }

    fn allocate(
        &mut self,
        file: ModelId,
        what: FallocateMode,
        range: Range<u64>,
        size: SizePolicy,
        now: Option<i64>,
    ) -> Result<(), ChangeErrno> {
        let content = self.file_mut(file)?;
        let end = range.end;
        if what != FallocateMode::Allocate {
            content.zero(range);
        }
        let grows = size == SizePolicy::Grow && what != FallocateMode::PunchHole;
        if grows && (content.bytes().len() as u64) < end {
            content.set_size(end);
        }
        self.get_mut(file).modify(now);
        Ok(())
    }

    /// Clones or moves a range within a batch.
    fn transfer(
        &mut self,
        kind: TransferKind,
        (from, range): (ModelId, Range<u64>),
        (to, at): (ModelId, u64),
        now: Option<i64>,
    ) -> Result<(), ChangeErrno> {
        let len = range.end - range.start;
        let size = self.file_mut(from)?.bytes().len() as u64;
        let there = self.file_mut(to)?.bytes().len() as u64;
        let overlaps = from == to && range.start.abs_diff(at) < len;
        let is_whole = len.is_multiple_of(4096)
            || at + len >= there && (kind == TransferKind::Clone || range.end == size);
        if !(range.start | at).is_multiple_of(4096)
            || range.is_empty()
            || range.end > size
            || overlaps
            || !is_whole
        {
            return Err(ChangeErrno::BadRange);
        }
        let source = self.file_mut(from)?;
        let bytes = source.bytes()[range.start as usize..range.end as usize].to_vec();
        // Shared pages are certain: copying settles them first.
        source.settle(range.clone());
        self.file_mut(to)?.write(at, &bytes, WritePath::Logged);
        self.get_mut(to).modify(now);
        if kind == TransferKind::Move {
            let source = self.file_mut(from)?;
            source.zero(range.start..range.end.next_multiple_of(4096).min(size));
            self.get_mut(from).modify(now);
        }
        Ok(())
    }

    /// Refuses if `part` of a batch expects ranges to be equal that are not.
    fn expect_equal(&mut self, part: &ModelChange) -> Result<(), ChangeErrno> {
        let ModelChange::ExpectEqual { one, other, len } = part else { return Ok(()) };
        let mut range = |(file, offset): (ModelId, u64)| {
            let bytes = self.file_mut(file)?.bytes();
            let range = bytes.get(offset as usize..(offset + len) as usize);
            range.map(<[u8]>::to_vec).ok_or(ChangeErrno::BadRange)
        };
        if range(*one)? == range(*other)? { Ok(()) } else { Err(ChangeErrno::Differs) }
    }

    fn copy(
        &mut self,
        from: ModelId,
        offset: u64,
        len: u64,
        (to, at): (ModelId, u64),
        now: Option<i64>,
    ) -> Result<(), ChangeErrno> {
        if !(offset | at).is_multiple_of(4096) {
            return Err(ChangeErrno::Unsupported);
        }
        if from == to && offset.abs_diff(at) < len {
            return Err(ChangeErrno::Invalid);
        }
        let size = self.file_mut(from)?.bytes().len() as u64;
        let end = (offset + len).min(size);
        let there = self.file_mut(to)?.bytes().len() as u64;
        if end <= offset {
            return Ok(());
        }
        let len = end - offset;
        let ends = end == size && at + len >= there;
        if !len.is_multiple_of(4096) && !ends {
            return Err(ChangeErrno::Unsupported);
        }
        let source = self.file_mut(from)?;
        let bytes = source.bytes()[offset as usize..end as usize].to_vec();
        // Shared pages are certain: copying settles them first.
        source.settle(offset..end);
        self.file_mut(to)?.write(at, &bytes, WritePath::Logged);
        self.get_mut(to).modify(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crash_oracle::BypassScope;
    use std::sync::Arc;

    fn add(model: &mut FsModel, parent: ModelId, name: &[u8], kind: FileKind) -> ModelId {
        let change = ModelChange::Make { parent, name: name.to_vec(), kind, mode: 0o644 };
        model.make(&change, None).expect("the name is free").expect("an inode is made")
    }

    fn rename(
        model: &mut FsModel,
        from: (ModelId, &[u8]),
        to: (ModelId, &[u8]),
    ) -> Result<Option<ModelId>, ChangeErrno> {
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        model.make(&ModelChange::Rename { from, to, if_exists: IfExists::Replace }, None)
    }

    #[test]
    fn a_rename_replaces_files_and_empty_directories_only() {
        let mut model = FsModel::new();
        let file = add(&mut model, ModelId::ROOT, b"file", FileKind::File);
        let full = add(&mut model, ModelId::ROOT, b"full", FileKind::Directory);
        let inner = add(&mut model, full, b"inner", FileKind::Directory);
        add(&mut model, ModelId::ROOT, b"other", FileKind::File);
        assert_eq!(
            rename(&mut model, (ModelId::ROOT, b"file"), (ModelId::ROOT, b"full")),
            Err(ChangeErrno::IsDirectory)
        );
        assert_eq!(
            rename(&mut model, (ModelId::ROOT, b"full"), (ModelId::ROOT, b"file")),
            Err(ChangeErrno::NotDirectory)
        );
        assert_eq!(rename(&mut model, (ModelId::ROOT, b"full"), (inner, b"x")), Err(ChangeErrno::Invalid));
        assert_eq!(
            rename(&mut model, (full, b"inner"), (ModelId::ROOT, b"full")),
            Err(ChangeErrno::NotEmpty)
        );
        assert_eq!(rename(&mut model, (ModelId::ROOT, b"file"), (ModelId::ROOT, b"other")), Ok(None));
        assert_eq!(model.lookup(ModelId::ROOT, b"other"), Ok(file));
        assert_eq!(model.lookup(ModelId::ROOT, b"file"), Err(ChangeErrno::NotFound));
    }

    #[test]
    fn a_write_past_the_end_leaves_zeros_between() {
        let mut model = FsModel::new();
        let file = add(&mut model, ModelId::ROOT, b"file", FileKind::File);
        model
            .make(
                &ModelChange::Write {
                    file,
                    offset: 3,
                    bytes: Arc::new(vec![7, 7]),
                    bypasses: BypassScope::Nothing,
                },
                None,
            )
            .expect("a file");
        assert_eq!(model.get(file).content(), [0, 0, 0, 7, 7]);
        model.make(&ModelChange::SetSize { file, size: 4 }, None).expect("a file");
        model.make(&ModelChange::SetSize { file, size: 6 }, None).expect("a file");
        assert_eq!(model.get(file).content(), [0, 0, 0, 7, 0, 0]);
    }

    #[test]
    fn an_unlinked_file_stays_until_it_is_forgotten() {
        let mut model = FsModel::new();
        let file = add(&mut model, ModelId::ROOT, b"file", FileKind::File);
        model
            .make(&ModelChange::Unlink { parent: ModelId::ROOT, name: b"file".to_vec() }, None)
            .expect("it exists");
        model
            .make(
                &ModelChange::Write {
                    file,
                    offset: 0,
                    bytes: Arc::new(vec![1]),
                    bypasses: BypassScope::Nothing,
                },
                None,
            )
            .expect("still there");
        model.drop_nameless();
        assert!(!model.inodes.contains_key(&file));
    }
}
