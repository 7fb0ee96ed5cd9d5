//! The simulated tree: files by number, names in directories, and the walk along a path with the kernel's rules.

use super::content::Content;
use crate::benchmark::Device;
use crate::names::{Name, Names};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The root directory.
pub(super) const ROOT: u32 = 0;
/// The kernel's limit on links in one walk.
const LINKS_MAX: u32 = 40;

pub(super) type Errno = i32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Link(Name),
    Special(Device),
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) size: u64,
    pub(super) links: u32,
    /// Of a directory: the one that holds it.
    pub(super) parent: u32,
    /// Of a directory: how many names it holds, their bytes as getdents counts them, and a digest of them.
    pub(super) entries: u32,
    pub(super) listing: (u64, u64),
    pub(super) content: Content,
    /// Who changed its attributes last.
    pub(super) changed: u32,
    /// Extended attributes: name, bytes, who set it.
    pub(super) attributes: Vec<(Name, u64, u32)>,
    /// Tells files apart in every run: what was there first, or which action made it.
    pub(super) identity: u64,
}

/// Multiplies once: the keys are small numbers of our own.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0.rotate_left(29) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;

/// A path, cut up once for all runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Path {
    pub(super) absolute: bool,
    pub(super) empty: bool,
    /// It ends in a slash: what it names must be a directory.
    directory: bool,
    parts: Box<[Part]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Up,
    Name(Name),
}

impl Path {
    pub(super) fn new(bytes: &[u8], names: &mut Names) -> Path {
        let parts = bytes.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        let part = |part: &[u8]| if part == b".." { Part::Up } else { Part::Name(names.intern(part)) };
        Path {
            absolute: bytes.starts_with(b"/"),
            empty: bytes.is_empty(),
            directory: bytes.ends_with(b"/") || bytes.ends_with(b"/."),
            parts: parts.map(part).collect(),
        }
    }
}

/// Where a walk ended: the name, in its directory, and what has it. No name: the path was a directory's own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) at: Option<(u32, Name)>,
    pub(super) node: Option<u32>,
    /// Nothing but a directory may get this name.
    pub(super) directory: bool,
}

impl Found {
    pub(super) fn there(self) -> Result<u32, Errno> {
        self.node.ok_or(libc::ENOENT)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    pub(super) names: Map<(u32, Name), u32>,
}

impl Tree {
    pub(super) fn new() -> Tree {
        Tree { nodes: vec![Node::new(Kind::Directory, 0)], names: Map::default() }
    }

    pub(super) fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn node_mut(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    pub(super) fn add(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Gives a free name to a file. The length is that of the name in bytes.
    pub(super) fn enter(&mut self, (dir, name): (u32, Name), node: u32, length: usize) {
        self.names.insert((dir, name), node);
        self.node_mut(dir).list(name, length, 1);
        let node = self.node_mut(node);
        node.links += 1;
        if node.kind == Kind::Directory {
            node.parent = dir;
        }
    }

    /// Takes a name away; the file stays for those that have it open.
    pub(super) fn leave(&mut self, (dir, name): (u32, Name), length: usize) -> Option<u32> {
        let node = self.names.remove(&(dir, name))?;
        self.node_mut(dir).list(name, length, -1);
        self.node_mut(node).links -= 1;
        Some(node)
    }

    /// Whether `inner` is `outer` or lies below it.
    pub(super) fn is_below(&self, mut inner: u32, outer: u32) -> bool {
        while inner != outer {
            if inner == ROOT {
                return false;
            }
            inner = self.node(inner).parent;
        }
        true
    }

    /// Follows a path; the last component too if `follow`.
    pub(super) fn walk(&self, start: u32, path: &Path, follow: bool, paths: &[Path]) -> Result<Found, Errno> {
        let mut at = if path.absolute { ROOT } else { start };
        let mut found = Found { at: None, node: Some(at), directory: path.directory };
        let mut left: Vec<Part> = path.parts.iter().rev().copied().collect();
        let mut links = 0;
        while let Some(part) = left.pop() {
            if self.node(at).kind != Kind::Directory {
                return Err(libc::ENOTDIR);
            }
            let name = match part {
                Part::Up => {
                    at = self.node(at).parent;
                    (found.at, found.node) = (None, Some(at));
                    continue;
                }
                Part::Name(name) => name,
            };
            let Some(node) = self.names.get(&(at, name)).copied() else {
                return match left.is_empty() {
                    true => Ok(Found { at: Some((at, name)), node: None, ..found }),
                    false => Err(libc::ENOENT),
                };
            };
            match self.node(node).kind {
                Kind::Link(target) if follow || found.directory || !left.is_empty() => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(libc::ELOOP);
                    }
                    let target = paths.get(target.0 as usize).ok_or(libc::ENOENT)?;
                    if target.absolute {
                        at = ROOT;
                    }
                    left.extend(target.parts.iter().rev());
                    (found.at, found.node) = (None, Some(at));
                }
                _ => {
                    (found.at, found.node) = (Some((at, name)), Some(node));
                    at = node;
                }
            }
        }
        match found.directory && self.node(at).kind != Kind::Directory {
            true => Err(libc::ENOTDIR),
            false => Ok(found),
        }
    }
}

impl Node {
    pub(super) fn new(kind: Kind, identity: u64) -> Node {
        let (size, links, parent, entries, listing, changed) = (0, 0, ROOT, 0, (0, 0), 0);
        let (content, attributes) = Default::default();
        Node { kind, size, links, parent, entries, listing, content, changed, attributes, identity }
    }

    fn list(&mut self, name: Name, length: usize, by: i64) {
        // A record: inode, offset, length and type, then the name with its zero, in steps of eight bytes.
        let record = (19 + length as u64 + 1).next_multiple_of(8);
        let digest = u64::from(name.0 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.entries = self.entries.wrapping_add_signed(by as i32);
        self.listing.0 = self.listing.0.wrapping_add(record.wrapping_mul(by as u64));
        self.listing.1 = self.listing.1.wrapping_add(digest.wrapping_mul(by as u64));
    }
}
