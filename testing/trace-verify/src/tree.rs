//! The simulated tree: files by number, names in directories, and the walk along a path with the kernel's rules.

use super::content::Content;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use trace_file::{Device, Name, Names};

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
    /// Paths with the same number have all but their last part in common.
    way: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Up,
    Name(Name),
}

/// All paths of a benchmark, by number.
pub(super) fn cut_up(all: &[&[u8]], names: &mut Names) -> Vec<Path> {
    let mut ways = HashMap::new();
    let mut one = |bytes: &&[u8]| {
        let parts = bytes.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        let part = |part: &[u8]| if part == b".." { Part::Up } else { Part::Name(names.intern(part)) };
        let parts: Box<[Part]> = parts.map(part).collect();
        let absolute = bytes.starts_with(b"/");
        let way = (absolute, parts.split_last().map_or(&[][..], |(_, way)| way).to_vec());
        let next = ways.len() as u32;
        Path {
            absolute,
            empty: bytes.is_empty(),
            directory: bytes.ends_with(b"/") || bytes.ends_with(b"/."),
            parts,
            way: *ways.entry(way).or_insert(next),
        }
    };
    all.iter().map(&mut one).collect()
}

/// How far a walk has come.
#[derive(Debug, Clone, Copy, Default)]
struct Walk {
    at: u32,
    /// Links that it went through.
    links: u32,
}

/// To which directory a way led the last time, and from where. New names change nothing about it.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    since: u32,
    from: u32,
    to: Walk,
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

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    pub(super) names: Map<(u32, Name), u32>,
    /// By the number of the way.
    known: Vec<Known>,
    /// Counts names of directories and links that went: what was known before may be wrong. Never zero.
    now: u32,
}

impl Clone for Tree {
    fn clone(&self) -> Tree {
        let Tree { nodes, names, known, now } = self;
        Tree { nodes: nodes.clone(), names: names.clone(), known: known.clone(), now: *now }
    }

    /// Keeps the memory that is there.
    fn clone_from(&mut self, other: &Tree) {
        self.nodes.clone_from(&other.nodes);
        self.names.clone_from(&other.names);
        self.known.clone_from(&other.known);
        self.now = other.now;
    }
}

impl Tree {
    pub(super) fn new(paths: &[Path]) -> Tree {
        let ways = paths.iter().map(|path| path.way as usize + 1).max().unwrap_or(0);
        let (root, names) = (Node::new(Kind::Directory, 0), Map::default());
        Tree { nodes: vec![root], names, known: vec![Known::default(); ways], now: 1 }
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
        if matches!(self.node(node).kind, Kind::Directory | Kind::Link(_)) {
            self.now += 1;
        }
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
    pub(super) fn walk(
        &mut self,
        start: u32,
        path: &Path,
        follow: bool,
        paths: &[Path],
    ) -> Result<Found, Errno> {
        let from = if path.absolute { ROOT } else { start };
        let mut walk = Walk { at: from, links: 0 };
        if let Some((_, way)) = path.parts.split_last() {
            let known = self.known[path.way as usize];
            if known.since == self.now && known.from == from {
                walk = known.to;
            } else {
                self.go(&mut walk, way, paths)?;
                // A file could become a directory without any of these going.
                if self.node(walk.at).kind == Kind::Directory {
                    self.known[path.way as usize] = Known { since: self.now, from, to: walk };
                }
            }
        }
        let found = self.arrive(walk, &path.parts, follow || path.directory, paths)?;
        match found.node {
            Some(node) if path.directory && self.node(node).kind != Kind::Directory => Err(libc::ENOTDIR),
            _ => Ok(Found { directory: path.directory, ..found }),
        }
    }

    /// Goes through each of these parts.
    fn go(&self, walk: &mut Walk, parts: &[Part], paths: &[Path]) -> Result<(), Errno> {
        for part in parts {
            let node = self.take(walk.at, *part)?.there()?;
            match self.node(node).kind {
                Kind::Link(target) => {
                    let target = self.enter_link(walk, target, paths)?;
                    self.go(walk, &target.parts, paths)?;
                }
                _ => walk.at = node,
            }
        }
        Ok(())
    }

    /// Takes the last of these parts, those before it being behind: a name, and what has it.
    fn arrive(&self, mut walk: Walk, parts: &[Part], follow: bool, paths: &[Path]) -> Result<Found, Errno> {
        let own = Found { at: None, node: Some(walk.at), directory: false };
        let Some(last) = parts.last() else { return Ok(own) };
        let found = self.take(walk.at, *last)?;
        match found.node.map(|node| self.node(node).kind) {
            Some(Kind::Link(target)) if follow => {
                let target = self.enter_link(&mut walk, target, paths)?;
                if let Some((_, way)) = target.parts.split_last() {
                    self.go(&mut walk, way, paths)?;
                }
                self.arrive(walk, &target.parts, follow, paths)
            }
            _ => Ok(found),
        }
    }

    /// One part, from a directory.
    fn take(&self, at: u32, part: Part) -> Result<Found, Errno> {
        let node = self.node(at);
        let (at, node) = match part {
            _ if node.kind != Kind::Directory => return Err(libc::ENOTDIR),
            Part::Up => (None, Some(node.parent)),
            Part::Name(name) => (Some((at, name)), self.names.get(&(at, name)).copied()),
        };
        Ok(Found { at, node, directory: false })
    }

    fn enter_link<'a>(&self, walk: &mut Walk, target: Name, paths: &'a [Path]) -> Result<&'a Path, Errno> {
        walk.links += 1;
        if walk.links > LINKS_MAX {
            return Err(libc::ELOOP);
        }
        let target = paths.get(target.0 as usize).ok_or(libc::ENOENT)?;
        if target.absolute {
            walk.at = ROOT;
        }
        Ok(target)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_way_is_followed_anew_once_a_directory_or_link_on_it_has_gone() {
        let mut names = Names::default();
        let texts = ["/a/b/c/f", "/a/link/f", "b/c/"].map(str::as_bytes);
        texts.iter().for_each(|text| {
            names.intern(text);
        });
        let paths = cut_up(&texts, &mut names);
        let [a, b, c, f, link] = ["a", "b", "c", "f", "link"].map(|name| names.intern(name.as_bytes()));
        let mut tree = Tree::new(&paths);
        let make = |tree: &mut Tree, dir, name, kind| {
            let node = tree.add(Node::new(kind, 0));
            tree.enter((dir, name), node, 1);
            node
        };
        let both = |tree: &mut Tree| {
            [0, 1].map(|path| tree.walk(ROOT, &paths[path], true, &paths).map(|found| found.node))
        };
        let in_a = make(&mut tree, ROOT, a, Kind::Directory);
        let in_b = make(&mut tree, in_a, b, Kind::Directory);
        make(&mut tree, in_a, link, Kind::Link(Name(2)));
        make(&mut tree, in_b, c, Kind::File);
        assert_eq!(both(&mut tree), [Err(libc::ENOTDIR); 2]);
        tree.leave((in_b, c), 1);
        assert_eq!(both(&mut tree), [Err(libc::ENOENT); 2]);
        let in_c = make(&mut tree, in_b, c, Kind::Directory);
        assert_eq!(both(&mut tree), [Ok(None); 2]);
        let file = make(&mut tree, in_c, f, Kind::File);
        assert_eq!(both(&mut tree), [Ok(Some(file)); 2]);
        tree.leave((in_a, b), 1);
        tree.enter((ROOT, b), in_b, 1);
        assert_eq!(both(&mut tree), [Err(libc::ENOENT); 2]);
        tree.enter((in_a, b), in_b, 1);
        tree.leave((in_a, link), 1);
        make(&mut tree, in_a, link, Kind::Directory);
        assert_eq!(both(&mut tree), [Ok(Some(file)), Ok(None)]);
    }
}
