//! The volumes of the store. Empty volumes and copies are made, compared, renamed, mounted and deleted, with a
//! crash at any moment.
//!
//! The expected states of a copy are a history of their own (`oracle.rs`): the state at the request for the
//! copy, and the changes that took effect during the call. The first comparison decides which of these states
//! the copy has. Later comparisons must find the same.

use crate::change::ModelChange;
use crate::client::IssueTime;
use crate::model::FsModel;
use crate::oracle::UnmountedStates;
use crate::request_generator::ClientRequest;
use crate::run_state::{HarnessPhase, SimulationRun, TURNS_WITHOUT_REPLY_MAX};
use crate::stack::{RandomPick, SeenTree, is_rescued};
use cache::{BackgroundTask, Cache, CacheError, ObjectChange, TransactionCost};
use crash_oracle::SyncedBytes;
use device::SeededRng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::RESERVED_BLOCKS_PER_PAGE;
use store::{MAIN_VOLUME_NAME, NewVolume, Store, StoreError, VolumeId, VolumeMode};

/// The most volumes that are not mounted. They are few, so that their data alone does not fill the smallest
/// stores.
const OTHERS_MAX: usize = 4;
/// A request that arrives while a copy is made does so within this many beginnings and ends of device
/// operations.
const INTRUDES_WITHIN: u64 = 80;
/// One in this many operations on volumes is a set of requests that must be refused.
const REFUSED_ONE_IN: u64 = 12;
/// Blocks that a store must be able to reserve before a block volume gets another size.
const RESIZABLE_BLOCKS_MIN: u64 = 600;
/// Pages that one request may dirty while a copy is made, including nodes.
const INTRUDER_PAGES: u64 = 32;

/// Every volume of the store.
#[derive(Clone)]
pub(crate) struct SimulatedVolumes {
    /// The names of the mounted volumes. The oracle of the run has their history.
    mounted: BTreeMap<VolumeId, String>,
    others: BTreeMap<VolumeId, UnmountedVolume>,
    pending: PendingVolumeChange,
    names: u64,
}

/// A volume that is not mounted. All of its data is durable.
#[derive(Clone)]
struct UnmountedVolume {
    name: String,
    mode: VolumeMode,
    states: UnmountedStates,
    kind: VolumeOrigin,
}

/// Whether the stack may delete a volume without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VolumeOrigin {
    /// Only a user may delete the volume.
    Kept,
    /// The stack may delete the volume when it needs the space.
    Epoch,
    /// The stack has deleted the epoch. A crash may undo that.
    EpochGivenUp,
}

/// An operation on volumes that a crash or an error left undecided, until the next open.
#[derive(Clone)]
enum PendingVolumeChange {
    Nothing,
    /// A new volume, empty or a copy.
    New(Box<UnmountedVolume>),
    Renaming(VolumeId, String),
    Deletion(VolumeId),
}

/// Counters of operations on volumes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct VolumeCounts {
    pub(crate) copies: u64,
    pub(crate) creations: u64,
    /// The block volumes among them.
    pub(crate) block_creations: u64,
    pub(crate) renamings: u64,
    /// New sizes of block volumes.
    pub(crate) resizes: u64,
    pub(crate) deletions: u64,
    /// Mounts of volumes that were not mounted before.
    pub(crate) mounts: u64,
    /// Unmounts of one of several volumes.
    pub(crate) unmounts: u64,
    /// Crashes of several mounted volumes.
    pub(crate) crashes_of_several: u64,
    /// Comparisons of volumes that were not mounted.
    pub(crate) looks: u64,
    /// Changes that took effect while a copy was made.
    pub(crate) meanwhile: u64,
    /// New volumes that existed afterwards although the call reported no success.
    pub(crate) found: u64,
}

#[cfg(test)]
impl VolumeCounts {
    pub(crate) fn add(&mut self, other: &VolumeCounts) {
        self.copies += other.copies;
        self.creations += other.creations;
        self.block_creations += other.block_creations;
        self.renamings += other.renamings;
        self.resizes += other.resizes;
        self.deletions += other.deletions;
        self.mounts += other.mounts;
        self.unmounts += other.unmounts;
        self.crashes_of_several += other.crashes_of_several;
        self.looks += other.looks;
        self.meanwhile += other.meanwhile;
        self.found += other.found;
    }
}

impl SimulatedVolumes {
    pub(crate) fn new() -> SimulatedVolumes {
        SimulatedVolumes {
            mounted: BTreeMap::from([(VolumeId::MAIN, MAIN_VOLUME_NAME.to_owned())]),
            others: BTreeMap::new(),
            pending: PendingVolumeChange::Nothing,
            names: 0,
        }
    }

    pub(crate) fn mounted(&self) -> BTreeSet<VolumeId> {
        self.mounted.keys().copied().collect()
    }

    /// Draws a mounted volume.
    pub(crate) fn some_mounted(&self, random: &mut SeededRng) -> VolumeId {
        let mounted: Vec<VolumeId> = self.mounted.keys().copied().collect();
        random.pick(&mounted)
    }

    /// Draws the volumes to mount next, at most `max`: mostly the same again, and others beside them.
    pub(crate) fn next_to_mount(&self, max: u64, random: &mut SeededRng) -> BTreeSet<VolumeId> {
        let mut next = self.mounted();
        if random.once_in(5) {
            next.remove(&self.some_mounted(random));
        }
        while (next.len() as u64) < max && (next.is_empty() || random.once_in(2)) {
            match self.some_other(random, |id, other| !next.contains(&id) && self.may_mount(id, other)) {
                Some(other) => drop(next.insert(other)),
                None => break,
            }
        }
        if next.is_empty() { self.mounted() } else { next }
    }

    fn may_mount(&self, id: VolumeId, other: &UnmountedVolume) -> bool {
        let may_be_gone = matches!(self.pending, PendingVolumeChange::Deletion(gone) if gone == id);
        other.mode == VolumeMode::Writable && !may_be_gone
    }

    fn epochs(&self) -> Vec<VolumeId> {
        self.others.iter().filter(|(_, other)| other.kind == VolumeOrigin::Epoch).map(|(&id, _)| id).collect()
    }

    fn some_other(
        &self,
        random: &mut SeededRng,
        fits: impl Fn(VolumeId, &UnmountedVolume) -> bool,
    ) -> Option<VolumeId> {
        let is_there = |other: &UnmountedVolume| other.kind != VolumeOrigin::EpochGivenUp;
        let fitting = self.others.iter().filter(|&(&id, other)| is_there(other) && fits(id, other));
        let fitting: Vec<VolumeId> = fitting.map(|(&id, _)| id).collect();
        match fitting.len() {
            0 => None,
            _ => Some(random.pick(&fitting)),
        }
    }

    pub(crate) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Decides whether the pending operation happened, then compares the volumes in the store with the
    /// expected ones.
    fn settle(&mut self, cache: &Cache, tally: &mut VolumeCounts) -> Result<(), String> {
        let mut found = cache.store().volumes().describe();
        found.retain(|volume| !is_rescued(volume));
        match std::mem::replace(&mut self.pending, PendingVolumeChange::Nothing) {
            PendingVolumeChange::New(new) => {
                if let Some(volume) = found.iter().find(|volume| volume.name == new.name) {
                    tally.found += 1;
                    self.others.insert(volume.id, *new);
                }
            }
            PendingVolumeChange::Renaming(volume, name) if found.iter().any(|one| one.name == name) => {
                self.others.get_mut(&volume).expect("nobody deletes it").name = name;
            }
            PendingVolumeChange::Deletion(gone) if !found.iter().any(|volume| volume.id == gone) => {
                self.others.remove(&gone);
            }
            _ => {}
        }
        // The stack deletes epochs when it needs their space.
        self.others.retain(|&id, other| {
            other.kind == VolumeOrigin::Kept || found.iter().any(|volume| volume.id == id)
        });
        for other in self.others.values_mut().filter(|other| other.kind == VolumeOrigin::EpochGivenUp) {
            other.kind = VolumeOrigin::Epoch;
        }
        let mut expected: BTreeMap<VolumeId, (&str, VolumeMode)> =
            self.others.iter().map(|(&id, other)| (id, (other.name.as_str(), other.mode))).collect();
        let mounted = self.mounted.iter().map(|(&id, name)| (id, (name.as_str(), VolumeMode::Writable)));
        expected.extend(mounted);
        let found: BTreeMap<VolumeId, (&str, VolumeMode)> =
            found.iter().map(|volume| (volume.id, (volume.name.as_str(), volume.mode))).collect();
        if found == expected {
            Ok(())
        } else {
            Err(format!("there are the volumes {found:?}, expected {expected:?}"))
        }
    }
}

/// The blocks that a store which reports ENOSPC can still reserve.
struct ReservableBlocks {
    blocks: u64,
    segment_blocks: u64,
}

impl ReservableBlocks {
    fn of(store: &Store) -> ReservableBlocks {
        ReservableBlocks { blocks: store.space().now().reservable, segment_blocks: store.segment_blocks() }
    }

    /// Returns an error if `pages` pages would have fitted.
    fn is_full_for(&self, pages: u64) -> Result<(), String> {
        if self.blocks > pages * RESERVED_BLOCKS_PER_PAGE + 2 * self.segment_blocks {
            Err(format!("no space for {pages} dirty pages, with {} blocks to reserve", self.blocks))
        } else {
            Ok(())
        }
    }
}

impl SimulationRun {
    /// Does one random operation on volumes, if none is undecided.
    pub(crate) fn change_volumes(&mut self) -> Result<(), String> {
        if !matches!(self.volumes.pending, PendingVolumeChange::Nothing) {
            return Ok(());
        }
        self.counts.operations += 1;
        self.notice_epochs_given_up();
        if self.grows_now() {
            return self.grow_in_use();
        }
        let full = self.workload.wants_space();
        match self.random.below(16) {
            _ if self.random.once_in(REFUSED_ONE_IN) => self.ask_for_the_impossible(),
            0..=5 if !full && self.volumes.others.len() < OTHERS_MAX => {
                if self.random.once_in(3) {
                    self.arm_for_volumes();
                    let block_volume = self.media.draw_block_volume();
                    return self.create(block_volume);
                }
                let mode = if self.random.once_in(4) { VolumeMode::ReadOnly } else { VolumeMode::Writable };
                self.let_somebody_in()?;
                self.arm_for_volumes();
                let from = self.some_source();
                self.copy(from, mode)
            }
            6 if self.random.once_in(2) => self.resize_one(),
            6 => self.look_at_others(1),
            7..=9 => self.mount_another(),
            10..=11 => self.unmount_one(),
            chosen => match self.volumes.some_other(&mut self.random, |_, _| true) {
                // An epoch is known by its name.
                Some(volume) if chosen == 12 && !self.is_epoch(volume) => {
                    self.arm_for_volumes();
                    self.rename(volume)
                }
                Some(volume) => {
                    self.arm_for_volumes();
                    self.delete(volume)
                }
                None => Ok(()),
            },
        }
    }

    fn new_name(&mut self) -> String {
        self.volumes.names += 1;
        format!("volume-{}-{}", self.volumes.names, "n".repeat(self.random.below(100) as usize))
    }

    /// Most runs with block volumes have one from the start.
    pub(crate) fn begin_with_block_volume(&mut self) -> Result<(), String> {
        match self.media.draw_block_volume() {
            Some(size) => {
                self.create(Some(size))?;
                self.mount_another()
            }
            None => Ok(()),
        }
    }

    /// Makes a block volume of a size, or a volume with an empty file system.
    fn create(&mut self, block_volume: Option<u64>) -> Result<(), String> {
        self.phase = HarnessPhase::Creation;
        let name = self.new_name();
        self.media.log.event(
            || format!("{}: create {name}, {block_volume:?}", self.counts.operations),
            &[block_volume.unwrap_or(0)],
        );
        let outcome = self.media.create_volume(&self.stack().cache, &name, block_volume);
        let model = block_volume.map_or_else(FsModel::new, FsModel::block_volume);
        let new = UnmountedVolume {
            name,
            mode: VolumeMode::Writable,
            states: UnmountedStates::of(model),
            kind: VolumeOrigin::Kept,
        };
        match outcome {
            Ok(_) if self.media.power.is_lost() => self.nobody_heard(PendingVolumeChange::New(Box::new(new))),
            Ok(volume) => {
                self.counts.volumes.creations += 1;
                self.counts.volumes.block_creations += u64::from(block_volume.is_some());
                match self.volumes.others.insert(volume, new) {
                    None if !self.volumes.mounted.contains_key(&volume) => Ok(()),
                    _ => Err(format!("a new volume gets the number {volume}, which another has")),
                }
            }
            Err(CacheError::Store(StoreError::Full)) if !self.media.power.is_lost() => {
                self.workload.no_space();
                self.counts.no_space += 1;
                Ok(())
            }
            Err(error) => self.is_undecided(PendingVolumeChange::New(Box::new(new)), &error),
        }
    }

    /// Gives a block volume that is not mounted another size. Nothing may fail or wait meanwhile: [`block::resize`]
    /// lets no time pass.
    fn resize_one(&mut self) -> Result<(), String> {
        let is_disk = |other: &UnmountedVolume| other.states.known().is_some_and(|one| one.disk().is_some());
        let fits = |_, other: &UnmountedVolume| {
            other.kind == VolumeOrigin::Kept && other.mode == VolumeMode::Writable && is_disk(other)
        };
        let Some(volume) = self.volumes.some_other(&mut self.random, fits) else { return Ok(()) };
        let Some(size) = self.media.draw_block_volume_bytes() else { return Ok(()) };
        let cache = self.stack().cache.clone();
        let may_fail = self.life.armed_until.is_some()
            || self.life.faulty_until.is_some()
            || self.media.log.errors_made_up() > self.errors_at_open
            || cache.status().failed.is_some();
        if may_fail || cache.drain().is_err() {
            return Ok(());
        }
        self.deliver()?;
        let reservable = cache.store_without_spare().space().now().reservable;
        if reservable < RESIZABLE_BLOCKS_MIN || cache.drain().is_err() {
            return Ok(());
        }
        self.phase = HarnessPhase::Resizing;
        let before = self.resize(volume, size)?;
        if self.random.once_in(2) {
            self.resize(volume, before)?;
        }
        self.deliver().map(drop)
    }

    /// Gives a block volume a size. Returns the size before.
    fn resize(&mut self, volume: VolumeId, size: u64) -> Result<u64, String> {
        let cache = self.stack().cache.clone();
        self.deliver()?;
        // A change that was to be refused has not come.
        cache::end_refusal();
        self.media.log.event(|| format!("{}: resize {volume} to {size}", self.counts.operations), &[size]);
        block::resize(&cache, volume, size)
            .map_err(|error| format!("volume {volume} is not resized: {error}"))?;
        self.counts.volumes.resizes += 1;
        let other = self.volumes.others.get_mut(&volume).expect("it was there");
        let mut model = other.states.known().expect("one state").clone();
        let file = model.disk().expect("a block volume");
        let before = model.get(file).content().len() as u64;
        model.make(&ModelChange::SetSize { file, size }, None).expect("a size can be set");
        other.states = UnmountedStates::of(model);
        Ok(before)
    }

    /// Renames a volume that is not mounted.
    fn rename(&mut self, volume: VolumeId) -> Result<(), String> {
        self.phase = HarnessPhase::Renaming;
        let name = self.new_name();
        let operations = self.counts.operations;
        self.media.log.event(|| format!("{operations}: call {volume} {name}"), &[volume.0.into()]);
        let outcome = self.stack().cache.rename_volume(volume, &name);
        match outcome {
            Ok(()) if self.media.power.is_lost() => {
                self.nobody_heard(PendingVolumeChange::Renaming(volume, name))
            }
            Ok(()) => {
                self.counts.volumes.renamings += 1;
                self.volumes.others.get_mut(&volume).expect("it was there").name = name;
                Ok(())
            }
            Err(CacheError::Store(StoreError::Full)) if !self.media.power.is_lost() => {
                self.workload.no_space();
                self.counts.no_space += 1;
                Ok(())
            }
            Err(error) => self.is_undecided(PendingVolumeChange::Renaming(volume, name), &error),
        }
    }

    /// Lets a request arrive during half of the copies, and schedules steps of background work.
    fn let_somebody_in(&mut self) -> Result<(), String> {
        let idle = self.clients.idle();
        if !idle.is_empty() && self.random.once_in(2) && !self.media.meanwhile.waits() {
            let (client, operations) = (self.random.pick(&idle), self.random.below(INTRUDES_WITHIN));
            self.issue(client, IssueTime::AfterTurns(operations))?;
        }
        self.let_others_step();
        self.deliver().map(drop)
    }

    /// Deletes the newest copy, if there is one and no operation is undecided.
    pub(crate) fn delete_newest(&mut self) -> Result<(), String> {
        self.notice_epochs_given_up();
        let is_there = |(_, other): &(&VolumeId, &UnmountedVolume)| other.kind != VolumeOrigin::EpochGivenUp;
        match self.volumes.others.iter().rfind(is_there).map(|(&volume, _)| volume) {
            Some(volume) if matches!(self.volumes.pending, PendingVolumeChange::Nothing) => {
                self.delete(volume)
            }
            _ => Ok(()),
        }
    }

    /// Draws a volume to copy: mostly a mounted one, at times another whose state is known.
    fn some_source(&mut self) -> VolumeId {
        let is_known = |other: &UnmountedVolume| other.kind == VolumeOrigin::Kept && other.states.is_known();
        if self.random.once_in(4)
            && let Some(unmounted) = self.volumes.some_other(&mut self.random, |_, other| is_known(other))
        {
            return unmounted;
        }
        self.volumes.some_mounted(&mut self.random)
    }

    /// Makes a copy of the volume `from`, while clients and background work go on.
    pub(crate) fn copy(&mut self, from: VolumeId, mode: VolumeMode) -> Result<(), String> {
        if !matches!(self.volumes.pending, PendingVolumeChange::Nothing) {
            return Ok(());
        }
        self.phase = HarnessPhase::Copy;
        self.volumes.names += 1;
        let name = format!("copy-{}", self.volumes.names);
        self.media
            .log
            .event(|| format!("{}: {mode:?} {name} of {from}", self.counts.operations), &[mode as u64]);
        let moment = self.oracle.moment();
        let unmounted = self.volumes.others.get(&from).map(|other| other.states.clone());
        if unmounted.is_none() {
            self.oracle.begin_copy(from);
        }
        let dirty = self.stack().cache.status().dirty_pages;
        let outcome = self.stack().cache.clone_volume(from, &NewVolume { name: &name, mode, created: 1 });
        let reservable = ReservableBlocks::of(self.stack().cache.store_without_spare());
        self.deliver()?;
        let heard = outcome.is_ok() && !self.media.power.is_lost();
        let outstanding = if heard { Vec::new() } else { self.clients.outstanding_in(from) };
        let (states, meanwhile) =
            unmounted.map_or_else(|| self.oracle.end_copy(outstanding), |states| (states, 0));
        self.counts.volumes.meanwhile += meanwhile;
        let is_epoch = mode == VolumeMode::ReadOnly && self.random.once_in(2);
        let kind = if is_epoch { VolumeOrigin::Epoch } else { VolumeOrigin::Kept };
        let copy = UnmountedVolume { name, mode, states, kind };
        match outcome {
            Ok(_) if self.media.power.is_lost() => {
                self.nobody_heard(PendingVolumeChange::New(Box::new(copy)))
            }
            Ok(volume) => {
                self.oracle.synced(moment, SyncedBytes::File((from, None)));
                self.volumes.others.insert(volume, copy);
                self.stack().cache.set_expendable_volumes(self.volumes.epochs());
                self.counts.volumes.copies += 1;
                if self.random.once_in(2) { self.look_at(volume) } else { Ok(()) }
            }
            Err(CacheError::Store(StoreError::Full)) if !self.media.power.is_lost() => {
                self.workload.no_space();
                self.counts.no_space += 1;
                self.ensure_full_for(dirty + INTRUDER_PAGES, &reservable)
            }
            Err(error) => self.is_undecided(PendingVolumeChange::New(Box::new(copy)), &error),
        }
    }

    /// Handles a write-back that failed for lack of space. Where volumes share blocks this may happen, since
    /// freeing space may take some first. The dirty data stays in the buffer, and is written back after
    /// copies are deleted.
    pub(crate) fn no_space_to_write_back(&mut self) -> Result<(), String> {
        self.workload.no_space();
        self.counts.no_space += 1;
        let cache = &self.stack().cache;
        if self.volumes.others.is_empty() {
            return Err(format!("the drain finds no space: {:?}", cache.store().space().now()));
        }
        let (reservable, dirty) =
            (ReservableBlocks::of(cache.store_without_spare()), cache.status().dirty_pages);
        self.ensure_full_for(dirty, &reservable)
    }

    /// Returns an error if the store could have taken `pages` pages. After a disk made an error this is not
    /// checked: the cleaner may then free nothing.
    fn ensure_full_for(&self, pages: u64, reservable: &ReservableBlocks) -> Result<(), String> {
        if self.media.log.errors_made_up() > self.errors_at_open {
            Ok(())
        } else {
            reservable.is_full_for(pages)
        }
    }

    /// Deletes all volumes but the mounted ones at the end of a run. All dirty data must then be written back.
    pub(crate) fn delete_all_others(&mut self) -> Result<(), String> {
        self.notice_epochs_given_up();
        let is_there = |(_, other): &(&VolumeId, &UnmountedVolume)| other.kind != VolumeOrigin::EpochGivenUp;
        let others: Vec<VolumeId> = self.volumes.others.iter().filter(is_there).map(|(&id, _)| id).collect();
        others.into_iter().try_for_each(|other| self.delete(other))?;
        let cache = &self.stack().cache;
        while cache.store().maintenance().is_freeing() {
            cache.step(BackgroundTask::Checkpoint);
            self.media.clock.advance(Duration::from_secs(1));
        }
        match cache.drain() {
            Err(error) => {
                Err(format!("all others are deleted, and still: {error}: {:?}", cache.store().space().now()))
            }
            Ok(()) => self.stack().check(),
        }
    }

    /// Notices epochs that the stack has deleted. The stack may delete epochs at any moment.
    fn notice_epochs_given_up(&mut self) {
        let there = self.stack().cache.store().volumes().all();
        let is_there = |volume: VolumeId| there.iter().any(|&(id, _)| id == volume);
        for (&volume, other) in &mut self.volumes.others {
            if other.kind == VolumeOrigin::Epoch && !is_there(volume) {
                other.kind = VolumeOrigin::EpochGivenUp;
                self.media.log.event(|| format!("=== {} was given up", other.name), &[volume.0.into()]);
            }
        }
    }

    /// Deletes a volume that is not mounted.
    fn delete(&mut self, volume: VolumeId) -> Result<(), String> {
        self.phase = HarnessPhase::Deletion;
        self.media.log.event(|| format!("{}: delete {volume}", self.counts.operations), &[volume.0.into()]);
        let outcome = self.stack().cache.delete_volume(volume);
        match outcome {
            Ok(()) if self.media.power.is_lost() => self.nobody_heard(PendingVolumeChange::Deletion(volume)),
            Ok(()) => {
                self.volumes.others.remove(&volume).expect("it was there");
                self.stack().cache.set_expendable_volumes(self.volumes.epochs());
                self.counts.volumes.deletions += 1;
                Ok(())
            }
            Err(CacheError::Store(StoreError::NoSuchVolume { .. })) if self.is_epoch(volume) => {
                self.notice_epochs_given_up();
                Ok(())
            }
            Err(error) => self.is_undecided(PendingVolumeChange::Deletion(volume), &error),
        }
    }

    fn is_epoch(&self, volume: VolumeId) -> bool {
        self.volumes.others.get(&volume).is_some_and(|other| other.kind == VolumeOrigin::Epoch)
    }

    /// Leaves `operation` undecided: the power failed before the reply. The buffer could not yet name the
    /// batch of the store that has the operation. If recovery cannot read that batch, the operation did not
    /// happen.
    fn nobody_heard(&mut self, operation: PendingVolumeChange) -> Result<(), String> {
        self.volumes.pending = operation;
        Ok(())
    }

    /// Leaves `operation` undecided until the next open, which is soon.
    fn is_undecided(&mut self, operation: PendingVolumeChange, error: &CacheError) -> Result<(), String> {
        let made_up = self.media.log.errors_made_up() > self.errors_at_open;
        if !made_up && !self.media.power.is_lost() {
            let store = self.stack().cache.store();
            let (space, freeing) = (store.space().now(), store.maintenance().is_freeing());
            return Err(format!("an operation on volumes fails: {error}: {space:?}, freeing: {freeing}"));
        }
        self.counts.errors_told += u64::from(!self.media.power.is_lost());
        self.volumes.pending = operation;
        self.life.die_soon(self.counts.operations);
        Ok(())
    }

    /// Makes requests that must be refused: a copy with a taken name, a new name and a deletion of a mounted
    /// volume, a deletion of an absent one, and a change of a read-only one.
    fn ask_for_the_impossible(&mut self) -> Result<(), String> {
        self.phase = HarnessPhase::Deletion;
        let mounted = self.volumes.some_mounted(&mut self.random);
        let mut there = self.volumes.others.values().filter(|other| other.kind != VolumeOrigin::EpochGivenUp);
        let taken = there.next().map_or(&self.volumes.mounted[&mounted], |other| &other.name).clone();
        let cache = &self.stack().cache;
        let new = NewVolume { name: &taken, mode: VolumeMode::Writable, created: 1 };
        let nobody = VolumeId(u32::MAX);
        let mut answers = vec![
            (
                matches!(
                    cache.clone_volume(mounted, &new),
                    Err(CacheError::Store(StoreError::NameTaken { .. }))
                ),
                "a second",
            ),
            (matches!(cache.delete_volume(mounted), Err(CacheError::InUse { .. })), "deletion of a mounted"),
            (
                matches!(cache.rename_volume(mounted, "other"), Err(CacheError::InUse { .. })),
                "a new name of a mounted",
            ),
        ];
        let volumes = cache.store().volumes().all();
        if let Some((volume, _)) = volumes.into_iter().find(|(_, mode)| *mode == VolumeMode::ReadOnly) {
            let change = [ObjectChange::Delete { object: volume.object(1, 1) }];
            let answer = cache.try_transact(TransactionCost::of(&change), |into| into.apply(&change));
            // After the buffer has failed, every change is refused.
            let refused = matches!(
                answer,
                Some(Err(CacheError::ReadOnlyVolume { .. }
                    | CacheError::ReadOnly { .. }
                    | CacheError::Rescued { .. }))
            );
            answers.push((refused, "a change of a read-only"));
        }
        let absent = cache.delete_volume(nobody);
        let refused =
            matches!(absent, Err(CacheError::Store(StoreError::NoSuchVolume { .. } | StoreError::Device(_))));
        answers.push((refused, "deletion of an absent"));
        let lost = self.media.power.is_lost() || self.media.log.errors_made_up() > self.errors_at_open;
        match answers.into_iter().find(|&(refused, _)| !refused && !lost) {
            Some((_, what)) => Err(format!("{what} volume is not refused as it should be")),
            None => Ok(()),
        }
    }

    /// Decides undecided operations after an open.
    pub(crate) fn settle_volumes(&mut self) -> Result<(), String> {
        let cache = self.stack().cache.clone();
        self.volumes.settle(&cache, &mut self.counts.volumes)?;
        cache.set_expendable_volumes(self.volumes.epochs());
        Ok(())
    }

    /// Looks at the volumes that the last life had mounted. Those that this life has not mounted are looked at
    /// from the media alone.
    pub(crate) fn look_at_mounted(&self) -> Result<BTreeMap<VolumeId, SeenTree>, String> {
        let look = |volume: VolumeId| match self.stack().mounts.get(&volume) {
            Some(mounted) => mounted.look(),
            None => self.media.open_to_look(volume).and_then(|mounted| {
                mounted.check()?;
                mounted.look()
            }),
        };
        let seen = self.volumes.mounted().into_iter().map(|volume| match look(volume) {
            Ok(seen) => Ok((volume, seen)),
            Err(what) => Err(format!("volume {volume}: {what}")),
        });
        seen.collect()
    }

    /// Goes on with the volumes that this life has mounted, after the last life's were compared.
    pub(crate) fn adopt_mounts(&mut self) -> Result<(), String> {
        let now: BTreeSet<VolumeId> = self.stack().mounts.keys().copied().collect();
        let before = self.volumes.mounted();
        for &volume in before.difference(&now) {
            self.leave_mounted(volume);
        }
        for &volume in now.difference(&before) {
            let seen =
                self.stack().mount(volume).look().map_err(|what| format!("volume {volume}: {what}"))?;
            self.adopt_mount(volume, &seen)?;
        }
        Ok(())
    }

    /// Mounts one more volume, if there is one, beside the others.
    fn mount_another(&mut self) -> Result<(), String> {
        if self.volumes.mounted.len() as u64 >= self.options.mounts {
            return Ok(());
        }
        let may_mount = |id, other: &_| self.volumes.may_mount(id, other);
        let Some(volume) = self.volumes.some_other(&mut self.random, may_mount) else { return Ok(()) };
        self.phase = HarnessPhase::Mount;
        self.media.log.event(|| format!("{}: mount {volume}", self.counts.operations), &[volume.0.into()]);
        self.arm_for_volumes();
        self.let_others_step();
        let mounted = self.media.mount(&self.stack().cache, volume);
        let looked = mounted.and_then(|mounted| Ok((mounted.look()?, mounted)));
        let made_up = self.media.log.errors_made_up() > self.errors_at_open;
        match looked {
            _ if self.media.power.is_lost() => Ok(()),
            Ok((seen, mounted)) => {
                self.adopt_mount(volume, &seen)?;
                let stack = self.stack.as_mut().expect("the stack is open while clients run");
                stack.mounts.insert(volume, mounted);
                Ok(())
            }
            Err(_) if made_up => Ok(()),
            Err(what) => Err(format!("volume {volume} is not mounted: {what}")),
        }
    }

    /// Unmounts one of several volumes, which syncs it. It stays mounted if the sync fails.
    fn unmount_one(&mut self) -> Result<(), String> {
        if self.volumes.mounted.len() < 2 {
            return Ok(());
        }
        self.phase = HarnessPhase::Unmount;
        let volume = self.volumes.some_mounted(&mut self.random);
        self.media.log.event(|| format!("{}: unmount {volume}", self.counts.operations), &[volume.0.into()]);
        self.settle()?;
        self.close_handles(volume);
        self.arm_for_volumes();
        let errors = self.counts.errors_told;
        let sync = self.oracle.now(volume).disk().map_or(ClientRequest::Sync, ClientRequest::SyncFile);
        self.ask(volume, 0, IssueTime::Now, sync)?;
        self.settle()?;
        if !self.media.power.is_lost() && self.counts.errors_told == errors {
            let stack = self.stack.as_mut().expect("the stack is open while clients run");
            stack.mounts.remove(&volume);
            self.leave_mounted(volume);
            self.counts.volumes.unmounts += 1;
            // The daemon waits for operations without a client, too: a count of a file's pages may still use the volume.
            for _ in 1..TURNS_WITHOUT_REPLY_MAX {
                if self.media.power.is_lost() || !self.stack().cache.is_volume_in_use(volume) {
                    break;
                }
                self.everybody_waits()?;
                self.deliver()?;
            }
            self.turns_without_reply = 0;
        }
        Ok(())
    }

    /// Goes on with a volume that is mounted now and whose state is `seen`.
    fn adopt_mount(&mut self, volume: VolumeId, seen: &SeenTree) -> Result<(), String> {
        let other =
            self.volumes.others.remove(&volume).ok_or_else(|| format!("volume {volume} is mounted"))?;
        let UnmountedVolume { name, mut states, .. } = other;
        let found = states.compare(seen).map_err(|what| format!("volume {volume}, {name}: {what}"))?;
        self.media.log.event(|| format!("=== {name} is mounted: {found:?}"), &[volume.0.into()]);
        self.counts.volumes.mounts += 1;
        self.oracle.mount(volume, states.into_model());
        self.volumes.mounted.insert(volume, name);
        Ok(())
    }

    /// Records that a volume is not mounted any more. All of its changes are durable.
    fn leave_mounted(&mut self, volume: VolumeId) {
        let name = self.volumes.mounted.remove(&volume).expect("it is mounted");
        self.media.log.event(|| format!("=== {name} is not mounted any more"), &[volume.0.into()]);
        let states = self.oracle.unmount(volume);
        let kind = VolumeOrigin::Kept;
        let other = UnmountedVolume { name, mode: VolumeMode::Writable, states, kind };
        self.volumes.others.insert(volume, other);
    }

    /// Compares some of the volumes that are not mounted.
    pub(crate) fn look_at_others(&mut self, count: usize) -> Result<(), String> {
        self.notice_epochs_given_up();
        let there = self.volumes.others.iter().filter(|(_, other)| other.kind != VolumeOrigin::EpochGivenUp);
        let others: Vec<VolumeId> = there.map(|(&volume, _)| volume).collect();
        let count = count.min(others.len());
        let first = self.random.below(others.len().max(1) as u64) as usize;
        (0..count).try_for_each(|turn| self.look_at(others[(first + turn) % others.len()]))
    }

    /// Compares a read-only volume without the buffer, as if that were lost. The store alone must have all of
    /// the volume, unless the stack may delete it.
    pub(crate) fn look_without_buffer(&mut self) -> Result<(), String> {
        let is_kept =
            |other: &UnmountedVolume| other.kind == VolumeOrigin::Kept && other.mode == VolumeMode::ReadOnly;
        let kept: Vec<VolumeId> =
            self.volumes.others.iter().filter(|(_, other)| is_kept(other)).map(|(&id, _)| id).collect();
        if kept.is_empty() || !matches!(self.volumes.pending, PendingVolumeChange::Nothing) {
            return Ok(());
        }
        let volume = self.random.pick(&kept);
        let other = self.volumes.others.get_mut(&volume).expect("one that is not mounted");
        let outcome = self.media.open_without_buffer(volume).and_then(|stack| {
            stack.check()?;
            other.states.compare(&stack.look()?)
        });
        outcome.map_err(|what| format!("volume {volume}, {}, without the buffer: {what}", other.name))?;
        self.counts.volumes.looks += 1;
        Ok(())
    }

    /// Compares a volume that is not mounted, from the media alone, with its possible states.
    fn look_at(&mut self, volume: VolumeId) -> Result<(), String> {
        if self.media.power.is_lost() {
            return Ok(());
        }
        let made_up = self.media.log.errors_made_up() > self.errors_at_open;
        let other = self.volumes.others.get_mut(&volume).expect("one that is not mounted");
        // The stack may have tried to delete the epoch. The disk may have reported a failed write of a log
        // entry that is there after all, as after a crash.
        if other.kind == VolumeOrigin::Epoch && made_up && !self.media.has_volume(volume)? {
            return Ok(());
        }
        let outcome = self.media.open_to_look(volume).and_then(|stack| {
            stack.check()?;
            other.states.compare(&stack.look()?)
        });
        let found = outcome.map_err(|what| format!("volume {volume}, {}: {what}", other.name))?;
        self.counts.volumes.looks += 1;
        self.media.log.event(|| format!("=== {}: {found:?}", other.name), &[found.kept as u64]);
        Ok(())
    }
}
