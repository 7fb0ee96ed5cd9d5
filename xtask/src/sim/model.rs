//! The plain model of a file system: what the stack must look like from above. Owned by the oracle; not clever.

use fs::{FsError, IfExists, Ino, Kind};
use std::collections::BTreeMap;
use std::sync::Arc;

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
}

#[derive(Debug, Clone)]
pub(crate) struct Inode {
    /// Its number in the real file system, once known: learned from the reply, or after a crash from its name.
    pub(crate) ino: Option<Ino>,
    pub(crate) mode: u16,
    /// Names; a directory has one.
    pub(crate) links: u32,
    /// Raised with each change of content, so that comparisons can be remembered.
    pub(crate) version: u64,
    pub(crate) body: Body,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    File(Arc<Vec<u8>>),
    Directory { parent: Id, names: BTreeMap<Name, Id> },
    Symlink(Vec<u8>),
}

/// A change that somebody asks for. It has its effect at one moment, as a whole or not at all.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Make {
        parent: Id,
        name: Name,
        kind: Kind,
        mode: u16,
    },
    Symlink {
        parent: Id,
        name: Name,
        target: Vec<u8>,
    },
    Link {
        file: Id,
        parent: Id,
        name: Name,
    },
    Unlink {
        parent: Id,
        name: Name,
    },
    RemoveDirectory {
        parent: Id,
        name: Name,
    },
    Rename {
        from: (Id, Name),
        to: (Id, Name),
        if_exists: IfExists,
    },
    Write {
        file: Id,
        offset: u64,
        bytes: Arc<Vec<u8>>,
    },
    SetSize {
        file: Id,
        size: u64,
    },
    SetMode {
        inode: Id,
        mode: u16,
    },
    /// The last holder of an unlinked file let go. Nobody can see it.
    Forget {
        inode: Id,
    },
}

/// Why a change has no effect, by errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotFound,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    Invalid,
}

impl Refusal {
    /// Whether the real file system may refuse with this error where the model does so.
    pub(crate) fn allows(self, error: &FsError) -> bool {
        match self {
            // What was removed but is held: ENOENT on Linux, ESTALE over the network.
            Refusal::NotFound => matches!(error, FsError::NotFound | FsError::Stale),
            Refusal::Exists => matches!(error, FsError::Exists),
            Refusal::NotDirectory => matches!(error, FsError::NotDirectory),
            Refusal::IsDirectory => matches!(error, FsError::IsDirectory),
            // POSIX lets both errors say so.
            Refusal::NotEmpty => matches!(error, FsError::NotEmpty | FsError::Exists),
            Refusal::Invalid => matches!(error, FsError::Invalid),
        }
    }
}

impl Body {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Body::File(_) => Kind::File,
            Body::Directory { .. } => Kind::Directory,
            Body::Symlink(_) => Kind::Symlink,
        }
    }
}

impl Inode {
    fn new(body: Body, mode: u16) -> Inode {
        Inode { ino: None, mode, links: 1, version: 0, body }
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
}

impl Model {
    /// A root of mode 755, empty.
    pub(crate) fn new() -> Model {
        let body = Body::Directory { parent: Id::ROOT, names: BTreeMap::new() };
        let mut root = Inode::new(body, 0o755);
        root.ino = Some(Ino::ROOT);
        Model { inodes: BTreeMap::from([(Id::ROOT, root)]), next: Id(2) }
    }

    pub(crate) fn get(&self, id: Id) -> &Inode {
        self.inodes.get(&id).expect("only inodes of the model are asked for")
    }

    fn get_mut(&mut self, id: Id) -> &mut Inode {
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

    /// Makes `change`, or says why not; returns the new inode where one is made.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<Option<Id>, Refusal> {
        match change {
            Change::Make { parent, name, kind, mode } => {
                let body = match kind {
                    Kind::Directory => Body::Directory { parent: *parent, names: BTreeMap::new() },
                    _ => Body::File(Arc::default()),
                };
                self.add(*parent, name, Inode::new(body, *mode)).map(Some)
            }
            Change::Symlink { parent, name, target } => {
                self.add(*parent, name, Inode::new(Body::Symlink(target.clone()), 0o777)).map(Some)
            }
            Change::Link { file, parent, name } => self.link(*file, *parent, name),
            Change::Unlink { parent, name } => self.unlink(*parent, name),
            Change::RemoveDirectory { parent, name } => self.remove_directory(*parent, name),
            Change::Rename { from, to, if_exists } => self.rename(from, to, *if_exists),
            Change::Write { file, offset, bytes } => self.write(*file, *offset, bytes),
            Change::SetSize { file, size } => self.set_size(*file, *size),
            Change::SetMode { inode, mode } => {
                self.get_mut(*inode).mode = *mode;
                Ok(None)
            }
            Change::Forget { inode } => {
                self.inodes.remove(inode);
                Ok(None)
            }
        }
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

    fn add(&mut self, parent: Id, name: &[u8], inode: Inode) -> Result<Id, Refusal> {
        self.free_name(parent, name)?;
        let id = self.next;
        self.next = Id(id.0 + 1);
        self.inodes.insert(id, inode);
        self.names_mut(parent).insert(name.to_vec(), id);
        Ok(id)
    }

    fn link(&mut self, file: Id, parent: Id, name: &[u8]) -> Result<Option<Id>, Refusal> {
        self.free_name(parent, name)?;
        if self.get(file).links == 0 {
            return Err(Refusal::NotFound);
        }
        self.names_mut(parent).insert(name.to_vec(), file);
        self.get_mut(file).links += 1;
        Ok(None)
    }

    fn unlink(&mut self, parent: Id, name: &[u8]) -> Result<Option<Id>, Refusal> {
        let file = self.lookup(parent, name)?;
        if self.get(file).is_directory() {
            return Err(Refusal::IsDirectory);
        }
        self.names_mut(parent).remove(name);
        self.get_mut(file).links -= 1;
        Ok(None)
    }

    fn remove_directory(&mut self, parent: Id, name: &[u8]) -> Result<Option<Id>, Refusal> {
        let directory = self.lookup(parent, name)?;
        if !self.names(directory)?.is_empty() {
            return Err(Refusal::NotEmpty);
        }
        self.names_mut(parent).remove(name);
        self.get_mut(directory).links = 0;
        Ok(None)
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
    ) -> Result<Option<Id>, Refusal> {
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
            return Ok(None);
        }
        if let Some(replaced) = replaced {
            match (self.get(moved).is_directory(), self.get(replaced).is_directory()) {
                (true, false) => return Err(Refusal::NotDirectory),
                (false, true) => return Err(Refusal::IsDirectory),
                (true, true) if !self.names(replaced)?.is_empty() => return Err(Refusal::NotEmpty),
                _ => self.get_mut(replaced).links -= 1,
            }
        }
        self.names_mut(from.0).remove(&from.1);
        self.names_mut(to.0).insert(to.1.clone(), moved);
        if let Body::Directory { parent, .. } = &mut self.get_mut(moved).body {
            *parent = to.0;
        }
        Ok(None)
    }

    fn content_mut(&mut self, file: Id) -> Result<&mut Vec<u8>, Refusal> {
        let inode = self.get_mut(file);
        inode.version += 1;
        match &mut inode.body {
            Body::File(bytes) => Ok(Arc::make_mut(bytes)),
            Body::Directory { .. } => Err(Refusal::IsDirectory),
            Body::Symlink(_) => Err(Refusal::Invalid),
        }
    }

    fn write(&mut self, file: Id, offset: u64, bytes: &[u8]) -> Result<Option<Id>, Refusal> {
        let content = self.content_mut(file)?;
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if content.len() < end {
            content.resize(end, 0);
        }
        content[start..end].copy_from_slice(bytes);
        Ok(None)
    }

    fn set_size(&mut self, file: Id, size: u64) -> Result<Option<Id>, Refusal> {
        self.content_mut(file)?.resize(size as usize, 0);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(model: &mut Model, parent: Id, name: &[u8], kind: Kind) -> Id {
        let change = Change::Make { parent, name: name.to_vec(), kind, mode: 0o644 };
        model.apply(&change).expect("the name is free").expect("an inode is made")
    }

    fn rename(model: &mut Model, from: (Id, &[u8]), to: (Id, &[u8])) -> Result<Option<Id>, Refusal> {
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        model.apply(&Change::Rename { from, to, if_exists: IfExists::Replace })
    }

    #[test]
    fn a_rename_replaces_files_and_empty_directories_only() {
        let mut model = Model::new();
        let file = make(&mut model, Id::ROOT, b"file", Kind::File);
        let full = make(&mut model, Id::ROOT, b"full", Kind::Directory);
        let inner = make(&mut model, full, b"inner", Kind::Directory);
        make(&mut model, Id::ROOT, b"other", Kind::File);
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
        let file = make(&mut model, Id::ROOT, b"file", Kind::File);
        model.apply(&Change::Write { file, offset: 3, bytes: Arc::new(vec![7, 7]) }).expect("a file");
        assert_eq!(model.get(file).content(), [0, 0, 0, 7, 7]);
        model.apply(&Change::SetSize { file, size: 4 }).expect("a file");
        model.apply(&Change::SetSize { file, size: 6 }).expect("a file");
        assert_eq!(model.get(file).content(), [0, 0, 0, 7, 0, 0]);
    }

    #[test]
    fn an_unlinked_file_stays_until_it_is_forgotten() {
        let mut model = Model::new();
        let file = make(&mut model, Id::ROOT, b"file", Kind::File);
        model.apply(&Change::Unlink { parent: Id::ROOT, name: b"file".to_vec() }).expect("it exists");
        model.apply(&Change::Write { file, offset: 0, bytes: Arc::new(vec![1]) }).expect("still there");
        model.drop_nameless();
        assert!(!model.inodes.contains_key(&file));
    }
}
