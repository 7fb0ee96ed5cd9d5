//! Learns the initial tree from the results of calls.

use super::expected_file::ExpectedFile;
use super::linearise::places;
use super::open_descriptions::DescriptionTarget;
use super::tree::{End, ModelNode, ModelNodeId, NodeKind, ROOT, Walk, components};
use super::world::World;
use crate::call::{Ask, Call, Fd};
use std::collections::BTreeSet;
use trace_file::{Handle, InheritedHandle, Name, Names, Op, Outcome, Place, Seen};

/// The stand-in for a working directory that the trace does not show.
const WORKING_DIRECTORY: &[u8] = b"/working-directory";

impl World {
    /// Adds a file of the initial tree at `path`, as a snapshot or another source lists the file, and all
    /// directories on the way.
    pub(crate) fn add_initial(&mut self, path: &[u8], kind: NodeKind, mode: u32, size: u64) -> ModelNodeId {
        let parts = components(path, &mut self.names);
        let mut at = ROOT;
        for (index, part) in parts.iter().enumerate() {
            let last = index + 1 == parts.len();
            at = match self.tree.entry(at, *part) {
                Some(node) => node,
                None => self.add_child(at, *part, if last { kind.clone() } else { NodeKind::Undecided }),
            };
        }
        let node = self.tree.node_mut(at);
        if matches!(node.kind, NodeKind::Undecided) {
            node.kind = kind;
        } else if let (NodeKind::Directory { whole, .. }, NodeKind::Directory { whole: known, .. }) =
            (&mut node.kind, &kind)
        {
            *whole |= known;
        }
        (node.mode, node.size, node.initial_size) = (mode & 0o7777, size, size);
        at
    }

    /// Adds an initial symbolic link, unless the model knows better about that path.
    pub(crate) fn add_link(&mut self, path: &[u8], target: Name) {
        let walk = self.tree.walk(ROOT, path, false, &mut self.names);
        if matches!(walk.end, End::Unknown(_)) {
            self.believe(&walk, Outcome::Value(0), ExpectedFile::Link(Some(target)));
        }
    }

    /// Adds another name of an initial file.
    pub(crate) fn add_hard_link(&mut self, path: &[u8], node: ModelNodeId) {
        let (dir, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], path),
        };
        let dir = self.add_initial_directory(dir);
        let (name, path) = (self.names.intern(name), self.names.intern(path));
        self.tree.set_entry(dir, name, Some(node));
        self.hard_links.push((path, node));
    }

    fn add_initial_directory(&mut self, path: &[u8]) -> ModelNodeId {
        let walk = self.tree.walk(ROOT, path, false, &mut self.names);
        self.believe(&walk, Outcome::Value(0), ExpectedFile::Directory).unwrap_or(ROOT)
    }

    /// Further names of files in the initial tree.
    pub(crate) fn take_hard_links(&mut self) -> Vec<(Name, ModelNodeId)> {
        std::mem::take(&mut self.hard_links)
    }

    /// Adds a file under a name in `dir`. If `dir` is in the initial tree, the file is, too.
    pub(super) fn add_child(&mut self, dir: ModelNodeId, name: Name, kind: NodeKind) -> ModelNodeId {
        self.tree.become_directory(dir);
        let initial = self.tree.node(dir).initial.map(|dir| join(&mut self.names, dir, name));
        let node = self.tree.add(ModelNode::new(kind, initial));
        self.tree.set_entry(dir, name, Some(node));
        node
    }

    /// Believes the call's result after a walk that met an unknown name. Returns the file that the call must
    /// have found.
    pub(super) fn believe(
        &mut self,
        walk: &Walk,
        outcome: Outcome,
        want: ExpectedFile,
    ) -> Option<ModelNodeId> {
        match (&walk.end, outcome) {
            (End::Found(node), _) => Some(*node),
            // ENXIO: a socket without a listener, or a missing terminal.
            (End::Unknown(rest), Outcome::Error(libc::ENXIO)) => {
                let node = self.add_rest(walk.parent, rest, ExpectedFile::Anything);
                self.tree.node_mut(node).kind = NodeKind::Socket;
                Some(node)
            }
            (End::Unknown(rest), outcome) if exists(outcome) => Some(self.add_rest(walk.parent, rest, want)),
            (End::Unknown(rest), Outcome::Error(libc::ENOENT)) => {
                if let ([name], NodeKind::Directory { .. }) = (&rest[..], &self.tree.node(walk.parent).kind) {
                    self.tree.set_entry(walk.parent, *name, None);
                }
                None
            }
            (End::Absent, outcome) if exists(outcome) && self.only_listed_absent(walk) => {
                // The snapshot lacks the file, and nothing in the trace made it. The trace is right: the file
                // existed.
                self.repairs.outside += 1;
                Some(self.add_child(walk.parent, walk.name?, want.kind()))
            }
            (End::Absent, outcome) if exists(outcome) => {
                // A process outside of the trace made the file.
                self.repairs.outside += 1;
                let node = self.tree.add(ModelNode::new(want.kind(), None));
                self.tree.set_entry(walk.parent, walk.name?, Some(node));
                Some(node)
            }
            _ => None,
        }
    }

    /// Whether only the snapshot says that a name is absent.
    pub(super) fn only_listed_absent(&self, walk: &Walk) -> bool {
        let dir = self.tree.node(walk.parent);
        match (&dir.kind, walk.name) {
            (NodeKind::Directory { entries, .. }, Some(name)) => {
                dir.initial.is_some() && !entries.contains_key(&name)
            }
            _ => false,
        }
    }

    fn add_rest(&mut self, parent: ModelNodeId, rest: &[Name], want: ExpectedFile) -> ModelNodeId {
        let mut at = parent;
        if self.tree.node(parent).initial.is_none() {
            self.repairs.outside += 1;
        }
        for (index, name) in rest.iter().enumerate() {
            let last = index + 1 == rest.len();
            let parent = match &self.tree.node(at).kind {
                NodeKind::Directory { parent, .. } if self.names.bytes(*name) == b".." => Some(*parent),
                _ => None,
            };
            at = match parent {
                Some(parent) => {
                    // `..` leads back to a directory that may be known, so the remainder is another walk.
                    let left: Vec<&[u8]> =
                        rest[index + 1..].iter().map(|name| self.names.bytes(*name)).collect();
                    let left = left.join(&b'/');
                    let walk = self.tree.walk(parent, &left, true, &mut self.names);
                    return self.believe(&walk, Outcome::Value(0), want).unwrap_or(parent);
                }
                None => {
                    self.add_child(at, *name, if last { want.kind() } else { ExpectedFile::Directory.kind() })
                }
            };
        }
        at
    }

    /// Learns a file's kind from a successful call.
    pub(super) fn decide(&mut self, node: ModelNodeId, want: ExpectedFile) {
        if want == ExpectedFile::Directory {
            self.tree.become_directory(node);
        } else if matches!(self.tree.node(node).kind, NodeKind::Undecided) {
            self.tree.node_mut(node).kind = want.kind();
        }
    }

    /// Learns from attributes that a program saw. The last size seen before the trace changes the size is the
    /// initial one.
    pub(super) fn see(&mut self, node: ModelNodeId, seen: Seen) {
        let made_up = self.is_made_up(node);
        let kind = match seen.mode & libc::S_IFMT {
            libc::S_IFDIR => ExpectedFile::Directory.kind(),
            libc::S_IFREG => NodeKind::File,
            libc::S_IFLNK => NodeKind::Link(None),
            libc::S_IFSOCK => NodeKind::Socket,
            libc::S_IFIFO => NodeKind::Fifo,
            _ => NodeKind::Special,
        };
        let state = self.tree.node_mut(node);
        state.inode = if seen.inode == 0 { state.inode } else { seen.inode };
        if matches!(state.kind, NodeKind::Undecided) {
            state.kind = kind;
        }
        let sized = matches!(state.kind, NodeKind::File | NodeKind::Link(_));
        if !made_up && state.initial.is_some() && !state.resized && sized {
            (state.size, state.initial_size) = (seen.size, seen.size);
            state.mode = seen.mode & 0o7777;
        }
    }

    /// Whether a file is in /proc or /sys, where sizes do not match the bytes that reads return.
    pub(super) fn is_made_up(&self, node: ModelNodeId) -> bool {
        self.tree.node(node).initial.is_some_and(|path| {
            let path = self.names.bytes(path);
            path.starts_with(b"/proc/") || path.starts_with(b"/sys/")
        })
    }

    /// Learns a minimum size: a read got bytes up to `end`.
    pub(super) fn at_least(&mut self, node: ModelNodeId, end: u64) {
        let state = self.tree.node_mut(node);
        if state.initial.is_some() && !state.resized && state.size < end {
            (state.size, state.initial_size) = (end, end);
        }
    }

    /// Learns the descriptors that the trace notes and that the model lacks or knows differently. Descriptors
    /// that the call itself makes are left out.
    pub(super) fn learn(&mut self, call: &Call) {
        let made = match &call.ask {
            Ask::Receive { made } | Ask::Opaque { made, .. } => &made[..],
            _ => &[],
        };
        for (fd, _) in call.notes.iter().filter(|(fd, _)| !made.contains(fd)) {
            self.learn_one(call, *fd);
        }
        self.assume_directory(call);
    }

    /// Gives a task a made-up working directory if the trace never shows the real one. The real one matters
    /// only if an absolute name leads there, too.
    fn assume_directory(&mut self, call: &Call) {
        let directory = self.task(call).directory;
        if self.directories[directory].at.is_some() || call.outcome == Outcome::Unknown {
            return;
        }
        let is_relative =
            |at: &Place<Fd>| at.dir == libc::AT_FDCWD && !self.names.bytes(at.path).starts_with(b"/");
        if places(call).iter().any(is_relative) {
            self.repairs.descriptors += 1;
            let name = self.names.intern(WORKING_DIRECTORY);
            self.enter_inherited(directory, name);
        }
    }

    fn enter_inherited(&mut self, directory: usize, path: Name) {
        let handle = self.inherit(path, ExpectedFile::Directory);
        self.descriptions[handle as usize].references += 1;
        self.directories[directory].at = Some(handle);
    }

    /// Learns one descriptor.
    pub(super) fn learn_one(&mut self, call: &Call, fd: Fd) {
        let Some((_, note)) = call.notes.iter().find(|(noted, _)| *noted == fd) else { return };
        let text = self.names.bytes(*note).to_vec();
        let task = self.task(call).clone();
        if fd == libc::AT_FDCWD {
            if self.directories[task.directory].at.is_none() {
                self.enter_inherited(task.directory, *note);
            }
            return;
        }
        let slot = self.tables[task.table].slots.get(&fd);
        let known = slot.map(|slot| self.descriptions[slot.description as usize].on);
        let shown = match text.first() {
            Some(b'/') => None,
            _ if text.starts_with(b"pipe:[") => Some(DescriptionTarget::Pipe(*note)),
            _ => Some(DescriptionTarget::Other),
        };
        let agrees = match (known, shown) {
            (None, _) => false,
            (Some(DescriptionTarget::File(_)), None) => true,
            // The note of a named pipe is its name.
            (Some(DescriptionTarget::Pipe(name)), None) => name == *note,
            (Some(known), Some(shown)) => known == shown,
            (Some(_), None) => false,
        };
        if agrees {
            return;
        }
        // The trace lacks nothing if the call makes a pipe, or for the three standard descriptors.
        let missing = fd > 2 && !matches!(call.ask, Ask::Pipe { .. });
        self.repairs.descriptors += u64::from(missing);
        let handle = match shown {
            Some(target) => self.describe(target, false),
            None => self.inherit(*note, ExpectedFile::Anything),
        };
        self.install(task.table, fd, handle, false);
    }

    /// Adds a description that was open when the trace began.
    fn inherit(&mut self, path: Name, want: ExpectedFile) -> Handle {
        let bytes = self.names.bytes(path).to_vec();
        let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(&bytes);
        let walk = self.tree.walk(ROOT, bytes, true, &mut self.names);
        match self.believe(&walk, Outcome::Value(0), want) {
            Some(node) => {
                self.decide(node, want);
                let handle = self.describe(DescriptionTarget::File(node), false);
                let path = self.tree.node(node).initial.unwrap_or(path);
                self.inherited.push(InheritedHandle { handle, path });
                handle
            }
            None => self.describe(DescriptionTarget::Other, false),
        }
    }
}

/// Whether a result proves that the file exists.
fn exists(outcome: Outcome) -> bool {
    use libc::{EEXIST, EINVAL, EISDIR, ENOTEMPTY};
    matches!(outcome, Outcome::Value(_) | Outcome::Error(EEXIST | EINVAL | EISDIR | ENOTEMPTY))
}

fn join(names: &mut Names, dir: Name, name: Name) -> Name {
    let dir = names.bytes(dir);
    let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
    let path = [dir, slash, names.bytes(name)].concat();
    names.intern(&path)
}

/// Finds initial symbolic links from opens whose file has another name than the program asked for.
#[derive(Debug, Default)]
pub(crate) struct InitialLinks {
    /// Length of the requested path, the requested path, and the found path; shortest first.
    pairs: BTreeSet<(usize, Vec<u8>, Vec<u8>)>,
}

impl InitialLinks {
    /// Takes the pair of paths from one call.
    pub(crate) fn add(&mut self, call: &Call, names: &Names) {
        let (Ask::File(Op::Open { at, .. }), Some(note)) = (&call.ask, call.made_note) else { return };
        let (path, found) = (names.bytes(at.path), names.bytes(note));
        let base = match call.notes.iter().find(|(fd, _)| *fd == at.dir) {
            Some((_, note)) => names.bytes(*note),
            None if path.starts_with(b"/") => b"/",
            // The base directory is unknown.
            None => return,
        };
        let asked = lexical(base, path);
        let process = [&b"/proc"[..], b"/sys", b"/dev"].iter().any(|dir| asked.starts_with(dir));
        if found.starts_with(b"/") && !found.ends_with(b" (deleted)") && asked != found && !process {
            self.pairs.insert((asked.len(), asked, found.to_vec()));
        }
    }

    /// Pairs of link and target, shortest first. Longer paths are resolved through shorter ones.
    pub(crate) fn finish(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut links: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        // Directories first: differences that remain afterwards are links to files.
        for whole in [false, true] {
            for (_, asked, found) in &self.pairs {
                let seen = through(asked, &links);
                let shared = shared_tail(&seen, found);
                if seen != *found && (whole || shared > 0) {
                    links
                        .push((seen[..seen.len() - shared].to_vec(), found[..found.len() - shared].to_vec()));
                }
            }
        }
        links.retain(|(link, target)| !link.is_empty() && !target.is_empty());
        links
    }
}

/// Bytes of the trailing components that both paths share.
fn shared_tail(a: &[u8], b: &[u8]) -> usize {
    let mut shared = 0;
    for (length, (x, y)) in a.iter().rev().zip(b.iter().rev()).enumerate() {
        if x != y {
            break;
        }
        if *x == b'/' {
            shared = length + 1;
        }
    }
    shared
}

fn through(path: &[u8], links: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut path = path.to_vec();
    for (link, target) in links {
        if path.starts_with(link) && (path.len() == link.len() || path[link.len()] == b'/') {
            path = [target, &path[link.len()..]].concat();
        }
    }
    path
}

/// An absolute path without `.` and `..`, as written.
fn lexical(base: &[u8], path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let base = if path.starts_with(b"/") { &b""[..] } else { base };
    for part in base.split(|byte| *byte == b'/').chain(path.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.iter().flat_map(|part| [&b"/"[..], part].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(line: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
        use crate::parse::{Source, Strace};
        let mut source = Strace::new(line.as_bytes());
        let event = source.next_event().expect("memory does not fail").expect("a call");
        let (mut names, mut links) = (Names::default(), InitialLinks::default());
        let call = crate::decode::decode(&event, &mut names, &mut Default::default());
        links.add(&call, &names);
        links.finish()
    }

    #[test]
    fn relative_name_below_an_unknown_directory_shows_no_link() {
        assert_eq!(links("open(\"a\", O_RDONLY) = 3</srv/app/a>\n"), []);
        let link = (b"/link".to_vec(), b"/srv/app".to_vec());
        assert_eq!(links("open(\"/link/a\", O_RDONLY) = 3</srv/app/a>\n"), [link]);
    }

    #[test]
    fn a_link_is_what_lies_before_the_common_end_of_two_names() {
        assert_eq!(shared_tail(b"/lib/x/y.so", b"/usr/lib/x/y.so"), 11);
        assert_eq!(shared_tail(b"/usr/lib/z.so.1", b"/usr/lib/z.so.1.2"), 0);
        assert_eq!(lexical(b"/a/b", b"../c/./d"), b"/a/c/d");
        let links = [(b"/lib".to_vec(), b"/usr/lib".to_vec())];
        assert_eq!(through(b"/lib/x", &links), b"/usr/lib/x");
        assert_eq!(through(b"/lib64/x", &links), b"/lib64/x");
    }
}
