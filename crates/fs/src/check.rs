//! Checks all metadata against its rules: counts what refers to what, and compares with what is written down.

mod xattrs;

use crate::arena::{Arena, State};
use crate::directory::{LEVELS_MAX, Leaf, Tree, hash_in, inner};
use crate::error::FsError;
use crate::format::{
    FILE_BYTES_MAX, HEAP_CLASSES, HEAP_LOG2_MIN, HEAP_UNITS_PER_PAGE, HeapBlock, Hot, NodeHead, Owner, ROOT,
    Region, Slot,
};
use crate::heap::class_log2;
use crate::types::{Ino, Kind};
use device::BLOCK_BYTES;
use std::collections::{HashMap, HashSet};

/// A path in a finding: what a system call takes.
const PATH_BYTES_MAX: usize = 4096;

/// Something that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which file it concerns, if one.
    pub ino: Option<Ino>,
    /// One of its paths, where it has one; names that are not UTF-8 are shown with replacements.
    pub path: Option<String>,
    /// What is wrong.
    pub what: String,
}

/// What the walk found.
struct Check<'a> {
    state: &'a State,
    report: &'a mut dyn FnMut(Finding),
    /// Names that lead to each inode.
    links: HashMap<Slot, u32>,
    /// One name of each inode, and the directory that it is in.
    places: HashMap<Slot, (Slot, Vec<u8>)>,
    /// Units of the heap that something refers to.
    heap: HashSet<u32>,
}

/// Reports everything that breaks a rule.
pub(crate) fn check(state: &State, report: &mut dyn FnMut(Finding)) {
    let (links, places, heap) = (HashMap::new(), HashMap::new(), HashSet::new());
    let mut check = Check { state, report, links, places, heap };
    let result = check
        .walk()
        .and_then(|()| check.inodes())
        .and_then(|()| check.owners())
        .and_then(|()| check.free_lists());
    if let Err(error) = result {
        check.find(None, error.to_string());
    }
}

impl Check<'_> {
    fn find(&mut self, slot: Option<Slot>, what: impl Into<String>) {
        let ino = slot.map(|slot| self.state.numbers.ino(slot));
        let path = slot.and_then(|slot| self.path(slot));
        (self.report)(Finding { ino, path, what: what.into() });
    }

    /// One of an inode's paths, if it has one. Of a very deep one the end.
    fn path(&self, slot: Slot) -> Option<String> {
        let (mut path, mut at) = (String::new(), slot);
        while at != ROOT {
            let (parent, name) = self.places.get(&at)?;
            path = format!("/{}{path}", String::from_utf8_lossy(name));
            if path.len() > PATH_BYTES_MAX {
                return Some(format!("…{path}"));
            }
            at = *parent;
        }
        Some(if path.is_empty() { "/".to_owned() } else { path })
    }

    fn expect(&mut self, slot: Option<Slot>, what: &str, expected: u64, found: u64) {
        if expected != found {
            self.find(slot, format!("{what}: {found}, expected {expected}"));
        }
    }

    /// Every directory that can be reached, from the root down.
    fn walk(&mut self) -> Result<(), FsError> {
        let mut open = vec![ROOT];
        while let Some(directory) = open.pop() {
            if let Err(error) = self.directory(directory, &mut open) {
                self.find(Some(directory), error.to_string());
            }
        }
        Ok(())
    }

    fn directory(&mut self, slot: Slot, open: &mut Vec<Slot>) -> Result<(), FsError> {
        let (hot, kind) = self.state.used(slot)?;
        if kind != Kind::Directory {
            self.find(Some(slot), "the name says that it is a directory, the inode does not");
            return Ok(());
        }
        let tree = Tree::of(&hot);
        let mut found = Tree { root: tree.root, bytes: 0 };
        let mut names = Vec::new();
        if !tree.root.is_none() {
            let level = tree.levels(self.state.arena())?;
            self.node(tree.root, level, 0..u64::MAX, &mut found, &mut names)?;
        }
        self.expect(Some(slot), "bytes of the directory's blocks", found.bytes, tree.bytes);
        if names.is_empty() != tree.root.is_none() {
            self.find(Some(slot), "a directory has blocks if and only if it has names");
        }
        let mut directories = 0;
        let mut seen = HashSet::new();
        for (name, child, kind) in names {
            *self.links.entry(child).or_insert(0) += 1;
            self.places.entry(child).or_insert((slot, name.clone()));
            if !seen.insert(name.clone()) {
                self.find(Some(slot), format!("two entries are named {}", String::from_utf8_lossy(&name)));
            }
            let Ok((inode, real)) = self.state.used(child) else {
                let name = String::from_utf8_lossy(&name);
                self.find(Some(slot), format!("{name} leads to an inode that is free"));
                continue;
            };
            if real != kind {
                self.find(Some(child), format!("the entry says {kind:?}, the inode {real:?}"));
            }
            if real == Kind::Directory {
                directories += 1;
                self.expect(
                    Some(child),
                    "slot of the parent",
                    u64::from(slot.0),
                    u64::from(inode.next.get()),
                );
                if self.links[&child] == 1 {
                    open.push(child);
                }
            }
        }
        self.expect(Some(slot), "links of the directory", 2 + directories, u64::from(hot.links.get()));
        Ok(())
    }

    /// One block of a directory's tree, whose keys must lie in `keys`.
    fn node(
        &mut self,
        block: HeapBlock,
        level: u8,
        keys: std::ops::Range<u64>,
        found: &mut Tree,
        names: &mut Vec<(Vec<u8>, Slot, Kind)>,
    ) -> Result<(), FsError> {
        let arena: &Arena = self.state.arena();
        let head: NodeHead = arena.get(block.offset())?;
        self.claim(block, u32::from(head.size_log2));
        found.bytes += 1 << head.size_log2;
        if head.level != level || level > LEVELS_MAX {
            self.find(
                None,
                format!("directory block {} has level {}, expected {level}", block.0, head.level),
            );
            return Ok(());
        }
        if level > 0 {
            let children = inner(arena, block)?;
            for (index, child) in children.iter().enumerate() {
                let start = if index == 0 { keys.start } else { child.key.get() };
                let end = children.get(index + 1).map_or(keys.end, |next| next.key.get());
                if start < keys.start || end > keys.end || start >= end {
                    self.find(None, format!("directory block {}: children are not in order", block.0));
                }
                self.node(HeapBlock(child.block.get()), level - 1, start..end, found, names)?;
            }
            return Ok(());
        }
        let live = Leaf::read(arena, block)?.sorted()?;
        self.expect(None, "names in a directory block", live.len() as u64, u64::from(head.live.get()));
        for pair in live.windows(2) {
            if pair[0].key == pair[1].key {
                self.find(None, format!("directory block {}: two names have one key", block.0));
            }
        }
        for name in live {
            if !keys.contains(&name.key) || hash_in(name.key) != self.state.hash(name.name) {
                let name = String::from_utf8_lossy(name.name).into_owned();
                self.find(None, format!("directory block {}: {name} is where nobody looks for it", block.0));
            }
            names.push((name.name.to_vec(), name.slot, name.kind));
        }
        Ok(())
    }

    /// Notes that something refers to a heap block.
    fn claim(&mut self, block: HeapBlock, log2: u32) {
        for unit in block.0..block.0 + (1 << (log2 - HEAP_LOG2_MIN)) {
            if !self.heap.insert(unit) {
                self.find(None, format!("heap block {} is used twice", block.0));
                return;
            }
        }
    }

    /// Every slot.
    fn inodes(&mut self) -> Result<(), FsError> {
        let header = self.state.header().clone();
        let (mut used, mut orphans) = (0, HashSet::new());
        for at in 0..header.orphans.get() {
            orphans.insert(self.state.orphan(at)?);
        }
        self.expect(
            None,
            "different entries of the orphan list",
            u64::from(header.orphans.get()),
            orphans.len() as u64,
        );
        for slot in (1..=header.slots_used.get()).map(Slot) {
            let hot = self.state.hot(slot)?;
            let Some(kind) = hot.kind() else { continue };
            used += 1;
            self.inode(slot, &hot, kind, orphans.contains(&slot))?;
        }
        self.expect(None, "inodes in use", used, u64::from(header.inodes.get()));
        Ok(())
    }

    fn inode(&mut self, slot: Slot, hot: &Hot, kind: Kind, is_orphan: bool) -> Result<(), FsError> {
        let names = self.links.get(&slot).copied().unwrap_or(0);
        if is_orphan != (hot.links == 0) {
            self.find(Some(slot), "an inode is in the orphan list if and only if it has no links");
        }
        match kind {
            Kind::Directory if slot != ROOT && !is_orphan => {
                self.expect(Some(slot), "names of the directory", 1, u64::from(names));
            }
            Kind::Directory => {}
            _ => self.expect(Some(slot), "links", u64::from(names), u64::from(hot.links.get())),
        }
        if kind == Kind::Symlink {
            if let Err(error) = self.state.link_target(hot) {
                self.find(Some(slot), error.to_string());
            } else {
                self.claim(hot.root(), class_log2(hot.size() as usize));
            }
        }
        if kind == Kind::File && hot.size() > FILE_BYTES_MAX {
            self.find(Some(slot), format!("{} bytes are more than a file can have", hot.size()));
        }
        if kind == Kind::File && hot.charged_pages() > hot.size().div_ceil(BLOCK_BYTES as u64) {
            self.find(Some(slot), "a file is charged for more pages than it has");
        }
        if matches!(kind, Kind::Fifo | Kind::Socket) && !hot.root().is_none() {
            self.find(Some(slot), "an inode that needs no heap block refers to one");
        }
        if let Err(error) = self.xattrs(slot, hot, kind) {
            self.find(Some(slot), error.to_string());
        }
        if hot.reserved_bits() != 0 || hot.generation == 0 {
            self.find(Some(slot), "reserved bits are set, or the generation is 0");
        }
        Ok(())
    }

    fn owners(&mut self) -> Result<(), FsError> {
        let mut references: HashMap<u32, u64> = HashMap::new();
        for slot in (1..=self.state.header().slots_used.get()).map(Slot) {
            let hot = self.state.hot(slot)?;
            if hot.kind().is_some() {
                *references.entry(hot.owner.get()).or_insert(0) += 1;
            }
        }
        let entries = self.state.header().owners_used.get();
        let mut seen = HashSet::new();
        for at in 0..entries {
            let owner: Owner = self.state.get(Region::Owners.at::<Owner>(at))?;
            let expected = references.remove(&at).unwrap_or(0);
            self.expect(
                None,
                &format!("references to owner {at}"),
                expected,
                u64::from(owner.references.get()),
            );
            if owner.references != 0 && !seen.insert(owner.rights()) {
                self.find(None, format!("owner {at} stands twice in the table"));
            }
        }
        if let Some(at) = references.keys().next() {
            self.find(None, format!("an inode refers to owner {at} of {entries}"));
        }
        Ok(())
    }

    /// Free inodes and free heap blocks: each once, and nothing used among them.
    fn free_lists(&mut self) -> Result<(), FsError> {
        let header = self.state.header().clone();
        let (mut at, mut free) = (Slot(header.slot_free.get()), 0);
        while at.0 != 0 {
            free += 1;
            let hot = self.state.hot(at)?;
            if hot.kind().is_some() || free > header.slots_used.get() {
                self.find(Some(at), "the list of free inodes leads to one in use, or around");
                break;
            }
            at = Slot(hot.next.get());
        }
        for class in 0..HEAP_CLASSES {
            let mut block = HeapBlock(header.heap_free[class].get());
            while !block.is_none() {
                let before = self.heap.len();
                self.state.block_bytes(block, HEAP_LOG2_MIN + class as u32)?;
                self.claim(block, HEAP_LOG2_MIN + class as u32);
                if self.heap.len() != before + (1 << class) {
                    break;
                }
                block = self.state.next_free(block)?;
            }
        }
        let units = u64::from(header.heap_used.get()) - u64::from(HEAP_UNITS_PER_PAGE);
        self.expect(None, "units of the heap, in use or free", units, self.heap.len() as u64);
        Ok(())
    }
}
