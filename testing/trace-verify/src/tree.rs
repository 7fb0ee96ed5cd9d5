//! The simulated tree: files by number, names in directories, and walks along paths with the kernel's rules.

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
pub(super) enum SimulatedKind {
    File,
    Directory,
    Link(Name),
    Special(Device),
}

#[derive(Debug, Clone)]
pub(super) struct SimulatedNode {
    pub(super) kind: SimulatedKind,
    pub(super) size: u64,
    pub(super) links: u32,
    /// For a directory: the directory that holds it.
    pub(super) parent: u32,
    /// For a directory: the number of its names, their bytes as getdents counts them, and a digest of them.
    pub(super) entries: u32,
    pub(super) listing: (u64, u64),
    pub(super) content: Content,
    /// The last action that changed the attributes.
    pub(super) changed: u32,
    /// Extended attributes, each with its name, its bytes, and the action that set it.
    pub(super) attributes: Vec<(Name, u64, u32)>,
    /// Identifies the file in every run, by its number in the initial tree or the action that made it.
    pub(super) identity: u64,
}

/// A hasher that multiplies once. The keys are small numbers of our own.
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

/// A path, split into parts once for all runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Path {
    pub(super) absolute: bool,
    pub(super) empty: bool,
    /// Whether the path ends in a slash, so that it must name a directory.
    directory: bool,
    parts: Box<[PathPart]>,
    /// The number of all parts but the last. Paths that share these parts share the number.
    way: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PathPart {
    Up,
    Name(Name),
}

/// Splits all paths of a compiled trace, by number.
pub(super) fn cut_up(all: &[&[u8]], names: &mut Names) -> Vec<Path> {
    let mut ways = HashMap::new();
    let mut one = |bytes: &&[u8]| {
        let parts = bytes.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        let part =
            |part: &[u8]| if part == b".." { PathPart::Up } else { PathPart::Name(names.intern(part)) };
        let parts: Box<[PathPart]> = parts.map(part).collect();
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

/// The progress of a walk.
#[derive(Debug, Clone, Copy, Default)]
struct Walk {
    at: u32,
    /// Symbolic links that the walk has followed.
    links: u32,
}

/// The directory to which a way led the last time, and the start of that walk. New names do not invalidate
/// it.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    since: u32,
    from: u32,
    to: Walk,
}

/// The end of a walk: the name in its directory, and the file with that name. There is no name if the path
/// named a directory itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathResult {
    pub(super) at: Option<(u32, Name)>,
    pub(super) node: Option<u32>,
    /// Whether only a directory may get this name.
    pub(super) directory: bool,
}

impl PathResult {
    pub(super) fn there(self) -> Result<u32, Errno> {
        self.node.ok_or(libc::ENOENT)
    }
}

#[derive(Debug)]
pub(super) struct SimulatedTree {
    pub(super) nodes: Vec<SimulatedNode>,
    pub(super) names: Map<(u32, Name), u32>,
    /// Known walks, by the number of the way.
    known: Vec<Known>,
    /// Counts removed names of directories and links, which invalidate known walks. Never zero.
    now: u32,
}

impl Clone for SimulatedTree {
    fn clone(&self) -> SimulatedTree {
        let SimulatedTree { nodes, names, known, now } = self;
        SimulatedTree { nodes: nodes.clone(), names: names.clone(), known: known.clone(), now: *now }
    }

    /// Reuses the allocated memory.
    fn clone_from(&mut self, other: &SimulatedTree) {
        self.nodes.clone_from(&other.nodes);
        self.names.clone_from(&other.names);
        self.known.clone_from(&other.known);
        self.now = other.now;
    }
}

impl SimulatedTree {
    pub(super) fn new(paths: &[Path]) -> SimulatedTree {
        let ways = paths.iter().map(|path| path.way as usize + 1).max().unwrap_or(0);
        let (root, names) = (SimulatedNode::new(SimulatedKind::Directory, 0), Map::default());
        SimulatedTree { nodes: vec![root], names, known: vec![Known::default(); ways], now: 1 }
    }

    pub(super) fn node(&self, id: u32) -> &SimulatedNode {
        &self.nodes[id as usize]
    }

    pub(super) fn node_mut(&mut self, id: u32) -> &mut SimulatedNode {
        &mut self.nodes[id as usize]
    }

    pub(super) fn add(&mut self, node: SimulatedNode) -> u32 {
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Gives a free name to a file. `length` is the length of the name in bytes.
    pub(super) fn enter(&mut self, (dir, name): (u32, Name), node: u32, length: usize) {
        self.names.insert((dir, name), node);
        self.node_mut(dir).list(name, length, 1);
        let node = self.node_mut(node);
        node.links += 1;
        if node.kind == SimulatedKind::Directory {
            node.parent = dir;
        }
    }

    /// Removes a name. The file stays for its open handles.
    pub(super) fn leave(&mut self, (dir, name): (u32, Name), length: usize) -> Option<u32> {
        let node = self.names.remove(&(dir, name))?;
        self.node_mut(dir).list(name, length, -1);
        self.node_mut(node).links -= 1;
        if matches!(self.node(node).kind, SimulatedKind::Directory | SimulatedKind::Link(_)) {
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

    /// Follows a path, and a link in its last part only if `follow` is set.
    pub(super) fn walk(
        &mut self,
        start: u32,
        path: &Path,
        follow: bool,
        paths: &[Path],
    ) -> Result<PathResult, Errno> {
        let from = if path.absolute { ROOT } else { start };
        let mut walk = Walk { at: from, links: 0 };
        if let Some((_, way)) = path.parts.split_last() {
            let known = self.known[path.way as usize];
            if known.since == self.now && known.from == from {
                walk = known.to;
            } else {
                self.go(&mut walk, way, paths)?;
                // A file here could be replaced by a directory without a removal that `now` counts.
                if self.node(walk.at).kind == SimulatedKind::Directory {
                    self.known[path.way as usize] = Known { since: self.now, from, to: walk };
                }
            }
        }
        let found = self.arrive(walk, &path.parts, follow || path.directory, paths)?;
        match found.node {
            Some(node) if path.directory && self.node(node).kind != SimulatedKind::Directory => {
                Err(libc::ENOTDIR)
            }
            _ => Ok(PathResult { directory: path.directory, ..found }),
        }
    }

    /// Follows all of these parts.
    fn go(&self, walk: &mut Walk, parts: &[PathPart], paths: &[Path]) -> Result<(), Errno> {
        for part in parts {
            let node = self.take(walk.at, *part)?.there()?;
            match self.node(node).kind {
                SimulatedKind::Link(target) => {
                    let target = self.enter_link(walk, target, paths)?;
                    self.go(walk, &target.parts, paths)?;
                }
                _ => walk.at = node,
            }
        }
        Ok(())
    }

    /// Resolves the last of these parts, from the directory of the others. Returns the name, and the file
    /// with that name.
    fn arrive(
        &self,
        mut walk: Walk,
        parts: &[PathPart],
        follow: bool,
        paths: &[Path],
    ) -> Result<PathResult, Errno> {
        let own = PathResult { at: None, node: Some(walk.at), directory: false };
        let Some(last) = parts.last() else { return Ok(own) };
        let found = self.take(walk.at, *last)?;
        match found.node.map(|node| self.node(node).kind) {
            Some(SimulatedKind::Link(target)) if follow => {
                let target = self.enter_link(&mut walk, target, paths)?;
                if let Some((_, way)) = target.parts.split_last() {
                    self.go(&mut walk, way, paths)?;
                }
                self.arrive(walk, &target.parts, follow, paths)
            }
            _ => Ok(found),
        }
    }

    /// Resolves one part from a directory.
    fn take(&self, at: u32, part: PathPart) -> Result<PathResult, Errno> {
        let node = self.node(at);
        let (at, node) = match part {
            _ if node.kind != SimulatedKind::Directory => return Err(libc::ENOTDIR),
            PathPart::Up => (None, Some(node.parent)),
            PathPart::Name(name) => (Some((at, name)), self.names.get(&(at, name)).copied()),
        };
        Ok(PathResult { at, node, directory: false })
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

impl SimulatedNode {
    pub(super) fn new(kind: SimulatedKind, identity: u64) -> SimulatedNode {
        let (size, links, parent, entries, listing, changed) = (0, 0, ROOT, 0, (0, 0), 0);
        let (content, attributes) = Default::default();
        SimulatedNode { kind, size, links, parent, entries, listing, content, changed, attributes, identity }
    }

    fn list(&mut self, name: Name, length: usize, by: i64) {
        // The size of an entry: inode, offset, length and type, then the name with its zero byte, rounded up
        // to eight bytes.
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
        let mut tree = SimulatedTree::new(&paths);
        let make = |tree: &mut SimulatedTree, dir, name, kind| {
            let node = tree.add(SimulatedNode::new(kind, 0));
            tree.enter((dir, name), node, 1);
            node
        };
        let both = |tree: &mut SimulatedTree| {
            [0, 1].map(|path| tree.walk(ROOT, &paths[path], true, &paths).map(|found| found.node))
        };
        let in_a = make(&mut tree, ROOT, a, SimulatedKind::Directory);
        let in_b = make(&mut tree, in_a, b, SimulatedKind::Directory);
        make(&mut tree, in_a, link, SimulatedKind::Link(Name(2)));
        make(&mut tree, in_b, c, SimulatedKind::File);
        assert_eq!(both(&mut tree), [Err(libc::ENOTDIR); 2]);
        tree.leave((in_b, c), 1);
        assert_eq!(both(&mut tree), [Err(libc::ENOENT); 2]);
        let in_c = make(&mut tree, in_b, c, SimulatedKind::Directory);
        assert_eq!(both(&mut tree), [Ok(None); 2]);
        let file = make(&mut tree, in_c, f, SimulatedKind::File);
        assert_eq!(both(&mut tree), [Ok(Some(file)); 2]);
        tree.leave((in_a, b), 1);
        tree.enter((ROOT, b), in_b, 1);
        assert_eq!(both(&mut tree), [Err(libc::ENOENT); 2]);
        tree.enter((in_a, b), in_b, 1);
        tree.leave((in_a, link), 1);
        make(&mut tree, in_a, link, SimulatedKind::Directory);
        assert_eq!(both(&mut tree), [Ok(Some(file)), Ok(None)]);
    }
}
