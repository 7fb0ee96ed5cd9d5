//! A plain file system of maps and vectors: slow, obvious, and independent of the real one.

mod moves;
pub(crate) mod xattr;

use crate::check::FsFinding;
use crate::error::FsError;
use crate::ops::allocate::{FallocateMode, SizePolicy};
use crate::types::{
    CallerCredentials, FileAttributes, FileKind, IfExists, Ino, PrivilegeChange, SetAttributes, SetTime,
    SetXattrMode,
};
use std::collections::BTreeMap;

/// One operation.
#[derive(Debug, Clone)]
pub(crate) enum ModelOperation {
    /// Only devices have a number other than 0.
    Make {
        caller: CallerCredentials,
        parent: Ino,
        name: Vec<u8>,
        kind: FileKind,
        mode: u16,
        device: u32,
    },
    Symlink {
        caller: CallerCredentials,
        parent: Ino,
        name: Vec<u8>,
        target: Vec<u8>,
    },
    Link {
        ino: Ino,
        parent: Ino,
        name: Vec<u8>,
    },
    Unlink {
        parent: Ino,
        name: Vec<u8>,
    },
    RemoveDirectory {
        parent: Ino,
        name: Vec<u8>,
    },
    Rename {
        from: (Ino, Vec<u8>),
        to: (Ino, Vec<u8>),
        if_exists: IfExists,
        /// The owner of the whiteout at the old name, if there is to be one.
        whiteout: Option<CallerCredentials>,
    },
    Exchange {
        one: (Ino, Vec<u8>),
        other: (Ino, Vec<u8>),
    },
    SetXattr {
        ino: Ino,
        name: Vec<u8>,
        value: Vec<u8>,
        how: SetXattrMode,
    },
    RemoveXattr {
        ino: Ino,
        name: Vec<u8>,
    },
    Write {
        ino: Ino,
        offset: u64,
        bytes: Vec<u8>,
    },
    Set {
        ino: Ino,
        set: SetAttributes,
    },
    Allocate {
        ino: Ino,
        what: FallocateMode,
        range: (u64, u64),
        size: SizePolicy,
    },
    Hold {
        ino: Ino,
    },
    Unhold {
        ino: Ino,
    },
}

/// An entry: cookie, name, number, kind.
pub(crate) type ModelListing = (u64, Vec<u8>, Ino, FileKind);

/// A file system that is compared with the model.
pub(crate) trait ModelSubject {
    fn now(&self) -> i64;
    fn set_now(&mut self, now: i64);
    fn apply(&mut self, operation: &ModelOperation) -> Result<Option<FileAttributes>, FsError>;
    /// Does an operation and undoes it, which must leave everything as it was.
    fn rehearse(&mut self, _operation: &ModelOperation) {}
    fn attributes(&self, ino: Ino) -> Result<FileAttributes, FsError>;
    fn read(&self, ino: Ino) -> Result<Vec<u8>, FsError>;
    fn read_link(&self, ino: Ino) -> Result<Vec<u8>, FsError>;
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Ino, FsError>;
    fn xattrs(&self, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, FsError>;
    fn list(&self, ino: Ino) -> Result<Vec<ModelListing>, FsError>;
    /// Closes everything and opens it again.
    fn reopen(&mut self);
    fn findings(&self) -> Vec<FsFinding>;
}

/// A file, a directory or a link.
#[derive(Debug, Clone)]
pub(crate) struct ModelNode {
    pub(crate) kind: FileKind,
    pub(crate) rights: (u32, u32, u16),
    pub(crate) links: u32,
    /// A file's content or a link's target.
    pub(crate) bytes: Vec<u8>,
    pub(crate) names: BTreeMap<Vec<u8>, Ino>,
    pub(crate) parent: Ino,
    /// Accessed, modified, changed, created.
    pub(crate) times: [i64; 4],
    pub(crate) held: u64,
    pub(crate) device: u32,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A plain file system. New inodes have the numbers that the compared file system gave them.
#[derive(Debug, Clone)]
pub(crate) struct ModelFs {
    pub(crate) nodes: BTreeMap<Ino, ModelNode>,
    pub(crate) now: i64,
}

type ModelOutcome = Result<(), FsError>;

impl ModelFs {
    pub(crate) fn new(owner: CallerCredentials, now: i64) -> ModelFs {
        let root = ModelFs::node(FileKind::Directory, (owner.uid, owner.gid, 0o755), Ino::ROOT, now);
        ModelFs { nodes: BTreeMap::from([(Ino::ROOT, root)]), now }
    }

    fn node(kind: FileKind, rights: (u32, u32, u16), parent: Ino, now: i64) -> ModelNode {
        let links = if kind == FileKind::Directory { 2 } else { 1 };
        ModelNode {
            kind,
            rights,
            links,
            bytes: vec![],
            names: BTreeMap::new(),
            parent,
            times: [now; 4],
            held: 0,
            device: 0,
            xattrs: BTreeMap::new(),
        }
    }

    /// Applies what the subject did; `made` is the number of what was made.
    pub(crate) fn apply(&mut self, operation: &ModelOperation, made: Option<Ino>) -> ModelOutcome {
        match operation.clone() {
            ModelOperation::Make { caller, parent, name, kind, mode, device } => {
                let rights = (caller.uid, caller.gid, mode);
                let node = ModelNode { device, ..ModelFs::node(kind, rights, parent, self.now) };
                self.make(caller.umask, parent, name, node, made)
            }
            ModelOperation::Symlink { caller, parent, name, target } => {
                let rights = (caller.uid, caller.gid, 0o777);
                let node =
                    ModelNode { bytes: target, ..ModelFs::node(FileKind::Symlink, rights, parent, self.now) };
                self.make(0, parent, name, node, made)
            }
            ModelOperation::Link { ino, parent, name } => self.link(ino, parent, name),
            ModelOperation::Unlink { parent, name } => {
                let ino = self.lookup(parent, &name)?;
                if self.nodes[&ino].kind == FileKind::Directory {
                    return Err(FsError::IsDirectory);
                }
                self.take_name(parent, &name);
                self.drop_file(ino);
                Ok(())
            }
            ModelOperation::RemoveDirectory { parent, name } => {
                let ino = self.lookup(parent, &name)?;
                if self.nodes[&ino].kind != FileKind::Directory {
                    return Err(FsError::NotDirectory);
                }
                if !self.nodes[&ino].names.is_empty() {
                    return Err(FsError::NotEmpty);
                }
                self.take_name(parent, &name);
                self.drop_directory(parent, ino);
                Ok(())
            }
            ModelOperation::Rename { from, to, if_exists, whiteout } => {
                self.rename(from.clone(), to, if_exists)?;
                match whiteout {
                    // Two names of one file stay where they are.
                    Some(caller) if self.lookup(from.0, &from.1).is_err() => {
                        let rights = (caller.uid, caller.gid, 0);
                        let node = ModelFs::node(FileKind::CharDevice, rights, from.0, self.now);
                        self.make(caller.umask, from.0, from.1, node, made)
                    }
                    _ => Ok(()),
                }
            }
            ModelOperation::Exchange { one, other } => self.exchange(one, other),
            ModelOperation::SetXattr { ino, name, value, how } => self.set_xattr(ino, &name, value, how),
            ModelOperation::RemoveXattr { ino, name } => self.remove_xattr(ino, &name),
            ModelOperation::Write { ino, offset, bytes } => self.write(ino, offset as usize, &bytes),
            ModelOperation::Set { ino, set } => self.set(ino, set),
            ModelOperation::Allocate { ino, what, range, size } => self.allocate(ino, what, range, size),
            ModelOperation::Hold { ino } => {
                self.nodes.get_mut(&ino).ok_or(FsError::Stale)?.held += 1;
                Ok(())
            }
            ModelOperation::Unhold { ino } => {
                self.nodes.get_mut(&ino).ok_or(FsError::Stale)?.held -= 1;
                self.forget(ino);
                Ok(())
            }
        }
    }

    /// An unmount drops open counts.
    pub(crate) fn reopen(&mut self) {
        for ino in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.nodes.get_mut(&ino).expect("it was there").held = 0;
            self.forget(ino);
        }
    }

    fn at(&mut self, ino: Ino) -> &mut ModelNode {
        self.nodes.get_mut(&ino).expect("the model knows it")
    }

    fn directory(&self, ino: Ino) -> Result<&ModelNode, FsError> {
        let node = self.nodes.get(&ino).ok_or(FsError::Stale)?;
        match node.kind {
            FileKind::Directory if node.links == 0 => Err(FsError::NotFound),
            FileKind::Directory => Ok(node),
            _ => Err(FsError::NotDirectory),
        }
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Ino, FsError> {
        self.directory(parent)?.names.get(name).copied().ok_or(FsError::NotFound)
    }

    fn put_name(&mut self, parent: Ino, name: Vec<u8>, ino: Ino) {
        let now = self.now;
        let directory = self.at(parent);
        directory.names.insert(name, ino);
        (directory.times[1], directory.times[2]) = (now, now);
    }

    fn take_name(&mut self, parent: Ino, name: &[u8]) {
        let now = self.now;
        let directory = self.at(parent);
        directory.names.remove(name);
        (directory.times[1], directory.times[2]) = (now, now);
    }

    fn make(
        &mut self,
        umask: u16,
        parent: Ino,
        name: Vec<u8>,
        mut node: ModelNode,
        made: Option<Ino>,
    ) -> ModelOutcome {
        let directory = self.directory(parent)?;
        if directory.names.contains_key(&name) {
            return Err(FsError::Exists);
        }
        if directory.rights.2 & 0o2000 != 0 {
            node.rights.1 = directory.rights.1;
            node.rights.2 |= if node.kind == FileKind::Directory { 0o2000 } else { 0 };
        }
        if node.kind != FileKind::Symlink {
            if directory.xattrs.contains_key(xattr::DEFAULT) {
                directory.inherit(&mut node);
            } else {
                node.rights.2 &= !umask;
            }
        }
        let made = made.expect("the subject made it too");
        let kind = node.kind;
        let old = self.nodes.insert(made, node);
        assert!(old.is_none(), "{made:?} is in use");
        if kind == FileKind::Directory {
            self.at(parent).links += 1;
        }
        self.put_name(parent, name, made);
        Ok(())
    }

    fn link(&mut self, ino: Ino, parent: Ino, name: Vec<u8>) -> ModelOutcome {
        let node = self.nodes.get(&ino).ok_or(FsError::Stale)?.clone();
        if node.kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        if self.directory(parent)?.names.contains_key(&name) {
            return Err(FsError::Exists);
        }
        if node.links == 0 {
            return Err(FsError::NotFound);
        }
        let now = self.now;
        self.at(ino).links += 1;
        self.at(ino).times[2] = now;
        self.put_name(parent, name, ino);
        Ok(())
    }

    fn drop_file(&mut self, ino: Ino) {
        let now = self.now;
        self.at(ino).links -= 1;
        self.at(ino).times[2] = now;
        self.forget(ino);
    }

    fn drop_directory(&mut self, parent: Ino, ino: Ino) {
        let now = self.now;
        self.at(parent).links -= 1;
        self.at(ino).links = 0;
        self.at(ino).times[2] = now;
        self.forget(ino);
    }

    fn forget(&mut self, ino: Ino) {
        if self.nodes[&ino].links == 0 && self.nodes[&ino].held == 0 {
            self.nodes.remove(&ino);
        }
    }

    fn file(&mut self, ino: Ino) -> Result<&mut ModelNode, FsError> {
        let node = self.nodes.get_mut(&ino).ok_or(FsError::Stale)?;
        match node.kind {
            FileKind::File => Ok(node),
            FileKind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }

    fn write(&mut self, ino: Ino, offset: usize, bytes: &[u8]) -> ModelOutcome {
        let now = self.now;
        let node = self.file(ino)?;
        let end = offset + bytes.len();
        if node.bytes.len() < end {
            node.bytes.resize(end, 0);
        }
        node.bytes[offset..end].copy_from_slice(bytes);
        (node.times[1], node.times[2]) = (now, now);
        Ok(())
    }

    fn allocate(
        &mut self,
        ino: Ino,
        what: FallocateMode,
        range: (u64, u64),
        size: SizePolicy,
    ) -> ModelOutcome {
        let now = self.now;
        let node = self.file(ino)?;
        let end = (range.0 + range.1) as usize;
        if what != FallocateMode::Allocate {
            let within = node.bytes.len().min(end);
            node.bytes[within.min(range.0 as usize)..within].fill(0);
        }
        if size == SizePolicy::Grow && what != FallocateMode::PunchHole && node.bytes.len() < end {
            node.bytes.resize(end, 0);
        }
        (node.times[1], node.times[2]) = (now, now);
        Ok(())
    }

    fn set(&mut self, ino: Ino, set: SetAttributes) -> ModelOutcome {
        let now = self.now;
        if set.size.is_some() {
            self.file(ino)?;
        }
        let node = self.nodes.get_mut(&ino).ok_or(FsError::Stale)?;
        if set == SetAttributes::default() {
            return Ok(());
        }
        if let Some(size) = set.size {
            node.bytes.resize(size as usize, 0);
            node.times[1] = now;
        }
        let (mut uid, mut gid, mut mode) = node.rights;
        let chown = set.uid.is_some() || set.gid.is_some();
        let drops = node.kind != FileKind::Directory && (chown || set.privileges != PrivilegeChange::Keep);
        let only_drops = SetAttributes { privileges: set.privileges, ..Default::default() };
        let mut had = false;
        if drops {
            let all = mode & 0o010 != 0 || set.privileges == PrivilegeChange::DropAll;
            mode &= if all { !0o6000 } else { !0o4000 };
            had = node.drop_capability();
        }
        uid = set.uid.unwrap_or(uid);
        gid = set.gid.unwrap_or(gid);
        let rights = (uid, gid, set.mode.unwrap_or(mode));
        if set == only_drops && !had && rights == node.rights {
            return Ok(());
        }
        node.rights = rights;
        if set.mode.is_some() {
            node.update_access_acl();
        }
        node.times[2] = now;
        for (at, time) in [(0, set.accessed), (1, set.modified)] {
            match time {
                Some(SetTime::Now) => node.times[at] = now,
                Some(SetTime::To(time)) => node.times[at] = time,
                None => {}
            }
        }
        Ok(())
    }

    /// Panics unless the subject shows exactly what the model holds.
    pub(crate) fn compare(&self, subject: &dyn ModelSubject) {
        for (&ino, node) in &self.nodes {
            let found = subject.attributes(ino).unwrap_or_else(|error| panic!("{ino:?} {node:?}: {error}"));
            assert_eq!((found.kind, found.links), (node.kind, node.links), "{ino:?}");
            assert_eq!((found.uid, found.gid, found.mode), node.rights, "{ino:?}");
            let times = [found.accessed, found.modified, found.changed, found.created];
            assert_eq!(times, node.times, "{ino:?} {node:?}");
            assert_eq!(found.device, node.device, "{ino:?}");
            assert_eq!(subject.xattrs(ino).expect("a list"), node.xattrs, "{ino:?}");
            match node.kind {
                FileKind::File => {
                    assert_eq!(found.size, node.bytes.len() as u64, "{ino:?}");
                    assert!(subject.read(ino).expect("a read") == node.bytes, "{ino:?}: other bytes");
                }
                FileKind::Symlink => {
                    assert_eq!(subject.read_link(ino).expect("a target"), node.bytes, "{ino:?}")
                }
                FileKind::Directory => self.compare_directory(subject, ino, node),
                _ => assert_eq!(found.size, 0, "{ino:?}"),
            }
        }
    }

    fn compare_directory(&self, subject: &dyn ModelSubject, ino: Ino, node: &ModelNode) {
        if node.links == 0 {
            assert!(matches!(subject.list(ino), Err(FsError::NotFound)));
            return;
        }
        let listed = subject.list(ino).expect("a directory lists");
        assert!(listed.is_sorted_by_key(|one| one.0), "cookies are not in order");
        assert!(listed.windows(2).all(|pair| pair[0].0 != pair[1].0), "cookies are not unique");
        let mut names: Vec<_> = listed.into_iter().map(|(_, name, ino, kind)| (name, ino, kind)).collect();
        names.sort_by(|one, other| one.0.cmp(&other.0));
        let expected: Vec<_> =
            node.names.iter().map(|(name, &ino)| (name.clone(), ino, self.nodes[&ino].kind)).collect();
        assert!(names == expected, "{ino:?}: other names");
        for (name, &child) in &node.names {
            assert_eq!(subject.lookup(ino, name).ok(), Some(child), "{name:?}");
        }
    }
}
