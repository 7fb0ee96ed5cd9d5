//! A simulated file system without bytes that executes a compiled trace's operations, by the kernel's rules.
//! The simulation shares no code with the compiler's model, so that it does not repeat a mistake of the
//! model. Rights, quotas and devices are not simulated.

use super::locks::SimulatedLocks;
use super::tree::{Errno, Path, PathResult, ROOT, SimulatedKind, SimulatedNode, SimulatedTree, cut_up};
use std::sync::Arc;
use trace_file::{
    ActionId, CompiledTrace, Device, Handle, InitialKind, LockKind, NO_HANDLE, Name, Op, Outcome, Place,
    RequestKind,
};

/// The result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Result {
    /// The returned value or error.
    pub(super) outcome: Outcome,
    /// A digest of the other visible effects: which file, whose bytes, which size and attributes, which
    /// names.
    pub(super) view: u64,
}

/// A returned value, and a digest of the other visible effects.
pub(super) type Done = std::result::Result<(i64, u64), Errno>;

/// The length of getdents' entries for `.` and `..`, in bytes.
const OWN_ENTRIES: u64 = 48;

/// The state of a run. Each run begins with a clone of the start.
#[derive(Debug, Clone)]
pub(super) struct Simulation {
    pub(super) tree: SimulatedTree,
    pub(super) handles: Vec<Option<Open>>,
    requests: Vec<bool>,
    locks: SimulatedLocks,
    pub(super) fixed: Arc<Fixed>,
}

/// Data that is the same in all runs.
#[derive(Debug)]
pub(super) struct Fixed {
    /// Every name, as a path.
    pub(super) paths: Vec<Path>,
    /// The length of every name, in bytes.
    pub(super) lengths: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    pub(super) node: u32,
    position: u64,
    flags: u32,
}

impl Open {
    fn reads(self) -> bool {
        self.flags & libc::O_ACCMODE as u32 != libc::O_WRONLY as u32
    }

    pub(super) fn writes(self) -> bool {
        self.flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
    }
}

pub(super) fn mix(digest: u64, part: u64) -> u64 {
    (digest.rotate_left(23) ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Simulation {
    /// The state before the first action.
    pub(super) fn new(compiled: &CompiledTrace) -> Simulation {
        let mut names = compiled.names.clone();
        let paths = cut_up(&compiled.names.all(), &mut names);
        let lengths = names.all().iter().map(|bytes| bytes.len()).collect();
        let mut simulation = Simulation {
            tree: SimulatedTree::new(&paths),
            handles: vec![None; compiled.about.handles as usize],
            requests: vec![false; compiled.about.requests as usize],
            locks: SimulatedLocks::default(),
            fixed: Arc::new(Fixed { paths, lengths }),
        };
        for (number, initial) in compiled.tree.iter().enumerate() {
            simulation.add_initial(initial.path, &initial.kind, number as u64 + 1, &initial.attributes);
        }
        for inherited in &compiled.inherited {
            let at = Place { dir: NO_HANDLE, path: inherited.path };
            let node = simulation.find(&at, true).and_then(PathResult::there);
            simulation.handles[inherited.handle as usize] =
                node.ok().map(|node| Open { node, position: 0, flags: libc::O_RDWR as u32 });
        }
        simulation
    }

    /// Reserves as much space as `other` has come to need, so that runs need not grow their maps bit by bit.
    pub(super) fn make_space(&mut self, other: &Simulation) {
        self.tree.names.reserve(other.tree.names.capacity().saturating_sub(self.tree.names.len()));
    }

    /// Resets the state to `start`, and reuses the allocated memory.
    pub(super) fn begin_again(&mut self, start: &Simulation) {
        self.tree.clone_from(&start.tree);
        self.handles.clone_from(&start.handles);
        self.requests.clone_from(&start.requests);
        self.locks.clone_from(&start.locks);
    }

    fn add_initial(&mut self, path: Name, kind: &InitialKind, identity: u64, attributes: &[(Name, u32)]) {
        let Ok(found) = self.find(&Place { dir: NO_HANDLE, path }, false) else { return };
        let (Some(at), None) = (found.at, found.node) else { return };
        let node = match kind {
            InitialKind::HardLink(first) => {
                let first = self.find(&Place { dir: NO_HANDLE, path: *first }, false);
                first.ok().and_then(|first| first.node)
            }
            InitialKind::Directory => {
                Some(self.tree.add(SimulatedNode::new(SimulatedKind::Directory, identity)))
            }
            InitialKind::Link(to) => {
                Some(self.tree.add(SimulatedNode::new(SimulatedKind::Link(*to), identity)))
            }
            InitialKind::Special(device) => {
                Some(self.tree.add(SimulatedNode::new(SimulatedKind::Special(*device), identity)))
            }
            InitialKind::File(size) => Some(
                self.tree
                    .add(SimulatedNode { size: *size, ..SimulatedNode::new(SimulatedKind::File, identity) }),
            ),
        };
        if let Some(node) = node {
            let pairs = attributes.iter().map(|(name, bytes)| (*name, u64::from(*bytes), 0));
            self.tree.node_mut(node).attributes.extend(pairs);
            self.enter(at, node);
        }
    }

    pub(super) fn enter(&mut self, at: (u32, Name), node: u32) {
        let length = self.fixed.lengths[at.1.0 as usize];
        self.tree.enter(at, node, length);
    }

    pub(super) fn leave(&mut self, at: (u32, Name)) -> Option<u32> {
        let length = self.fixed.lengths[at.1.0 as usize];
        self.tree.leave(at, length)
    }

    /// Executes one operation.
    pub(super) fn execute(&mut self, id: ActionId, op: &Op<Handle>) -> Result {
        match self.run(id, op) {
            Ok((value, view)) => Result { outcome: Outcome::Value(value), view },
            Err(errno) => Result { outcome: Outcome::Error(errno), view: 0 },
        }
    }

    fn run(&mut self, id: ActionId, op: &Op<Handle>) -> Done {
        match op {
            Op::Read { on, bytes, at } | Op::ReadWith { on, bytes, at, .. } => self.read(*on, *bytes, *at),
            Op::Write { on, bytes, at } => self.write(id, (*on, false), *bytes, *at),
            Op::WriteWith { on, bytes, at, flags } => {
                self.write(id, (*on, flags & libc::RWF_APPEND as u32 != 0), *bytes, *at)
            }
            Op::SetFlags { on, flags } => {
                let append = libc::O_APPEND as u32;
                let open = self.handles.get_mut(*on as usize).and_then(Option::as_mut).ok_or(libc::EBADF)?;
                open.flags = open.flags & !append | flags & append;
                Ok((0, 0))
            }
            Op::Seek { on, offset, whence } => self.seek(*on, *offset, *whence),
            Op::Close { all, unlocked } => {
                for handle in unlocked {
                    let open = self.open(*handle)?;
                    self.locks.give_back(open.node, *handle);
                }
                for handle in all {
                    let open = self.handles.get_mut(*handle as usize).and_then(Option::take);
                    let open = open.ok_or(libc::EBADF)?;
                    self.locks.closed(open.node, *handle);
                }
                Ok((0, 0))
            }
            Op::List { on, bytes } => self.list(*on, *bytes),
            Op::Allocate { on, mode, start, bytes } => self.allocate(id, *on, *mode, *start, *bytes),
            Op::Advise { on, .. } | Op::Sync { on, .. } => self.open(*on).map(|_| (0, 0)),
            Op::Flock { on, kind } => {
                let node = self.open(*on)?.node;
                self.locks.flock(node, *on, *kind).map(|()| (0, 0))
            }
            Op::Lock { on, kind, start, bytes, .. } => self.lock(*on, *kind, (*start, *bytes)),
            Op::Copy { from, from_at, to, to_at, bytes } => {
                let (moved, view) = self.read(*from, *bytes, *from_at)?;
                let (moved, _) = self.write(id, (*to, false), moved as u64, *to_at)?;
                Ok((moved, view))
            }
            Op::Submit { first, requests, .. } => {
                for (number, request) in (*first as usize..).zip(requests) {
                    match request.kind {
                        RequestKind::Write => {
                            self.write(id, (request.on, false), request.bytes, Some(request.start))?;
                        }
                        _ => {
                            self.open(request.on)?;
                        }
                    }
                    self.requests[number] = true;
                }
                Ok((requests.len() as i64, 0))
            }
            Op::Collect { requests, .. } => {
                for request in requests {
                    if !std::mem::take(&mut self.requests[*request as usize]) {
                        return Err(libc::EINVAL);
                    }
                }
                Ok((requests.len() as i64, 0))
            }
            Op::Nothing | Op::SyncAll => Ok((0, 0)),
            _ => self.run_on_name(id, op),
        }
    }

    fn lock(&mut self, on: Handle, kind: LockKind, range: (u64, u64)) -> Done {
        let open = self.open(on)?;
        match kind {
            LockKind::Shared if !open.reads() => Err(libc::EBADF),
            LockKind::Exclusive if !open.writes() => Err(libc::EBADF),
            _ => self.locks.range(open.node, on, kind, range).map(|()| (0, 0)),
        }
    }

    pub(super) fn open(&self, handle: Handle) -> std::result::Result<Open, Errno> {
        self.handles.get(handle as usize).copied().flatten().ok_or(libc::EBADF)
    }

    pub(super) fn describe(&mut self, handle: Handle, node: u32, flags: u32) {
        if handle != NO_HANDLE {
            self.handles[handle as usize] = Some(Open { node, position: 0, flags });
        }
    }

    /// Finds the end of a path.
    pub(super) fn find(
        &mut self,
        at: &Place<Handle>,
        follow: bool,
    ) -> std::result::Result<PathResult, Errno> {
        let path = &self.fixed.paths[at.path.0 as usize];
        let start = match (path.absolute, at.dir) {
            (true, _) | (_, NO_HANDLE) => ROOT,
            (_, dir) => self.open(dir)?.node,
        };
        if path.empty && at.dir == NO_HANDLE {
            return Err(libc::ENOENT);
        }
        if path.empty {
            return Ok(PathResult { at: None, node: Some(start), directory: false });
        }
        self.tree.walk(start, path, follow, &self.fixed.paths)
    }

    fn read(&mut self, on: Handle, bytes: u64, at: Option<u64>) -> Done {
        let open = self.open(on)?;
        if !open.reads() {
            return Err(libc::EBADF);
        }
        let start = at.unwrap_or(open.position);
        let node = self.tree.node(open.node);
        let moved = match node.kind {
            SimulatedKind::File => bytes.min(node.size.saturating_sub(start)),
            SimulatedKind::Directory => return Err(libc::EISDIR),
            SimulatedKind::Special(Device::Null) => 0,
            SimulatedKind::Special(_) => bytes,
            SimulatedKind::Link(_) => return Err(libc::EINVAL),
        };
        let end = start.saturating_add(moved);
        let view = if moved == 0 { 0 } else { mix(node.content.digest(start, end), node.identity) };
        self.advance(on, at, end);
        Ok((moved as i64, view))
    }

    fn advance(&mut self, on: Handle, at: Option<u64>, end: u64) {
        if let (None, Some(Some(open))) = (at, self.handles.get_mut(on as usize)) {
            open.position = end;
        }
    }

    fn write(&mut self, id: ActionId, (on, append): (Handle, bool), bytes: u64, at: Option<u64>) -> Done {
        let open = self.open(on)?;
        if !open.writes() {
            return Err(libc::EBADF);
        }
        let node = self.tree.node_mut(open.node);
        if node.kind != SimulatedKind::File {
            return Ok((bytes as i64, 0));
        }
        let appends = append || open.flags & libc::O_APPEND as u32 != 0;
        let start = if appends { node.size } else { at.unwrap_or(open.position) };
        let end = start.saturating_add(bytes);
        if bytes > 0 {
            node.content.write(start, end, id + 1);
            node.size = node.size.max(end);
        }
        let view = if appends { mix(start, node.identity) } else { node.identity };
        self.advance(on, at, end);
        Ok((bytes as i64, view))
    }

    fn seek(&mut self, on: Handle, offset: i64, whence: u32) -> Done {
        let open = self.open(on)?;
        let node = self.tree.node(open.node);
        let size = node.size as i64;
        let to = match whence as i32 {
            libc::SEEK_SET => offset,
            libc::SEEK_CUR => (open.position as i64).saturating_add(offset),
            libc::SEEK_END => size.saturating_add(offset),
            libc::SEEK_DATA | libc::SEEK_HOLE if !(0..size).contains(&offset) => return Err(libc::ENXIO),
            libc::SEEK_DATA => offset,
            libc::SEEK_HOLE => size,
            _ => return Err(libc::EINVAL),
        };
        let to = u64::try_from(to).map_err(|_| libc::EINVAL)?;
        self.advance(on, None, to);
        Ok((to as i64, 0))
    }

    fn list(&mut self, on: Handle, bytes: u64) -> Done {
        let open = self.open(on)?;
        let node = self.tree.node(open.node);
        if node.kind != SimulatedKind::Directory {
            return Err(libc::ENOTDIR);
        }
        let (all, digest) = node.listing;
        let moved = (all + OWN_ENTRIES).saturating_sub(open.position).min(bytes);
        let view = mix(digest, node.identity);
        self.advance(on, None, open.position + moved);
        Ok((moved as i64, view))
    }

    fn allocate(&mut self, id: ActionId, on: Handle, mode: u32, start: u64, bytes: u64) -> Done {
        let open = self.open(on)?;
        if !open.writes() {
            return Err(libc::EBADF);
        }
        let has = |flag: i32| mode & flag as u32 != 0;
        let end = start.saturating_add(bytes);
        let node = self.tree.node_mut(open.node);
        let old = node.size;
        if has(libc::FALLOC_FL_COLLAPSE_RANGE) {
            node.size = old.saturating_sub(bytes);
            node.content.write(start, old, id + 1);
        } else if has(libc::FALLOC_FL_INSERT_RANGE) {
            node.size = old.saturating_add(bytes);
            node.content.write(start, node.size, id + 1);
        } else {
            if has(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) {
                node.content.write(start, end, id + 1);
            }
            if !has(libc::FALLOC_FL_KEEP_SIZE) {
                node.size = old.max(end);
            }
        }
        Ok((0, 0))
    }
}
