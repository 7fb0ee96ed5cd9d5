//! Reading everything that is live, to find rot while there is a copy elsewhere to restore from. A bounded step at
//! a time, on a store in use; whoever calls sets the pace.
//!
//! A scrub reads the superblock and both roots, every page of the node table, every node as the medium has it, and
//! every block of data once, however many share it. What is changed meanwhile was written just now, and is not read.

use crate::audit::{Met, walk};
use crate::check::Finding;
use crate::error::StoreError;
use crate::format::{ROOTS, sum};
use crate::map::{Holder, NodeId, PageEntry, Purpose, Wanted};
use crate::root::Root;
use crate::shared::Shared;
use crate::superblock::Geometry;
use crate::writer::WriterLock;
use device::{Block, Read};
use std::collections::BTreeMap;

/// Nodes that a step visits: four leaves refer to 2 MiB of data at most.
const NODES_PER_STEP: usize = 4;

/// How far a scrub has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scrubbed {
    /// Blocks read so far.
    pub blocks: u64,
    /// Blocks that were live when it began: about as many will be read.
    pub of_blocks: u64,
    /// Blocks that are not what was written, or could not be read.
    pub damaged: u64,
    /// Map nodes that were damaged on the medium and whole in memory: the next checkpoint writes them elsewhere.
    pub healed: u64,
    /// It has read everything; the next step begins a new one.
    pub done: bool,
}

/// A scrub under way. A crash ends it; nothing depends on it.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    so_far: Scrubbed,
    /// Data that is not what was written, by its place.
    damaged: BTreeMap<Block, StoreError>,
}

impl Scrub {
    /// One bounded step of `scrub`, which begins with the first and ends with the last: see
    /// [`Store::scrub_step`](crate::Store::scrub_step).
    pub(crate) fn step(
        scrub: &mut Option<Scrub>,
        shared: &Shared,
        writer: &WriterLock,
        report: &mut dyn FnMut(Finding),
    ) -> Scrubbed {
        let Some(current) = scrub else {
            let mut begun = Scrub::default();
            begun.so_far.of_blocks = shared.space().live;
            shared.map_mut().begin_scan(Purpose::Scrub, Wanted::Every);
            begun.scrub_fixed(shared, writer, report);
            let so_far = begun.so_far;
            *scrub = Some(begun);
            return so_far;
        };
        let visited = shared.visit_some(Purpose::Scrub, NODES_PER_STEP);
        if !visited.is_empty() {
            current.scrub_nodes(&visited, shared, writer, report);
            current.scrub_data(shared);
            return current.so_far;
        }
        shared.map_mut().nodes.end_scan(Purpose::Scrub);
        current.name_damaged(shared, writer, report);
        let done = Scrubbed { done: true, ..current.so_far };
        *scrub = None;
        done
    }

    /// The superblock, the roots, the node table.
    fn scrub_fixed(&mut self, shared: &Shared, writer: &WriterLock, report: &mut dyn FnMut(Finding)) {
        let mut bad = |place: Block, what: String| {
            self.so_far.damaged += 1;
            report(Finding { place: Some(place), ..Finding::about(what) });
        };
        if let Err(error) = Geometry::read(shared.medium.device()) {
            bad(Block(0), error.to_string());
        }
        // No root is written while the writer's lock is held.
        let writer = writer.lock();
        for (at, page) in ROOTS.into_iter().zip(shared.medium.read_blocks(&ROOTS)) {
            match page {
                Ok(page) if Root::decode(&page, shared.medium.geometry().id).is_some() => {}
                Ok(_) => bad(at, format!("block {at}: a checkpoint root is not what was written")),
                Err(error) => bad(at, error.to_string()),
            }
        }
        let pages = shared.map().nodes.table.pages().to_vec();
        let written = pages.iter().filter(|page| page.place != Block(0) && !page.dirty);
        let wanted: Vec<_> = written.collect();
        let mut reads: Vec<Read> = wanted.iter().map(|page| Read::new(page.place, 1)).collect();
        shared.medium.device().read_batch(&mut reads);
        for (page, read) in wanted.iter().zip(&reads) {
            let found = sum(&read.pages[0].0);
            if read.result.is_err() || found != page.crc {
                let error =
                    shared.medium.corrupt(page.place, "a page of the node table".to_owned(), page.crc, found);
                bad(page.place, error.to_string());
            }
        }
        drop(writer);
        self.so_far.blocks += 3 + wanted.len() as u64;
    }

    /// Compares nodes on the medium with the node table. Those that memory has whole are written again.
    fn scrub_nodes(
        &mut self,
        ids: &[NodeId],
        shared: &Shared,
        writer: &WriterLock,
        report: &mut dyn FnMut(Finding),
    ) {
        let entries: Vec<_> = {
            let map = shared.map();
            let clean = |id: &&NodeId| map.nodes.is_clean(**id);
            let entry = |&id: &NodeId| map.nodes.table.get(id).map(|entry| (id, *entry));
            let entries = ids.iter().filter(clean).filter_map(entry);
            let written: Vec<_> = entries.filter(|(_, entry)| entry.place != Block(0)).collect();
            written.iter().for_each(|(_, entry)| map.nodes.segments.pin(entry.place));
            written
        };
        let mut reads: Vec<Read> = entries.iter().map(|(_, entry)| Read::new(entry.place, 1)).collect();
        shared.medium.device().read_batch(&mut reads);
        self.so_far.blocks += entries.len() as u64;
        let _writer = writer.lock();
        let mut map = shared.map_mut();
        for ((id, entry), read) in entries.iter().zip(&reads) {
            map.nodes.segments.unpin(entry.place);
            let moved = map.nodes.table.get(*id).is_none_or(|now| now.place != entry.place);
            let read = read.result.clone().map(|()| &read.pages[0]).map_err(StoreError::from);
            let Err(error) = read.and_then(|page| shared.node_in(page, *id, entry)) else { continue };
            if moved {
                continue;
            }
            self.so_far.damaged += 1;
            report(Finding { place: Some(entry.place), ..Finding::about(error.to_string()) });
            if map.nodes.is_cached(*id) {
                map.nodes.node_mut(*id);
                self.so_far.healed += 1;
            }
        }
    }

    /// Reads the blocks that the nodes visited refer to.
    fn scrub_data(&mut self, shared: &Shared) {
        let held: Vec<(Block, Vec<Holder>)> = {
            let mut map = shared.map_mut();
            let held = map.nodes.scan(Purpose::Scrub).as_mut().map(|scan| {
                scan.holders = 0;
                std::mem::take(&mut scan.held)
            });
            let held: Vec<_> = held.unwrap_or_default().into_iter().collect();
            held.iter().for_each(|(at, _)| map.nodes.segments.pin(*at));
            held
        };
        let places: Vec<Block> = held.iter().map(|(at, _)| *at).collect();
        self.so_far.blocks += places.len() as u64;
        for ((at, holders), page) in held.iter().zip(shared.medium.read_blocks(&places)) {
            let expected = holders[0].crc;
            let error = match page {
                Ok(page) if crc32c::crc32c(&page.0) == expected => continue,
                Ok(page) => shared.medium.corrupt(*at, "data".to_owned(), expected, crc32c::crc32c(&page.0)),
                Err(error) => error,
            };
            self.damaged.insert(*at, error);
        }
        let map = shared.map();
        places.iter().for_each(|&at| map.nodes.segments.unpin(at));
    }

    /// Whose the damaged blocks are. What nobody refers to any more was overwritten meanwhile, and is no loss.
    fn name_damaged(&mut self, shared: &Shared, writer: &WriterLock, report: &mut dyn FnMut(Finding)) {
        if self.damaged.is_empty() {
            return;
        }
        let _writer = writer.lock();
        walk(shared, &mut |met| {
            let Met::Page(owner, page, PageEntry { place, .. }) = met else { return };
            let Some(error) = self.damaged.remove(place) else { return };
            self.so_far.damaged += 1;
            let what = error.to_string();
            let (volume, object) = (Some(owner.volume), Some(owner.object));
            report(Finding { volume, object, page: Some(page), place: Some(*place), what });
        });
    }
}
