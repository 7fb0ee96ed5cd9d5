//! Files, directories and links by identity, and the walk along a path.

use super::chunks::Chunks;
use std::collections::HashMap;
use std::sync::Arc;
use trace_file::{Name, Names};

/// The number of a file, directory or link. Names point to nodes; a node has no name itself.
pub(super) type ModelNodeId = u32;
/// The root directory.
pub(crate) const ROOT: ModelNodeId = 0;
/// The kernel's limit on links in one walk.
const LINKS_MAX: u32 = 40;

/// The kind of a node.
#[derive(Debug, Clone)]
pub(crate) enum NodeKind {
    /// The node exists, and its kind is unknown.
    Undecided,
    /// A regular file.
    File,
    /// A directory.
    Directory {
        /// The known names in the directory: a node, or `None` for an absent name.
        entries: HashMap<Name, Option<ModelNodeId>>,
        /// Whether names that `entries` lacks are known to be absent.
        whole: bool,
        /// The directory above this one.
        parent: ModelNodeId,
    },
    /// A symbolic link, and its target if known.
    Link(Option<Name>),
    /// A socket or another file that cannot be opened.
    Socket,
    /// A named pipe.
    Fifo,
    /// A device.
    Special,
}

/// One node.
#[derive(Debug, Clone)]
pub(crate) struct ModelNode {
    /// Its kind.
    pub kind: NodeKind,
    /// Its path before the trace began; `None` if the trace made it.
    pub initial: Option<Name>,
    /// Current size in bytes.
    pub size: u64,
    /// Size in bytes before the trace began, as far as the trace shows.
    pub initial_size: u64,
    /// Whether the trace changed its size.
    pub resized: bool,
    /// Whether this directory has lost its name. Nothing can be created in it then.
    pub removed: bool,
    /// Permission bits.
    pub mode: u32,
    /// Its number in the traced file system; 0 if no call has shown it.
    pub inode: u64,
    /// Extended attributes that exist now or existed before the trace began, as far as the trace shows.
    pub attributes: Vec<Attribute>,
    /// Holes before the trace began: starts and lengths in bytes.
    pub holes: Vec<(u64, u64)>,
    /// Number of names.
    pub names: u32,
    /// Number of open descriptions.
    pub opened: u32,
}

/// An extended attribute of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attribute {
    /// Its name.
    pub name: Name,
    /// Size before the trace began; `None` if the attribute did not exist.
    pub initial: Option<u32>,
    /// Current size, if known; the outer `None` if the attribute does not exist.
    pub now: Option<Option<u64>>,
}

/// All nodes.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    /// Nodes by number. Numbers are not reused; a forgotten node leaves `None`.
    nodes: Chunks<Option<Arc<ModelNode>>>,
    /// Nodes that lost a name or a description in the current action.
    doubtful: Vec<ModelNodeId>,
    /// The stand-in for forgotten nodes.
    forgotten: Box<ModelNode>,
}

/// Where a walk ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The file exists.
    Found(ModelNodeId),
    /// The last component does not exist.
    Absent,
    /// A directory on the way does not exist.
    NoParent,
    /// The model does not know. The components are those from the first unknown one on.
    Unknown(Vec<Name>),
    /// A component before the last is not a directory.
    NotDirectory,
    /// Too many links.
    Loop,
}

/// A walk along a path.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    /// The directory in which the walk ended, and the last name looked up there. `name` is `None` if the path
    /// leads to a directory itself.
    pub(crate) parent: ModelNodeId,
    pub(crate) name: Option<Name>,
    pub(crate) end: End,
    /// Every name that was looked up.
    pub(crate) looked: Vec<(ModelNodeId, Name)>,
}

impl Tree {
    /// A tree with only a root directory, whose contents are unknown.
    pub(crate) fn new(names: &mut Names) -> Tree {
        let kind = NodeKind::Directory { entries: HashMap::new(), whole: false, parent: ROOT };
        let root = ModelNode::new(kind, Some(names.intern(b"/")));
        let forgotten = Box::new(ModelNode::new(NodeKind::Undecided, None));
        let mut nodes = Chunks::default();
        nodes.push(Some(Arc::new(root)));
        Tree { nodes, doubtful: Vec::new(), forgotten }
    }

    /// A node.
    pub(crate) fn node(&self, id: ModelNodeId) -> &ModelNode {
        self.nodes[id as usize].as_deref().unwrap_or(&self.forgotten)
    }

    pub(crate) fn node_mut(&mut self, id: ModelNodeId) -> &mut ModelNode {
        match &mut self.nodes[id as usize] {
            Some(node) => Arc::make_mut(node),
            None => &mut self.forgotten,
        }
    }

    /// All nodes that exist or existed before the trace began, by number.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &ModelNode> {
        self.nodes.iter().flatten().map(|node| &**node)
    }

    /// Checks a node again after the current action.
    pub(super) fn doubt(&mut self, node: ModelNodeId) {
        self.doubtful.push(node);
    }

    /// Forgets nodes that have no name, are not open, and did not exist before the trace began. Returns these
    /// nodes.
    pub(super) fn forget(&mut self) -> Vec<ModelNodeId> {
        let mut doubtful = std::mem::take(&mut self.doubtful);
        doubtful.retain(|id| {
            let place = &mut self.nodes[*id as usize];
            let over = |node: &ModelNode| node.names == 0 && node.opened == 0 && node.initial.is_none();
            place.take_if(|node| over(node)).is_some()
        });
        doubtful
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn is_file(&self, id: ModelNodeId) -> bool {
        matches!(self.node(id).kind, NodeKind::File | NodeKind::Undecided)
    }

    pub(crate) fn add(&mut self, node: ModelNode) -> ModelNodeId {
        self.nodes.push(Some(Arc::new(node)));
        ModelNodeId::try_from(self.nodes.len() - 1).expect("fewer than 2^32 files")
    }

    pub(crate) fn entry(&self, dir: ModelNodeId, name: Name) -> Option<ModelNodeId> {
        match &self.node(dir).kind {
            NodeKind::Directory { entries, .. } => entries.get(&name).copied().flatten(),
            _ => None,
        }
    }

    /// Names `node` in `dir`, or notes with `None` that the name is absent.
    pub(crate) fn set_entry(&mut self, dir: ModelNodeId, name: Name, node: Option<ModelNodeId>) {
        self.become_directory(dir);
        let NodeKind::Directory { entries, .. } = &mut self.node_mut(dir).kind else { return };
        if let Some(old) = entries.insert(name, node).flatten() {
            let state = self.node_mut(old);
            state.names = state.names.saturating_sub(1);
            self.doubt(old);
        }
        let Some(node) = node else { return };
        let state = self.node_mut(node);
        state.names += 1;
        if let NodeKind::Directory { parent, .. } = &mut state.kind {
            *parent = dir;
        }
    }

    /// Marks a directory as removed, after the loss of its only name.
    pub(crate) fn remove(&mut self, node: ModelNodeId) {
        let node = self.node_mut(node);
        node.removed = matches!(node.kind, NodeKind::Directory { .. });
    }

    /// Whether `inner` is `outer` or lies below it.
    pub(crate) fn is_below(&self, mut inner: ModelNodeId, outer: ModelNodeId) -> bool {
        // Directories whose parents are unknown count as children of the root. No chain is longer than the
        // number of nodes.
        for _ in 0..self.nodes.len() {
            match &self.node(inner).kind {
                _ if inner == outer => return true,
                NodeKind::Directory { parent, .. } if inner != ROOT => inner = *parent,
                _ => return false,
            }
        }
        false
    }

    /// Makes a node a directory, because names below it were seen.
    pub(crate) fn become_directory(&mut self, id: ModelNodeId) {
        let node = self.node_mut(id);
        if matches!(node.kind, NodeKind::Undecided) {
            node.kind = NodeKind::Directory { entries: HashMap::new(), whole: false, parent: ROOT };
            node.mode = 0o755;
        }
    }

    pub(crate) fn is_empty(&self, dir: ModelNodeId) -> Option<bool> {
        match &self.node(dir).kind {
            NodeKind::Directory { entries, whole, .. } => {
                if entries.values().any(Option::is_some) {
                    Some(false)
                } else {
                    whole.then_some(true)
                }
            }
            _ => None,
        }
    }

    /// Walks along `path` from `start`. If `follow`, a link at the end is followed, too.
    pub(crate) fn walk(&self, start: ModelNodeId, path: &[u8], follow: bool, names: &mut Names) -> Walk {
        let start = if path.starts_with(b"/") { ROOT } else { start };
        let mut walk = Walk { parent: start, name: None, end: End::Found(start), looked: Vec::new() };
        let mut left: Vec<Name> = components(path, names).into_iter().rev().collect();
        let directory = path.ends_with(b"/");
        let mut at = start;
        let mut links = 0;
        while let Some(component) = left.pop() {
            let NodeKind::Directory { entries, whole, parent } = &self.node(at).kind else {
                walk.end = match self.node(at).kind {
                    NodeKind::Undecided => unknown(at, component, &left, &mut walk),
                    _ => End::NotDirectory,
                };
                return walk;
            };
            if names.bytes(component) == b".." {
                at = *parent;
                (walk.parent, walk.name, walk.end) = (at, None, End::Found(at));
                continue;
            }
            (walk.parent, walk.name) = (at, Some(component));
            walk.looked.push((at, component));
            let found = match (entries.get(&component), whole) {
                (Some(Some(node)), _) => *node,
                (Some(None), _) | (None, true) => {
                    walk.end = if left.is_empty() { End::Absent } else { End::NoParent };
                    return walk;
                }
                (None, false) => {
                    walk.end = unknown(at, component, &left, &mut walk);
                    return walk;
                }
            };
            match self.node(found).kind {
                NodeKind::Link(Some(target)) if follow || directory || !left.is_empty() => {
                    links += 1;
                    if links > LINKS_MAX {
                        walk.end = End::Loop;
                        return walk;
                    }
                    let target = names.bytes(target).to_vec();
                    if target.starts_with(b"/") {
                        at = ROOT;
                    }
                    left.extend(components(&target, names).into_iter().rev());
                    (walk.parent, walk.name, walk.end) = (at, None, End::Found(at));
                }
                _ => {
                    at = found;
                    walk.end = End::Found(found);
                }
            }
        }
        walk
    }
}

fn unknown(at: ModelNodeId, component: Name, left: &[Name], walk: &mut Walk) -> End {
    (walk.parent, walk.name) = (at, Some(component));
    End::Unknown(std::iter::once(component).chain(left.iter().rev().copied()).collect())
}

/// A path's components without `.` and empty ones.
pub(crate) fn components(path: &[u8], names: &mut Names) -> Vec<Name> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.map(|part| names.intern(part)).collect()
}

impl ModelNode {
    pub(crate) fn new(kind: NodeKind, initial: Option<Name>) -> ModelNode {
        let mode = if matches!(kind, NodeKind::Directory { .. }) { 0o755 } else { 0o644 };
        let (size, initial_size, resized, inode, names, opened) = Default::default();
        let (attributes, holes, removed) = Default::default();
        ModelNode {
            kind,
            initial,
            size,
            initial_size,
            resized,
            removed,
            mode,
            inode,
            attributes,
            holes,
            names,
            opened,
        }
    }
}
