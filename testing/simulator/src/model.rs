//! The plain model of a file system: what the stack must look like from above. Owned by the oracle; not clever.

use crate::change::{Change, Refusal};
use crate::loose::{Loose, bypasses_buffer};
use fs::{CallerCredentials, FallocateMode, FileAttributes, FileKind, IfExists, Ino, SizePolicy};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Who asks for every change.
pub(crate) const CALLER: CallerCredentials = CallerCredentials { uid: 1000, gid: 100, umask: 0o027 };

/// The model's own name for an inode; never used again, and the same in every replay of one history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id(pub(crate) u64);

pub(crate) type Name = Vec<u8>;

impl Id {
    pub(crate) const ROOT: Id = Id(1);
}

/// Every file of the model.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) inodes: BTreeMap<Id, Inode>,
    next: Id,
    /// Whether whole pages that are written to files may bypass the buffer.
    pub(crate) bypasses: bool,
    /// The number of the next change.
    pub(crate) number: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Inode {
    /// Its number in the real file system, once known: learned from the reply, or after a crash from its name.
    pub(crate) ino: Option<Ino>,
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) times: Times,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names; a directory has one.
    pub(crate) links: u32,
    /// Raised with each change of content, so that comparisons can be remembered.
    pub(crate) version: u64,
    pub(crate) body: Body,
    /// What else a file may be after a crash.
    pub(crate) loose: Loose,
}

/// Nanoseconds, where they are known: of a change that was not answered before a crash nobody knows the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) accessed: Option<i64>,
    pub(crate) modified: Option<i64>,
    pub(crate) changed: Option<i64>,
    pub(crate) created: Option<i64>,
}

impl Times {
    fn all(now: Option<i64>) -> Times {
        Times { accessed: now, modified: now, changed: now, created: now }
    }

    /// The first that differs from what `stat` tells.
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

    /// What `stat` tells is known from now on.
    pub(crate) fn learn(&mut self, found: &FileAttributes) {
        *self = Times {
            accessed: Some(found.accessed),
            modified: Some(found.modified),
            changed: Some(found.changed),
            created: Some(found.created),
        };
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    File(Arc<Vec<u8>>),
    Directory {
        parent: Id,
        names: BTreeMap<Name, Id>,
    },
    Symlink(Vec<u8>),
    /// A FIFO, a socket, or a device with its number.
    Node(FileKind, u32),
}

impl Body {
    pub(crate) fn kind(&self) -> FileKind {
        match self {
            Body::File(_) => FileKind::File,
            Body::Directory { .. } => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Node(kind, _) => *kind,
        }
    }
}

impl Inode {
    fn new(body: Body, mode: u16, now: Option<i64>) -> Inode {
        let (uid, gid, times) = (CALLER.uid, CALLER.gid, Times::all(now));
        let (xattrs, loose) = (BTreeMap::new(), Loose::default());
        Inode { ino: None, mode, uid, gid, times, xattrs, links: 1, version: 0, body, loose }
    }

    /// The attributes changed.
    pub(crate) fn change(&mut self, now: Option<i64>) {
        self.times.changed = now;
    }

    /// The content changed, and the attributes with it.
    fn modify(&mut self, now: Option<i64>) {
        self.times.modified = now;
        self.change(now);
    }

    pub(crate) fn kind(&self) -> FileKind {
        self.body.kind()
    }

    /// What was written before a change is certain.
    pub(crate) fn settle_before(&mut self, number: u64) {
        self.version += 1;
        self.loose.settle_before(number);
    }

    /// It is these bytes, and nothing else.
    pub(crate) fn found(&mut self, bytes: &[u8]) {
        self.settle_before(u64::MAX);
        if let Body::File(content) = &mut self.body
            && content[..] != *bytes
        {
            *content = Arc::new(bytes.to_vec());
        }
    }

    /// A regular file's bytes; of anything else, none.
    pub(crate) fn content(&self) -> &[u8] {
        match &self.body {
            Body::File(bytes) => bytes,
            _ => &[],
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    pub(crate) fn is_file(&self) -> bool {
        matches!(self.body, Body::File(_))
    }
}

impl Model {
    /// A root of mode 755, empty.
    pub(crate) fn new() -> Model {
        let body = Body::Directory { parent: Id::ROOT, names: BTreeMap::new() };
        let mut root = Inode::new(body, 0o755, None);
        root.ino = Some(Ino::ROOT);
        Model { inodes: BTreeMap::from([(Id::ROOT, root)]), next: Id(2), bypasses: false, number: 0 }
    }

    pub(crate) fn get(&self, id: Id) -> &Inode {
        self.inodes.get(&id).expect("only inodes of the model are asked for")
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> &mut Inode {
        self.inodes.get_mut(&id).expect("only inodes of the model are changed")
    }

    /// The entries of a directory.
    pub(crate) fn names(&self, directory: Id) -> Result<&BTreeMap<Name, Id>, Refusal> {
        match &self.inodes.get(&directory).ok_or(Refusal::NotFound)?.body {
            Body::Directory { names, .. } => Ok(names),
            _ => Err(Refusal::NotDirectory),
        }
    }

    fn names_mut(&mut self, directory: Id) -> &mut BTreeMap<Name, Id> {
        match &mut self.get_mut(directory).body {
            Body::Directory { names, .. } => names,
            _ => unreachable!("checked to be a directory"),
        }
    }

    pub(crate) fn lookup(&self, parent: Id, name: &[u8]) -> Result<Id, Refusal> {
        self.names(parent)?.get(name).copied().ok_or(Refusal::NotFound)
    }

    /// Bytes of all regular files.
    pub(crate) fn bytes(&self) -> u64 {
        self.inodes.values().map(|inode| inode.content().len() as u64).sum()
    }

    /// Directories that directly lie in this one.
    pub(crate) fn subdirectories(&self, directory: Id) -> u32 {
        let names = self.names(directory).expect("a directory");
        names.values().filter(|&&child| self.get(child).is_directory()).count() as u32
    }

    /// Drops what has no name: after a crash nobody holds it.
    pub(crate) fn drop_nameless(&mut self) {
        self.inodes.retain(|&id, inode| inode.links > 0 || id == Id::ROOT);
    }

    /// Makes `change` at the moment `now`, or says why not; returns the new inode where one is made.
    pub(crate) fn apply(&mut self, change: &Change, now: Option<i64>) -> Result<Option<Id>, Refusal> {
        let made = self.make(change, now);
        self.number += u64::from(made.is_ok());
        made
    }

    /// What was written before is certain, in all files.
    pub(crate) fn settle_before(&mut self, number: u64) {
        self.inodes.values_mut().for_each(|inode| inode.settle_before(number));
    }

    fn make(&mut self, change: &Change, now: Option<i64>) -> Result<Option<Id>, Refusal> {
        match change {
            Change::Make { parent, name, kind, mode } => {
                let body = match kind {
                    FileKind::Directory => Body::Directory { parent: *parent, names: BTreeMap::new() },
                    FileKind::File => Body::File(Arc::default()),
                    kind => Body::Node(*kind, 0),
                };
                return self.add(*parent, name, Inode::new(body, *mode, now), now).map(Some);
            }
            Change::MakeDevice { parent, name, kind, number, mode } => {
                let inode = Inode::new(Body::Node(*kind, *number), *mode, now);
                return self.add(*parent, name, inode, now).map(Some);
            }
            Change::Symlink { parent, name, target } => {
                let inode = Inode::new(Body::Symlink(target.clone()), 0o777, now);
                return self.add(*parent, name, inode, now).map(Some);
            }
            Change::Link { file, parent, name } => self.link(*file, *parent, name, now)?,
            Change::Unlink { parent, name } => self.unlink(*parent, name, now)?,
            Change::RemoveDirectory { parent, name } => self.remove_directory(*parent, name, now)?,
            Change::Rename { from, to, if_exists } => self.rename(from, to, *if_exists, now)?,
            Change::WhiteOut { from, to, if_exists } => {
                self.rename(from, to, *if_exists, now)?;
                // Two names of one file stay where they are.
                if self.lookup(from.0, &from.1).is_err() {
                    let whiteout = Inode::new(Body::Node(FileKind::CharDevice, 0), 0, now);
                    return self.add(from.0, &from.1, whiteout, now).map(Some);
                }
            }
            Change::Exchange { one, other } => self.exchange(one, other, now)?,
            Change::Write { file, offset, bytes, bypasses } => {
                let size = self.get(*file).content().len() as u64;
                let is_bypassing =
                    self.bypasses && *bypasses && bypasses_buffer(*offset, bytes.len() as u64, size);
                self.write(*file, *offset, bytes, is_bypassing, now)?;
            }
            Change::SetSize { file, size } => self.set_size(*file, *size, now)?,
            Change::Allocate { file, what, offset, len, size } => {
                self.allocate(*file, *what, *offset..*offset + *len, *size, now)?;
            }
            Change::Copy { from, offset, len, to, at } => self.copy(*from, *offset, *len, (*to, *at), now)?,
            Change::SetMode { inode, mode } => self.set_mode(*inode, *mode, now),
            Change::SetOwner { inode, uid, gid } => self.set_owner(*inode, *uid, *gid, now),
            Change::DropPowers { inode } => self.drop_powers(*inode, now),
            Change::SetXattr { inode, name, value, how } => {
                self.set_xattr(*inode, name, value, *how, now)?;
            }
            Change::RemoveXattr { inode, name } => self.remove_xattr(*inode, name, now)?,
            Change::SetTimes { inode, accessed, modified } => {
                let inode = self.get_mut(*inode);
                inode.times.accessed = accessed.or(inode.times.accessed);
                inode.times.modified = modified.or(inode.times.modified);
                inode.change(now);
            }
            Change::Forget { inode } => drop(self.inodes.remove(inode)),
        }
        Ok(None)
    }

    fn living_directory(&self, directory: Id) -> Result<(), Refusal> {
        self.names(directory)?;
        if self.get(directory).links == 0 { Err(Refusal::NotFound) } else { Ok(()) }
    }

    fn free_name(&self, parent: Id, name: &[u8]) -> Result<(), Refusal> {
        self.living_directory(parent)?;
        match self.lookup(parent, name) {
            Ok(_) => Err(Refusal::Exists),
            Err(_) => Ok(()),
        }
    }

    fn add(&mut self, parent: Id, name: &[u8], mut inode: Inode, now: Option<i64>) -> Result<Id, Refusal> {
        self.free_name(parent, name)?;
        let id = self.next;
        self.next = Id(id.0 + 1);
        inode.inherit(self.get(parent));
        self.get_mut(parent).modify(now);
        self.inodes.insert(id, inode);
        self.names_mut(parent).insert(name.to_vec(), id);
        Ok(id)
    }

    fn link(&mut self, file: Id, parent: Id, name: &[u8], now: Option<i64>) -> Result<(), Refusal> {
        self.free_name(parent, name)?;
        if self.get(file).links == 0 {
            return Err(Refusal::NotFound);
        }
        self.names_mut(parent).insert(name.to_vec(), file);
        self.get_mut(parent).modify(now);
        let file = self.get_mut(file);
        file.settle_before(u64::MAX);
        file.links += 1;
        file.change(now);
        Ok(())
    }

    fn unlink(&mut self, parent: Id, name: &[u8], now: Option<i64>) -> Result<(), Refusal> {
        let file = self.lookup(parent, name)?;
        if self.get(file).is_directory() {
            return Err(Refusal::IsDirectory);
        }
        self.names_mut(parent).remove(name);
        self.get_mut(parent).modify(now);
        let file = self.get_mut(file);
        file.links -= 1;
        file.change(now);
        Ok(())
    }

    fn remove_directory(&mut self, parent: Id, name: &[u8], now: Option<i64>) -> Result<(), Refusal> {
        let directory = self.lookup(parent, name)?;
        if !self.names(directory)?.is_empty() {
            return Err(Refusal::NotEmpty);
        }
        self.names_mut(parent).remove(name);
        self.get_mut(parent).modify(now);
        let directory = self.get_mut(directory);
        directory.links = 0;
        directory.change(now);
        Ok(())
    }

    fn is_within(&self, mut directory: Id, ancestor: Id) -> bool {
        loop {
            if directory == ancestor {
                return true;
            }
            match &self.get(directory).body {
                Body::Directory { parent, .. } if directory != Id::ROOT => directory = *parent,
                _ => return false,
            }
        }
    }

    fn rename(
        &mut self,
        from: &(Id, Name),
        to: &(Id, Name),
        if_exists: IfExists,
        now: Option<i64>,
    ) -> Result<(), Refusal> {
        let moved = self.lookup(from.0, &from.1)?;
        self.living_directory(to.0)?;
        let replaced = self.lookup(to.0, &to.1).ok();
        if self.get(moved).is_directory() && self.is_within(to.0, moved) {
            return Err(Refusal::Invalid);
        }
        if replaced.is_some() && if_exists == IfExists::Refuse {
            return Err(Refusal::Exists);
        }
        if replaced == Some(moved) {
            return Ok(());
        }
        if let Some(replaced) = replaced {
            match (self.get(moved).is_directory(), self.get(replaced).is_directory()) {
                (true, false) => return Err(Refusal::NotDirectory),
                (false, true) => return Err(Refusal::IsDirectory),
                (true, true) if !self.names(replaced)?.is_empty() => return Err(Refusal::NotEmpty),
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
        if let Body::Directory { parent, .. } = &mut moved.body {
            *parent = to.0;
        }
        Ok(())
    }

    fn exchange(&mut self, one: &(Id, Name), other: &(Id, Name), now: Option<i64>) -> Result<(), Refusal> {
        let (first, second) = (self.lookup(one.0, &one.1)?, self.lookup(other.0, &other.1)?);
        for (moved, to) in [(first, other.0), (second, one.0)] {
            if self.get(moved).is_directory() && self.is_within(to, moved) {
                return Err(Refusal::Invalid);
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
            if let Body::Directory { parent, .. } = &mut moved.body {
                *parent = place.0;
            }
        }
        Ok(())
    }

    fn content_mut(&mut self, file: Id) -> Result<&mut Vec<u8>, Refusal> {
        let inode = self.get_mut(file);
        inode.version += 1;
        match &mut inode.body {
            Body::File(bytes) => Ok(Arc::make_mut(bytes)),
            Body::Directory { .. } => Err(Refusal::IsDirectory),
            Body::Symlink(_) | Body::Node(..) => Err(Refusal::Invalid),
        }
    }

    fn allocate(
        &mut self,
        file: Id,
        what: FallocateMode,
        range: Range<u64>,
        size: SizePolicy,
        now: Option<i64>,
    ) -> Result<(), Refusal> {
        let content = self.content_mut(file)?;
        let (start, end, old) = (range.start as usize, range.end as usize, content.len());
        if what != FallocateMode::Allocate {
            content[start.min(old)..end.min(old)].fill(0);
        }
        if size == SizePolicy::Grow && what != FallocateMode::PunchHole && old < end {
            content.resize(end, 0);
        }
        if what != FallocateMode::Allocate && start < old {
            self.get_mut(file).loose.settle(range);
        }
        self.get_mut(file).modify(now);
        Ok(())
    }

    fn copy(
        &mut self,
        from: Id,
        offset: u64,
        len: u64,
        (to, at): (Id, u64),
        now: Option<i64>,
    ) -> Result<(), Refusal> {
        if !(offset | at).is_multiple_of(4096) {
            return Err(Refusal::Unsupported);
        }
        if from == to && offset.abs_diff(at) < len {
            return Err(Refusal::Invalid);
        }
        let size = self.content_mut(from)?.len() as u64;
        let end = (offset + len).min(size);
        let there = self.content_mut(to)?.len() as u64;
        if end <= offset {
            return Ok(());
        }
        let len = end - offset;
        let ends = end == size && at + len >= there;
        if !len.is_multiple_of(4096) && !ends {
            return Err(Refusal::Unsupported);
        }
        let bytes = self.get(from).content()[offset as usize..end as usize].to_vec();
        // Pages that are shared are certain.
        self.get_mut(from).loose.settle(offset..end);
        self.write(to, at, &bytes, false, now)
    }

    fn write(
        &mut self,
        file: Id,
        offset: u64,
        bytes: &[u8],
        is_bypassing: bool,
        now: Option<i64>,
    ) -> Result<(), Refusal> {
        let (range, number) = (offset..offset + bytes.len() as u64, self.number);
        self.content_mut(file)?;
        let inode = self.get_mut(file);
        match (is_bypassing, &inode.body) {
            (true, Body::File(content)) => inode.loose.write(content, range, number),
            _ => inode.loose.settle(range),
        }
        let content = self.content_mut(file)?;
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if content.len() < end {
            content.resize(end, 0);
        }
        content[start..end].copy_from_slice(bytes);
        self.get_mut(file).modify(now);
        Ok(())
    }

    fn set_size(&mut self, file: Id, size: u64, now: Option<i64>) -> Result<(), Refusal> {
        let content = self.content_mut(file)?;
        let shrinks = size < content.len() as u64;
        content.resize(size as usize, 0);
        if shrinks {
            self.get_mut(file).loose.end(size);
        }
        self.get_mut(file).modify(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(model: &mut Model, parent: Id, name: &[u8], kind: FileKind) -> Id {
        let change = Change::Make { parent, name: name.to_vec(), kind, mode: 0o644 };
        model.apply(&change, None).expect("the name is free").expect("an inode is made")
    }

    fn rename(model: &mut Model, from: (Id, &[u8]), to: (Id, &[u8])) -> Result<Option<Id>, Refusal> {
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        model.apply(&Change::Rename { from, to, if_exists: IfExists::Replace }, None)
    }

    #[test]
    fn a_rename_replaces_files_and_empty_directories_only() {
        let mut model = Model::new();
        let file = make(&mut model, Id::ROOT, b"file", FileKind::File);
        let full = make(&mut model, Id::ROOT, b"full", FileKind::Directory);
        let inner = make(&mut model, full, b"inner", FileKind::Directory);
        make(&mut model, Id::ROOT, b"other", FileKind::File);
        assert_eq!(rename(&mut model, (Id::ROOT, b"file"), (Id::ROOT, b"full")), Err(Refusal::IsDirectory));
        assert_eq!(rename(&mut model, (Id::ROOT, b"full"), (Id::ROOT, b"file")), Err(Refusal::NotDirectory));
        assert_eq!(rename(&mut model, (Id::ROOT, b"full"), (inner, b"x")), Err(Refusal::Invalid));
        assert_eq!(rename(&mut model, (full, b"inner"), (Id::ROOT, b"full")), Err(Refusal::NotEmpty));
        assert_eq!(rename(&mut model, (Id::ROOT, b"file"), (Id::ROOT, b"other")), Ok(None));
        assert_eq!(model.lookup(Id::ROOT, b"other"), Ok(file));
        assert_eq!(model.lookup(Id::ROOT, b"file"), Err(Refusal::NotFound));
    }

    #[test]
    fn a_write_past_the_end_leaves_zeros_between() {
        let mut model = Model::new();
        let file = make(&mut model, Id::ROOT, b"file", FileKind::File);
        model
            .apply(&Change::Write { file, offset: 3, bytes: Arc::new(vec![7, 7]), bypasses: false }, None)
            .expect("a file");
        assert_eq!(model.get(file).content(), [0, 0, 0, 7, 7]);
        model.apply(&Change::SetSize { file, size: 4 }, None).expect("a file");
        model.apply(&Change::SetSize { file, size: 6 }, None).expect("a file");
        assert_eq!(model.get(file).content(), [0, 0, 0, 7, 0, 0]);
    }

    #[test]
    fn an_unlinked_file_stays_until_it_is_forgotten() {
        let mut model = Model::new();
        let file = make(&mut model, Id::ROOT, b"file", FileKind::File);
        model.apply(&Change::Unlink { parent: Id::ROOT, name: b"file".to_vec() }, None).expect("it exists");
        model
            .apply(&Change::Write { file, offset: 0, bytes: Arc::new(vec![1]), bypasses: false }, None)
            .expect("still there");
        model.drop_nameless();
        assert!(!model.inodes.contains_key(&file));
    }
}
