//! Checks all metadata against their rules: counts references, and compares them with the stored counts.

mod xattrs;

use crate::arena::{Arena, FsState};
use crate::directory::{LEVELS_MAX, NameLeaf, NameTree, hash_in, inner_children};
use crate::error::FsError;
use crate::format::{
    ArenaRegion, DirBlockHead, FILE_BYTES_MAX, HEAP_CLASSES, HEAP_LOG2_MIN, HEAP_UNITS_PER_PAGE, HeapBlock,
    Inode, InodeSlot, OwnerRecord, PAGE_BYTES, ROOT,
};
use crate::heap_allocator::class_log2;
use crate::types::{FileKind, Ino};
use std::collections::{HashMap, HashSet};

/// Bytes of a path in a finding: as many as a system call takes.
const PATH_BYTES_MAX: usize = 4096;

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsFinding {
    /// The file that it concerns, if there is one.
    pub ino: Option<Ino>,
    /// One of the file's paths, if it has one. Names that are not UTF-8 are shown with replacement
    /// characters.
    pub path: Option<String>,
    /// The violation, in words.
    pub what: String,
}

/// A check under way.
struct MetadataCheck<'a> {
    state: &'a FsState,
    report: &'a mut dyn FnMut(FsFinding),
    /// Names of each inode, counted.
    links: HashMap<InodeSlot, u32>,
    /// One name of each inode, with its directory.
    names: HashMap<InodeSlot, (InodeSlot, Vec<u8>)>,
    /// Heap units to which a structure or a free list refers.
    claimed_units: HashSet<u32>,
}

/// Checks all metadata, and reports each violation.
pub(crate) fn check(state: &FsState, report: &mut dyn FnMut(FsFinding)) {
    let mut check = MetadataCheck {
        state,
        report,
        links: HashMap::new(),
        names: HashMap::new(),
        claimed_units: HashSet::new(),
    };
    let result = check
        .check_directories()
        .and_then(|()| check.check_inodes())
        .and_then(|()| check.check_owners())
        .and_then(|()| check.check_free_lists());
    if let Err(error) = result {
        check.report_finding(None, error.to_string());
    }
}

impl MetadataCheck<'_> {
    fn report_finding(&mut self, slot: Option<InodeSlot>, what: impl Into<String>) {
        let ino = slot.map(|slot| self.state.numbering.ino(slot));
        let path = slot.and_then(|slot| self.path(slot));
        (self.report)(FsFinding { ino, path, what: what.into() });
    }

    /// One of an inode's paths, if it has one; the end of a very long one.
    fn path(&self, slot: InodeSlot) -> Option<String> {
        let mut path = String::new();
        let mut at = slot;
        while at != ROOT {
            let (parent, name) = self.names.get(&at)?;
            path = format!("/{}{path}", String::from_utf8_lossy(name));
            if path.len() > PATH_BYTES_MAX {
                return Some(format!("…{path}"));
            }
            at = *parent;
        }
        Some(if path.is_empty() { "/".to_owned() } else { path })
    }

    fn expect_count(&mut self, slot: Option<InodeSlot>, what: &str, expected: u64, found: u64) {
        if expected != found {
            self.report_finding(slot, format!("{what}: {found}, expected {expected}"));
        }
    }

    /// Checks every directory, from the root down.
    fn check_directories(&mut self) -> Result<(), FsError> {
        let mut open = vec![ROOT];
        while let Some(directory) = open.pop() {
            if let Err(error) = self.check_directory(directory, &mut open) {
                self.report_finding(Some(directory), error.to_string());
            }
        }
        Ok(())
    }

    fn check_directory(&mut self, slot: InodeSlot, open: &mut Vec<InodeSlot>) -> Result<(), FsError> {
        let (inode, kind) = self.state.used_inode(slot)?;
        if kind != FileKind::Directory {
            self.report_finding(Some(slot), "the name says that it is a directory, the inode does not");
            return Ok(());
        }
        let tree = NameTree::of(&inode);
        let mut found = NameTree { root: tree.root, bytes: 0 };
        let mut names = Vec::new();
        if !tree.root.is_none() {
            let level = tree.levels(self.state.arena())?;
            self.check_block(tree.root, level, 0..u64::MAX, &mut found, &mut names)?;
        }
        self.expect_count(Some(slot), "bytes of the directory's blocks", found.bytes, tree.bytes);
        if names.is_empty() != tree.root.is_none() {
            self.report_finding(Some(slot), "a directory has blocks if and only if it has names");
        }
        let mut directories = 0;
        let mut seen = HashSet::new();
        for (name, child, kind) in names {
            *self.links.entry(child).or_insert(0) += 1;
            self.names.entry(child).or_insert((slot, name.clone()));
            if !seen.insert(name.clone()) {
                self.report_finding(
                    Some(slot),
                    format!("two entries are named {}", String::from_utf8_lossy(&name)),
                );
            }
            let Ok((inode, real)) = self.state.used_inode(child) else {
                let name = String::from_utf8_lossy(&name);
                self.report_finding(Some(slot), format!("{name} leads to an inode that is free"));
                continue;
            };
            if real != kind {
                self.report_finding(Some(child), format!("the entry says {kind:?}, the inode {real:?}"));
            }
            if real == FileKind::Directory {
                directories += 1;
                self.expect_count(
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
        self.expect_count(
            Some(slot),
            "links of the directory",
            2 + directories,
            u64::from(inode.links.get()),
        );
        Ok(())
    }

    /// Checks a block of a directory's tree, whose keys must lie in `keys`, and collects its names.
    fn check_block(
        &mut self,
        block: HeapBlock,
        level: u8,
        keys: std::ops::Range<u64>,
        found: &mut NameTree,
        names: &mut Vec<(Vec<u8>, InodeSlot, FileKind)>,
    ) -> Result<(), FsError> {
        let arena: &Arena = self.state.arena();
        let head: DirBlockHead = arena.get(block.offset())?;
        self.claim_block(block, u32::from(head.size_log2));
        found.bytes += 1 << head.size_log2;
        if head.level != level || level > LEVELS_MAX {
            self.report_finding(
                None,
                format!("directory block {} has level {}, expected {level}", block.0, head.level),
            );
            return Ok(());
        }
        if level > 0 {
            let children = inner_children(arena, block)?;
            for (index, child) in children.iter().enumerate() {
                let start = if index == 0 { keys.start } else { child.key.get() };
                let end = children.get(index + 1).map_or(keys.end, |next| next.key.get());
                if start < keys.start || end > keys.end || start >= end {
                    self.report_finding(
                        None,
                        format!("directory block {}: children are not in order", block.0),
                    );
                }
                self.check_block(HeapBlock(child.block.get()), level - 1, start..end, found, names)?;
            }
            return Ok(());
        }
        let live = NameLeaf::read(arena, block)?.sorted()?;
        self.expect_count(None, "names in a directory block", live.len() as u64, u64::from(head.live.get()));
        for pair in live.windows(2) {
            if pair[0].key == pair[1].key {
                self.report_finding(None, format!("directory block {}: two names have one key", block.0));
            }
        }
        for name in live {
            if !keys.contains(&name.key) || hash_in(name.key) != self.state.name_hash(name.name) {
                let name = String::from_utf8_lossy(name.name).into_owned();
                self.report_finding(
                    None,
                    format!("directory block {}: {name} is where nobody looks for it", block.0),
                );
            }
            names.push((name.name.to_vec(), name.slot, name.kind));
        }
        Ok(())
    }

    /// Notes a reference to a heap block.
    fn claim_block(&mut self, block: HeapBlock, log2: u32) {
        for unit in block.0..block.0 + (1 << (log2 - HEAP_LOG2_MIN)) {
            if !self.claimed_units.insert(unit) {
                self.report_finding(None, format!("heap block {} is used twice", block.0));
                return;
            }
        }
    }

    /// Checks every slot.
    fn check_inodes(&mut self) -> Result<(), FsError> {
        let header = self.state.header().clone();
        let mut used = 0;
        let mut orphans = HashSet::new();
        for at in 0..header.orphans.get() {
            orphans.insert(self.state.orphan(at)?);
        }
        self.expect_count(
            None,
            "different entries of the orphan list",
            u64::from(header.orphans.get()),
            orphans.len() as u64,
        );
        for slot in (1..=header.slots_used.get()).map(InodeSlot) {
            let inode = self.state.inode(slot)?;
            let Some(kind) = inode.kind() else { continue };
            used += 1;
            self.check_inode(slot, &inode, kind, orphans.contains(&slot))?;
        }
        self.expect_count(None, "inodes in use", used, u64::from(header.inodes.get()));
        Ok(())
    }

    fn check_inode(
        &mut self,
        slot: InodeSlot,
        inode: &Inode,
        kind: FileKind,
        is_orphan: bool,
    ) -> Result<(), FsError> {
        let names = self.links.get(&slot).copied().unwrap_or(0);
        if is_orphan != (inode.links == 0) {
            self.report_finding(Some(slot), "an inode is in the orphan list if and only if it has no links");
        }
        match kind {
            FileKind::Directory if slot != ROOT && !is_orphan => {
                self.expect_count(Some(slot), "names of the directory", 1, u64::from(names));
            }
            FileKind::Directory => {}
            _ => self.expect_count(Some(slot), "links", u64::from(names), u64::from(inode.links.get())),
        }
        if kind == FileKind::Symlink {
            if let Err(error) = self.state.link_target(inode) {
                self.report_finding(Some(slot), error.to_string());
            } else {
                self.claim_block(inode.root(), class_log2(inode.size() as usize));
            }
        }
        if kind == FileKind::File && inode.size() > FILE_BYTES_MAX {
            self.report_finding(Some(slot), format!("{} bytes are more than a file can have", inode.size()));
        }
        if kind == FileKind::File && inode.charged_pages() > inode.size().div_ceil(PAGE_BYTES) {
            self.report_finding(Some(slot), "a file is charged for more pages than it has");
        }
        if matches!(kind, FileKind::Fifo | FileKind::Socket) && !inode.root().is_none() {
            self.report_finding(Some(slot), "an inode that needs no heap block refers to one");
        }
        if let Err(error) = self.check_xattrs(slot, inode, kind) {
            self.report_finding(Some(slot), error.to_string());
        }
        if inode.reserved_bits() != 0 || inode.generation == 0 {
            self.report_finding(Some(slot), "reserved bits are set, or the generation is 0");
        }
        Ok(())
    }

    fn check_owners(&mut self) -> Result<(), FsError> {
        let mut references: HashMap<u32, u64> = HashMap::new();
        for slot in (1..=self.state.header().slots_used.get()).map(InodeSlot) {
            let inode = self.state.inode(slot)?;
            if inode.kind().is_some() {
                *references.entry(inode.owner.get()).or_insert(0) += 1;
            }
        }
        let entries = self.state.header().owners_used.get();
        let mut seen = HashSet::new();
        for at in 0..entries {
            let owner: OwnerRecord = self.state.get(ArenaRegion::Owners.at::<OwnerRecord>(at))?;
            let expected = references.remove(&at).unwrap_or(0);
            self.expect_count(
                None,
                &format!("references to owner {at}"),
                expected,
                u64::from(owner.references.get()),
            );
            if owner.references != 0 && !seen.insert(owner.owner_and_mode()) {
                self.report_finding(None, format!("owner {at} stands twice in the table"));
            }
        }
        if let Some(at) = references.keys().next() {
            self.report_finding(None, format!("an inode refers to owner {at} of {entries}"));
        }
        Ok(())
    }

    /// Checks the lists of free inodes and free heap blocks: each entry is there once, and not in use.
    fn check_free_lists(&mut self) -> Result<(), FsError> {
        let header = self.state.header().clone();
        let mut at = InodeSlot(header.slot_free.get());
        let mut free = 0;
        while at.0 != 0 {
            free += 1;
            let inode = self.state.inode(at)?;
            if inode.kind().is_some() || free > header.slots_used.get() {
                self.report_finding(Some(at), "the list of free inodes leads to one in use, or around");
                break;
            }
            at = InodeSlot(inode.next.get());
        }
        for class in 0..HEAP_CLASSES {
            let mut block = HeapBlock(header.heap_free[class].get());
            while !block.is_none() {
                let before = self.claimed_units.len();
                self.state.block_bytes(block, HEAP_LOG2_MIN + class as u32)?;
                self.claim_block(block, HEAP_LOG2_MIN + class as u32);
                if self.claimed_units.len() != before + (1 << class) {
                    break;
                }
                block = self.state.next_free(block)?;
            }
        }
        let units = u64::from(header.heap_used.get()) - u64::from(HEAP_UNITS_PER_PAGE);
        self.expect_count(None, "units of the heap, in use or free", units, self.claimed_units.len() as u64);
        Ok(())
    }
}
