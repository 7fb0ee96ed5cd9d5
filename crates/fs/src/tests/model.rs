//! A plain file system of maps and vectors: slow, obvious, and independent of the real one.

mod moves;
pub(crate) mod xattr;

use crate::allocate::{Allocate, Size};
use crate::check::Finding;
use crate::error::FsError;
use crate::types::{Attributes, Caller, IfExists, Ino, Kind, Privileges, SetAttributes, SetTime, SetXattr};
use std::collections::BTreeMap;

/// One operation.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    /// Only devices have a number other than 0.
    Make {
        caller: Caller,
        parent: Ino,
        name: Vec<u8>,
        kind: Kind,
        mode: u16,
        device: u32,
    },
    Symlink {
        caller: Caller,
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
        /// Whose whiteout stays at the old name.
        whiteout: Option<Caller>,
    },
    Exchange {
        one: (Ino, Vec<u8>),
        other: (Ino, Vec<u8>),
    },
    SetXattr {
        ino: Ino,
        name: Vec<u8>,
        value: Vec<u8>,
        how: SetXattr,
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
        what: Allocate,
        range: (u64, u64),
        size: Size,
    },
    Hold {
        ino: Ino,
    },
    Unhold {
        ino: Ino,
    },
}

/// An entry: cookie, name, number, kind.
pub(crate) type Listing = (u64, Vec<u8>, Ino, Kind);

/// What is compared with the model.
pub(crate) trait Subject {
    fn now(&self) -> i64;
    fn set_now(&mut self, now: i64);
    fn apply(&mut self, operation: &Operation) -> Result<Option<Attributes>, FsError>;
    /// Does an operation and gives it up, which must leave everything as it was.
    fn rehearse(&mut self, _operation: &Operation) {}
    fn attributes(&self, ino: Ino) -> Result<Attributes, FsError>;
    fn read(&self, ino: Ino) -> Result<Vec<u8>, FsError>;
    fn read_link(&self, ino: Ino) -> Result<Vec<u8>, FsError>;
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Ino, FsError>;
    fn xattrs(&self, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, FsError>;
    fn list(&self, ino: Ino) -> Result<Vec<Listing>, FsError>;
    /// Closes everything and opens it again.
    fn reopen(&mut self);
    fn findings(&self) -> Vec<Finding>;
}

/// A file, a directory or a link.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
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

/// All of them. The numbers of new ones are those that the subject gave.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) nodes: BTreeMap<Ino, Node>,
    pub(crate) now: i64,
}

type Outcome = Result<(), FsError>;

impl Model {
    pub(crate) fn new(owner: Caller, now: i64) -> Model {
        let root = Model::node(Kind::Directory, (owner.uid, owner.gid, 0o755), Ino::ROOT, now);
        Model { nodes: BTreeMap::from([(Ino::ROOT, root)]), now }
    }

    fn node(kind: Kind, rights: (u32, u32, u16), parent: Ino, now: i64) -> Node {
        let links = if kind == Kind::Directory { 2 } else { 1 };
        Node {
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
    pub(crate) fn apply(&mut self, operation: &Operation, made: Option<Ino>) -> Outcome {
        match operation.clone() {
            Operation::Make { caller, parent, name, kind, mode, device } => {
                let rights = (caller.uid, caller.gid, mode);
                let node = Node { device, ..Model::node(kind, rights, parent, self.now) };
                self.make(caller.umask, parent, name, node, made)
            }
            Operation::Symlink { caller, parent, name, target } => {
                let rights = (caller.uid, caller.gid, 0o777);
                let node = Node { bytes: target, ..Model::node(Kind::Symlink, rights, parent, self.now) };
                self.make(0, parent, name, node, made)
            }
            Operation::Link { ino, parent, name } => self.link(ino, parent, name),
            Operation::Unlink { parent, name } => {
                let ino = self.lookup(parent, &name)?;
                if self.nodes[&ino].kind == Kind::Directory {
                    return Err(FsError::IsDirectory);
                }
                self.take_name(parent, &name);
                self.drop_file(ino);
                Ok(())
            }
            Operation::RemoveDirectory { parent, name } => {
                let ino = self.lookup(parent, &name)?;
                if self.nodes[&ino].kind != Kind::Directory {
                    return Err(FsError::NotDirectory);
                }
                if !self.nodes[&ino].names.is_empty() {
                    return Err(FsError::NotEmpty);
                }
                self.take_name(parent, &name);
                self.drop_directory(parent, ino);
                Ok(())
            }
            Operation::Rename { from, to, if_exists, whiteout } => {
                self.rename(from.clone(), to, if_exists)?;
                match whiteout {
                    // Two names of one file stay where they are.
                    Some(caller) if self.lookup(from.0, &from.1).is_err() => {
                        let rights = (caller.uid, caller.gid, 0);
                        let node = Model::node(Kind::CharDevice, rights, from.0, self.now);
                        self.make(caller.umask, from.0, from.1, node, made)
                    }
                    _ => Ok(()),
                }
            }
            Operation::Exchange { one, other } => self.exchange(one, other),
            Operation::SetXattr { ino, name, value, how } => self.set_xattr(ino, &name, value, how),
            Operation::RemoveXattr { ino, name } => self.remove_xattr(ino, &name),
            Operation::Write { ino, offset, bytes } => self.write(ino, offset as usize, &bytes),
            Operation::Set { ino, set } => self.set(ino, set),
            Operation::Allocate { ino, what, range, size } => self.allocate(ino, what, range, size),
            Operation::Hold { ino } => {
                self.nodes.get_mut(&ino).ok_or(FsError::Stale)?.held += 1;
                Ok(())
            }
            Operation::Unhold { ino } => {
                self.nodes.get_mut(&ino).ok_or(FsError::Stale)?.held -= 1;
                self.forget(ino);
                Ok(())
            }
        }
    }

    /// What an unmount does to open counts.
    pub(crate) fn reopen(&mut self) {
        for ino in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.nodes.get_mut(&ino).expect("it was there").held = 0;
            self.forget(ino);
        }
    }

    fn at(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("the model knows it")
    }

    fn directory(&self, ino: Ino) -> Result<&Node, FsError> {
        let node = self.nodes.get(&ino).ok_or(FsError::Stale)?;
        match node.kind {
            Kind::Directory if node.links == 0 => Err(FsError::NotFound),
            Kind::Directory => Ok(node),
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

    fn make(&mut self, umask: u16, parent: Ino, name: Vec<u8>, mut node: Node, made: Option<Ino>) -> Outcome {
        let directory = self.directory(parent)?;
        if directory.names.contains_key(&name) {
            return Err(FsError::Exists);
        }
        if directory.rights.2 & 0o2000 != 0 {
            node.rights.1 = directory.rights.1;
            node.rights.2 |= if node.kind == Kind::Directory { 0o2000 } else { 0 };
        }
        if node.kind != Kind::Symlink {
            match directory.xattrs.contains_key(xattr::DEFAULT) {
                true => directory.inherit(&mut node),
                false => node.rights.2 &= !umask,
            }
        }
        let made = made.expect("the subject made it too");
        let kind = node.kind;
        let old = self.nodes.insert(made, node);
        assert!(old.is_none(), "{made:?} is in use");
        if kind == Kind::Directory {
            self.at(parent).links += 1;
        }
        self.put_name(parent, name, made);
        Ok(())
    }

    fn link(&mut self, ino: Ino, parent: Ino, name: Vec<u8>) -> Outcome {
        let node = self.nodes.get(&ino).ok_or(FsError::Stale)?.clone();
        if node.kind == Kind::Directory {
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

    fn file(&mut self, ino: Ino) -> Result<&mut Node, FsError> {
        let node = self.nodes.get_mut(&ino).ok_or(FsError::Stale)?;
        match node.kind {
            Kind::File => Ok(node),
            Kind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }

    fn write(&mut self, ino: Ino, offset: usize, bytes: &[u8]) -> Outcome {
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

    fn allocate(&mut self, ino: Ino, what: Allocate, range: (u64, u64), size: Size) -> Outcome {
        let now = self.now;
        let node = self.file(ino)?;
        let end = (range.0 + range.1) as usize;
        if what != Allocate::Space {
            let within = node.bytes.len().min(end);
            node.bytes[within.min(range.0 as usize)..within].fill(0);
        }
        if size == Size::Grows && what != Allocate::Hole && node.bytes.len() < end {
            node.bytes.resize(end, 0);
        }
        (node.times[1], node.times[2]) = (now, now);
        Ok(())
    }

    fn set(&mut self, ino: Ino, set: SetAttributes) -> Outcome {
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
        let drops = node.kind != Kind::Directory && (chown || set.privileges != Privileges::Keep);
        let only_drops = SetAttributes { privileges: set.privileges, ..Default::default() };
        let mut had = false;
        if drops {
            let all = mode & 0o010 != 0 || set.privileges == Privileges::DropAll;
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
            node.follow_mode();
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
    pub(crate) fn compare(&self, subject: &dyn Subject) {
        for (&ino, node) in &self.nodes {
            let found = subject.attributes(ino).unwrap_or_else(|error| panic!("{ino:?} {node:?}: {error}"));
            assert_eq!((found.kind, found.links), (node.kind, node.links), "{ino:?}");
            assert_eq!((found.uid, found.gid, found.mode), node.rights, "{ino:?}");
            let times = [found.accessed, found.modified, found.changed, found.created];
            assert_eq!(times, node.times, "{ino:?} {node:?}");
            assert_eq!(found.device, node.device, "{ino:?}");
            assert_eq!(subject.xattrs(ino).expect("a list"), node.xattrs, "{ino:?}");
            match node.kind {
                Kind::File => {
                    assert_eq!(found.size, node.bytes.len() as u64, "{ino:?}");
                    assert!(subject.read(ino).expect("a read") == node.bytes, "{ino:?}: other bytes");
                }
                Kind::Symlink => assert_eq!(subject.read_link(ino).expect("a target"), node.bytes, "{ino:?}"),
                Kind::Directory => self.compare_directory(subject, ino, node),
                _ => assert_eq!(found.size, 0, "{ino:?}"),
            }
        }
    }

    fn compare_directory(&self, subject: &dyn Subject, ino: Ino, node: &Node) {
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
