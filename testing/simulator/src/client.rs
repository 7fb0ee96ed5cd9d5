//! The simulated clients: their requests, the requests that still wait for replies, and checks of the
//! replies.

use crate::block_request::check_extents;
use crate::change::ModelChange;
use crate::model::{FsModel, ModelBody, ModelId};
use crate::oracle::xattr_difference;
use crate::reply_checks::{check_attributes, check_read, check_seek, right_bytes};
use crate::request_call::{
    FsReply, IssuedRequest, ReplyArrival, ReplyInbox, RequestCall, RequestNumber, number,
};
use crate::request_generator::{ClientRequest, CloneBetween};
use crate::run_state::{RunCounts, SimulationRun};
use crate::stack::OpenVolume;
use crash_oracle::{BypassScope, SyncedBytes};
use device::Clock;
use fs::FsError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::VolumeId;

/// All clients and their requests. A crash ends all clients, as real programs.
#[derive(Default)]
pub(crate) struct SimulatedClients {
    count: usize,
    /// Files that each client holds open in each volume.
    handles: BTreeMap<(usize, VolumeId), Vec<ModelId>>,
    waiting: BTreeMap<RequestNumber, WaitingClient>,
    next: RequestNumber,
    /// The number of holders of each inode: handles, and requests under way.
    holders: BTreeMap<(VolumeId, ModelId), u64>,
    /// Held files that were synced while they were held. Their removal is durable when it returns.
    synced: BTreeSet<(VolumeId, ModelId)>,
    arrivals: ReplyInbox,
    /// The volume, file and offset of the newest cut, if it has not been read since.
    cut: Option<(VolumeId, ModelId, u64)>,
}

/// Every batch is accepted where transactions of this many bytes are.
const BATCH_TRANSACTION_BYTES_MIN: u64 = 2 << 20;
/// The length of a read of a cut range.
const CUT_READ_BYTES: usize = 20_000;

/// When a request is issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IssueTime {
    Now,
    /// Inside the next step of background work, while that waits for a device.
    AfterTurns(u64),
}

struct WaitingClient {
    client: usize,
    volume: VolumeId,
    asked: IssuedRequest,
    held: Vec<ModelId>,
}

impl WaitingClient {
    /// Whether its request is a batch that removes a name.
    fn removes_in_batch(&self) -> bool {
        let IssuedRequest::Change(change @ ModelChange::Batch(_)) = &self.asked else { return false };
        change.unlinked_names().next().is_some()
    }
}

impl SimulatedClients {
    pub(crate) fn new(count: usize) -> SimulatedClients {
        SimulatedClients { count, ..SimulatedClients::default() }
    }

    /// The number of clients.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Clients that wait for no reply.
    pub(crate) fn idle(&self) -> Vec<usize> {
        let waits = |client| self.waiting.values().any(|waiting| waiting.client == client);
        (0..self.count).filter(|&client| !waits(client)).collect()
    }

    fn handles(&self, client: usize, volume: VolumeId) -> &[ModelId] {
        self.handles.get(&(client, volume)).map_or(&[], |handles| handles)
    }

    /// Changes whose outcome no client was told, each with its volume.
    pub(crate) fn outstanding(&self) -> Vec<(VolumeId, ModelChange)> {
        let changes = self.waiting.values().filter_map(|waiting| match &waiting.asked {
            IssuedRequest::Change(change) => Some((waiting.volume, change.clone())),
            _ => None,
        });
        changes.collect()
    }

    /// Changes of one volume whose outcome no client was told.
    pub(crate) fn outstanding_in(&self, volume: VolumeId) -> Vec<ModelChange> {
        let of_volume = self.outstanding().into_iter().filter(|(other, _)| *other == volume);
        of_volume.map(|(_, change)| change).collect()
    }

    /// Describes the requests of waiting clients, for a report.
    pub(crate) fn describe_waiting(&self) -> String {
        let describe_one = |waiting: &WaitingClient| match &waiting.asked {
            IssuedRequest::Change(change) => change.describe(),
            IssuedRequest::Read { file, offset, len, .. } => {
                format!("Read {file:?}, {len} bytes at {offset}")
            }
            IssuedRequest::Seek { file, offset, what, .. } => {
                format!("Seek {what:?} in {file:?} from {offset}")
            }
            IssuedRequest::Extents { offset, len, .. } => format!("Extents, {len} bytes at {offset}"),
            IssuedRequest::Sync(_) | IssuedRequest::SyncFile(..) => "Sync".to_owned(),
        };
        self.waiting.values().map(|waiting| format!("  {}\n", describe_one(waiting))).collect()
    }

    fn arrived(&self) -> Vec<ReplyArrival> {
        std::mem::take(&mut *self.arrivals.lock().expect("nobody panics with the arrivals"))
    }
}

impl SimulationRun {
    /// Draws a request of `client` to a mounted volume and issues it.
    pub(crate) fn issue(&mut self, client: usize, when: IssueTime) -> Result<(), String> {
        let volume = self.volumes.some_mounted(&mut self.random);
        if self.workload.wants_clone_between() {
            return self.clone_between(volume, client);
        }
        let request = self.draw_request(volume, client, when);
        if let ClientRequest::Change(
            ModelChange::Allocate { file, offset, .. } | ModelChange::Copy { to: file, at: offset, .. },
        ) = request
        {
            self.clients.cut = Some((volume, file, offset));
        }
        self.ask(volume, client, when, request)
    }

    /// Draws a request. During background work the request often removes data that the work is about. Recent
    /// cuts are often read.
    fn draw_request(&mut self, volume: VolumeId, client: usize, when: IssueTime) -> ClientRequest {
        let model = self.oracle.now(volume);
        let is_cut = |&(other, file, _): &_| other == volume && model.inodes.contains_key(&file);
        let cut = self.clients.cut.filter(is_cut);
        match (when, cut) {
            (IssueTime::AfterTurns(_), _) if self.random.once_in(4) => self.workload.give_back(model),
            (_, Some((_, file, offset))) if self.random.once_in(8) => {
                self.clients.cut = None;
                // A file may be read behind its end, and a block volume may not.
                let size = model.disk().map_or(u64::MAX, |disk| model.get(disk).content().len() as u64);
                ClientRequest::Read { file, offset, len: CUT_READ_BYTES.min((size - offset) as usize) }
            }
            _ => self.workload.next(model, self.oracle.bytes(), self.clients.handles(client, volume)),
        }
    }

    /// Issues `request` to `volume` for `client`, which waits for no reply.
    pub(crate) fn ask(
        &mut self,
        volume: VolumeId,
        client: usize,
        when: IssueTime,
        request: ClientRequest,
    ) -> Result<(), String> {
        self.counts.operations += 1;
        let text = match &request {
            ClientRequest::Change(change) => change.describe(),
            other => format!("{other:?}"),
        };
        self.media.log.bytes(text.as_bytes());
        self.media
            .log
            .event(|| format!("{}: client {client}, volume {volume}: {text}", self.counts.operations), &[]);
        match request {
            ClientRequest::Change(change)
                if self.is_durable_removal(volume, &change) || self.may_wait_to_remove(&change) =>
            {
                self.remove_durably(volume, client, change)
            }
            ClientRequest::Change(change) => {
                // The removal is issued now. If it arrived later, a rename could have given its name to a
                // synced file.
                let removes = change.unlinked_names().next().is_some() && !self.clients.synced.is_empty();
                let held = change.needs(self.oracle.now(volume));
                self.wait_for(
                    volume,
                    client,
                    if removes { IssueTime::Now } else { when },
                    IssuedRequest::Change(change),
                    held,
                )
            }
            ClientRequest::Read { file, offset, len } => {
                let right = vec![right_bytes(self.oracle.now(volume), file, offset, len)];
                self.wait_for(
                    volume,
                    client,
                    when,
                    IssuedRequest::Read { file, offset, len, right },
                    vec![file],
                )
            }
            ClientRequest::Seek { file, offset, what } => {
                let version = self.oracle.now(volume).get(file).version();
                self.wait_for(
                    volume,
                    client,
                    when,
                    IssuedRequest::Seek { file, offset, what, version },
                    vec![file],
                )
            }
            ClientRequest::Extents { file, offset, len, count_max } => {
                let version = self.oracle.now(volume).get(file).version();
                let asked = IssuedRequest::Extents { file, offset, len, count_max, version };
                self.wait_for(volume, client, when, asked, vec![file])
            }
            ClientRequest::Sync => {
                self.wait_for(volume, client, when, IssuedRequest::Sync(self.oracle.moment()), Vec::new())
            }
            ClientRequest::SyncFile(disk) if self.oracle.now(volume).disk().is_some() => {
                let asked = IssuedRequest::SyncFile(disk, self.oracle.moment());
                self.wait_for(volume, client, when, asked, vec![disk])
            }
            ClientRequest::SyncFile(file) => {
                // A removal under way may or may not see that the file was synced. So the removal arrives
                // before the sync. A batch may have arrived, and still wait for space.
                self.media.meanwhile.comes_now();
                self.deliver()?;
                if self.clients.waiting.values().any(WaitingClient::removes_in_batch) {
                    self.settle()?;
                }
                if self.media.power.is_lost() || !self.oracle.now(volume).inodes.contains_key(&file) {
                    return Ok(());
                }
                let asked = IssuedRequest::SyncFile(file, self.oracle.moment());
                self.clients.synced.insert((volume, file));
                self.wait_for(volume, client, when, asked, vec![file])
            }
            ClientRequest::Open(file) => {
                self.hold(volume, file)?;
                self.clients.handles.entry((client, volume)).or_default().push(file);
                Ok(())
            }
            ClientRequest::Close(index) => {
                let handles = self.clients.handles.get_mut(&(client, volume));
                let file = handles.expect("the client has a handle").swap_remove(index);
                self.unhold(volume, file);
                Ok(())
            }
            at_once => self.check_at_once(volume, &at_once).map_err(|what| format!("{text}: {what}")),
        }
    }

    /// Whether `change` removes a name of a file that was synced while it was held.
    fn is_durable_removal(&self, volume: VolumeId, change: &ModelChange) -> bool {
        let is_of_synced = |model: &FsModel, change: &ModelChange| match change {
            ModelChange::Unlink { parent, name } => {
                model.lookup(*parent, name).is_ok_and(|id| self.clients.synced.contains(&(volume, id)))
            }
            _ => false,
        };
        let now = self.oracle.now(volume);
        match change {
            ModelChange::Batch(parts) if change.unlinked_names().next().is_some() => {
                let (mut after, mut is_durable) = (now.clone(), false);
                let is_made = parts.iter().all(|part| {
                    is_durable |= is_of_synced(&after, part);
                    after.make(part, None).is_ok()
                });
                is_made && is_durable
            }
            one => is_of_synced(now, one),
        }
    }

    /// Whether `change` is a batch that removes a name, which may be that of a synced file by the time at which the batch
    /// takes effect: batches wait for space, and for clones and comparisons.
    fn may_wait_to_remove(&self, change: &ModelChange) -> bool {
        matches!(change, ModelChange::Batch(_))
            && change.unlinked_names().next().is_some()
            && !self.clients.synced.is_empty()
    }

    /// Makes a change that may remove a name durably, while no other client does anything. The removal takes effect before
    /// its reply, at a moment that the oracle cannot see.
    fn remove_durably(&mut self, volume: VolumeId, client: usize, change: ModelChange) -> Result<(), String> {
        self.media.meanwhile.comes_now();
        self.settle()?;
        // A request under way may have removed the last name of a file that a batch names.
        let is_there = |file: &ModelId| self.oracle.now(volume).inodes.contains_key(file);
        if self.media.power.is_lost() || !change.names().iter().all(is_there) {
            return Ok(());
        }
        let is_durable = self.is_durable_removal(volume, &change);
        if !is_durable && !self.may_wait_to_remove(&change) {
            return Ok(());
        }
        let held = change.needs(self.oracle.now(volume));
        let failed = |counts: &RunCounts| (counts.errors_told, counts.no_space, counts.refused);
        let before = failed(&self.counts);
        self.wait_for(volume, client, IssueTime::Now, IssuedRequest::Change(change), held)?;
        self.settle()?;
        if is_durable
            && !self.media.power.is_lost()
            && self.clients.outstanding().is_empty()
            && failed(&self.counts) == before
        {
            self.oracle.synced(self.oracle.moment(), SyncedBytes::Logged);
        }
        Ok(())
    }

    /// Clones a range of a file of another mounted volume into one of `volume`, with a write beside it, while no other client
    /// does anything. Otherwise nobody knew which bytes the source has.
    fn clone_between(&mut self, volume: VolumeId, client: usize) -> Result<(), String> {
        self.media.meanwhile.comes_now();
        self.settle()?;
        if self.media.power.is_lost() {
            return Ok(());
        }
        let source = self.volumes.some_mounted(&mut self.random);
        let (of_source, of_target) = (self.oracle.now(source), self.oracle.now(volume));
        if source == volume || of_source.disk().is_some() || of_target.disk().is_some() {
            return Ok(());
        }
        let Some(wish) = self.workload.clone_between(of_source, of_target) else { return Ok(()) };
        let CloneBetween { from, offset, len, to, at } = wish;
        let OpenVolume::Fs(fs) = &self.stack().mount(source).open else { return Ok(()) };
        let found = fs.copy_source(number(of_source, from)).map_err(|error| format!("a source: {error}"))?;
        let bytes = &of_source.get(from).content()[offset as usize..(offset + len) as usize];
        let clone = ModelChange::CloneFrom { source: found, offset, bytes: Arc::new(bytes.to_vec()), to, at };
        // Behind the clone, so that both are there or neither.
        let beside = ModelChange::Write {
            file: to,
            offset: at + len,
            bytes: Arc::new(vec![len as u8; 100]),
            bypasses: BypassScope::Nothing,
        };
        let change = ModelChange::Batch(vec![clone, beside]);
        let held = change.needs(self.oracle.now(volume));
        self.wait_for(volume, client, IssueTime::Now, IssuedRequest::Change(change), held)?;
        self.settle()
    }

    /// Does background work until every client has its reply or the power is lost.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        loop {
            self.deliver()?;
            if self.media.power.is_lost() || self.clients.idle().len() == self.clients.len() {
                self.turns_without_reply = 0;
                return Ok(());
            }
            self.everybody_waits()?;
        }
    }

    fn wait_for(
        &mut self,
        volume: VolumeId,
        client: usize,
        when: IssueTime,
        asked: IssuedRequest,
        held: Vec<ModelId>,
    ) -> Result<(), String> {
        for &id in &held {
            self.hold(volume, id)?;
        }
        let origin = self.media.draw_origin(client);
        let ticket = self.clients.next;
        self.clients.next = RequestNumber(ticket.0 + 1);
        let clock = self.media.clock();
        let (model, arrivals, cache) = (self.oracle.now(volume), &self.clients.arrivals, &self.stack().cache);
        let call = RequestCall { model, arrivals, ticket, clock: &clock, cache };
        let request = call.prepare(&asked, &self.stack().mount(volume).open, origin);
        self.clients.waiting.insert(ticket, WaitingClient { client, volume, asked, held });
        match when {
            IssueTime::Now => request(),
            IssueTime::AfterTurns(operations) => self.media.meanwhile.comes_after(operations, request),
        }
        Ok(())
    }

    fn hold(&mut self, volume: VolumeId, id: ModelId) -> Result<(), String> {
        let ino = number(self.oracle.now(volume), id);
        if let OpenVolume::Fs(fs) = &self.stack().mount(volume).open {
            fs.hold(ino).map_err(|error| format!("hold of {id:?}, {ino:?}: {error}"))?;
        }
        *self.clients.holders.entry((volume, id)).or_default() += 1;
        Ok(())
    }

    fn unhold(&mut self, volume: VolumeId, id: ModelId) {
        if let OpenVolume::Fs(fs) = &self.stack().mount(volume).open {
            fs.unhold(number(self.oracle.now(volume), id), 1);
        }
        let holders = self.clients.holders.get_mut(&(volume, id)).expect("it was held");
        *holders -= 1;
        if *holders == 0 {
            self.clients.holders.remove(&(volume, id));
            self.clients.synced.remove(&(volume, id));
        }
        self.forget_nameless(volume);
    }

    /// Closes all files of a volume that clients hold open.
    pub(crate) fn close_handles(&mut self, volume: VolumeId) {
        for client in 0..self.clients.len() {
            let handles = self.clients.handles.remove(&(client, volume)).unwrap_or_default();
            handles.into_iter().for_each(|file| self.unhold(volume, file));
        }
    }

    /// Removes inodes that have neither a name nor a holder.
    fn forget_nameless(&mut self, volume: VolumeId) {
        let gone = |&(id, inode): &(&ModelId, &crate::model::ModelInode)| {
            inode.links == 0 && !self.clients.holders.contains_key(&(volume, *id))
        };
        let gone: Vec<ModelId> =
            self.oracle.now(volume).inodes.iter().filter(gone).map(|(&id, _)| id).collect();
        for inode in gone {
            self.oracle
                .took_effect(
                    (volume, ModelChange::Forget { inode }),
                    None,
                    None,
                    self.media.clock.monotonic(),
                )
                .expect("forgetting is always legal");
        }
    }

    /// Checks every reply that has arrived, in order, and tells the oracle. Returns their number.
    pub(crate) fn deliver(&mut self) -> Result<usize, String> {
        let mut delivered = 0;
        loop {
            let arrived = self.clients.arrived();
            if arrived.is_empty() {
                return Ok(delivered);
            }
            // Pages whose reservations earlier operations may have released.
            let mut in_doubt = 0;
            for arrival in arrived {
                delivered += 1;
                self.log_reply(arrival.ticket, &arrival.result);
                // A change that fails after the power was lost may have happened, so it stays outstanding.
                if arrival.result.is_err() && self.media.power.is_lost() {
                    continue;
                }
                let waiting = self.clients.waiting.remove(&arrival.ticket);
                let WaitingClient { volume, asked, held, .. } =
                    waiting.ok_or("a second reply to one request")?;
                let text = match &asked {
                    IssuedRequest::Change(change) => {
                        in_doubt += change.pages_max();
                        change.describe()
                    }
                    IssuedRequest::Read { file, offset, len, .. } => {
                        format!("read of {file:?}, {len} bytes at {offset}")
                    }
                    IssuedRequest::Seek { file, offset, what, .. } => {
                        format!("seek {what:?} in {file:?} from {offset}")
                    }
                    IssuedRequest::Extents { offset, len, .. } => {
                        format!("extents, {len} bytes at {offset}")
                    }
                    IssuedRequest::Sync(_) | IssuedRequest::SyncFile(..) => "sync".to_owned(),
                };
                let outcome = self.check_reply(volume, asked, arrival, in_doubt);
                outcome.map_err(|what| format!("volume {volume}: {text}: {what}"))?;
                for id in held {
                    self.unhold(volume, id);
                }
            }
        }
    }

    fn log_reply(&self, ticket: RequestNumber, result: &Result<FsReply, FsError>) {
        let log = &self.media.log;
        log.words(&[ticket.0, u64::from(result.is_ok())]);
        match result {
            Ok(FsReply::Bytes(bytes)) => log.bytes(bytes),
            Ok(_) => {}
            Err(error) => log.bytes(error.to_string().as_bytes()),
        }
        let outcome = || match result {
            Ok(FsReply::Bytes(bytes)) => format!("{} bytes", bytes.len()),
            other => format!("{other:?}"),
        };
        log.event(|| format!("  reply to {}: {}", ticket.0, outcome()), &[]);
    }

    fn check_reply(
        &mut self,
        volume: VolumeId,
        asked: IssuedRequest,
        arrival: ReplyArrival,
        in_doubt: u64,
    ) -> Result<(), String> {
        let ReplyArrival { result, at, reservable, transfer_waits, .. } = arrival;
        // After a disk error the cleaner may free no space for a clone.
        let made_up = self.media.log.errors_made_up() > self.errors_at_open;
        match (asked, result) {
            (IssuedRequest::Change(change), Ok(reply)) => self.check_effect(volume, change, &reply, at),
            (IssuedRequest::Change(ModelChange::Allocate { offset, len, .. }), Err(FsError::NoSpace))
                if self.oracle.now(volume).disk().is_some() && (offset | len).is_multiple_of(4096) =>
            {
                Err("a discard of whole pages is refused for space".into())
            }
            (IssuedRequest::Change(_), Err(FsError::NoSpace)) => self.check_no_space(reservable, in_doubt),
            // A batch of several changes in deep directories may be too much for the smallest buffer.
            (IssuedRequest::Change(ModelChange::Batch(parts)), Err(FsError::BatchTooLarge))
                if parts.len() > 1
                    && self.stack().cache.transaction_bytes_max() < BATCH_TRANSACTION_BYTES_MIN =>
            {
                Ok(())
            }
            // Pages to be compared were dropped from memory each time.
            (IssuedRequest::Change(ModelChange::Batch(parts)), Err(FsError::Busy))
                if parts.iter().any(|part| matches!(part, ModelChange::ExpectEqual { .. })) =>
            {
                Ok(())
            }
            (IssuedRequest::Change(change), Err(error)) => {
                if self.may_fail_with(&error) {
                    return self.effect_despite_error(volume, change, at);
                }
                match self.oracle.now(volume).clone().make(&change, None) {
                    Err(refusal) if refusal.allows(&error) => Ok(()),
                    Err(refusal) => Err(format!("refused with \"{error}\", expected {refusal:?}")),
                    Ok(_) => Err(format!("refused with \"{error}\", expected to succeed")),
                }
            }
            // A read that brings a page into memory can be told ENOSPC where a writer would be: see
            // docs/limits.md.
            (
                IssuedRequest::Read { .. } | IssuedRequest::Seek { .. } | IssuedRequest::Extents { .. },
                Err(FsError::NoSpace),
            ) if transfer_waits || made_up => Ok(()),
            (IssuedRequest::Read { offset, right, .. }, Ok(FsReply::Bytes(bytes))) => {
                check_read(offset, &right, &bytes)
            }
            (IssuedRequest::Seek { file, offset, what, version }, result) if !self.is_made_up(&result) => {
                let inode = self.oracle.now(volume).get(file);
                // A seek may or may not have seen a change of the file made meanwhile.
                if inode.version() == version {
                    check_seek(inode.content(), offset, what, &result)
                } else {
                    Ok(())
                }
            }
            (
                IssuedRequest::Extents { file, offset, len, count_max, version },
                Ok(FsReply::Extents(found)),
            ) => {
                let inode = self.oracle.now(volume).get(file);
                // The search may or may not have seen a change made meanwhile.
                if inode.version() == version {
                    let range = offset as usize..(offset + len) as usize;
                    check_extents(&inode.content()[range], count_max, &found)
                } else {
                    Ok(())
                }
            }
            (IssuedRequest::Sync(moment), Ok(_)) => {
                self.oracle.synced(moment, SyncedBytes::All);
                Ok(())
            }
            (IssuedRequest::SyncFile(file, moment), Ok(_)) => {
                self.oracle.synced(moment, SyncedBytes::File((volume, Some(file))));
                Ok(())
            }

            (_, Err(error)) if self.may_fail_with(&error) => Ok(()),
            (_, result) => Err(format!("the reply is {result:?}")),
        }
    }

    /// Records a durable removal whose sync failed. The removal itself has happened.
    fn effect_despite_error(&mut self, volume: VolumeId, change: ModelChange, at: i64) -> Result<(), String> {
        if !self.is_durable_removal(volume, &change) {
            return Ok(());
        }
        let now = self.oracle.now(volume);
        let mut after = now.clone();
        if after.make(&change, None).is_err() {
            return Ok(());
        }
        let is_gone = |parent: ModelId, name: &[u8]| {
            let found = self.stack().mount(volume).fs().lookup(number(now, parent), name);
            after.lookup(parent, name).is_err() && matches!(found, Err(FsError::NotFound))
        };
        let has_happened = change.unlinked_names().any(|(parent, name)| is_gone(parent, name));
        if has_happened { self.check_effect(volume, change, &FsReply::Done, at) } else { Ok(()) }
    }

    fn check_effect(
        &mut self,
        volume: VolumeId,
        change: ModelChange,
        reply: &FsReply,
        at: i64,
    ) -> Result<(), String> {
        let touched = change.touches();
        let ino = match reply {
            FsReply::Attributes(attributes) => Some(attributes.ino),
            _ => None,
        };
        // A durable removal took effect before its reply, and time may have passed since. A block volume has no
        // times.
        let is_block_volume = self.oracle.now(volume).disk().is_some();
        self.counts.block_changes += u64::from(is_block_volume);
        if let ModelChange::Batch(parts) = &change {
            let count = |is_of: fn(&&ModelChange) -> bool| parts.iter().filter(is_of).count() as u64;
            self.counts.batch_transfers += count(|part| matches!(part, ModelChange::Transfer { .. }));
            self.counts.clones_between += count(|part| matches!(part, ModelChange::CloneFrom { .. }));
            self.counts.batch_comparisons += count(|part| matches!(part, ModelChange::ExpectEqual { .. }));
        }
        let is_durable_removal = self.is_durable_removal(volume, &change);
        let is_unknown = is_block_volume || is_durable_removal && self.media.meanwhile.is_slow();
        let answered = self.media.clock.monotonic();
        let made = self.oracle.took_effect((volume, change), ino, (!is_unknown).then_some(at), answered);
        let made = made.map_err(|refusal| format!("succeeded, expected to be refused: {refusal:?}"))?;
        self.remember_for_reads(volume, &touched);
        if let (Some(id), FsReply::Attributes(attributes)) = (made.or(touched.first().copied()), reply) {
            check_attributes(self.oracle.now(volume), id, attributes)?;
        }
        self.forget_nameless(volume);
        Ok(())
    }

    /// Adds the new content of `touched` to the right answers of reads under way.
    fn remember_for_reads(&mut self, volume: VolumeId, touched: &[ModelId]) {
        for waiting in self.clients.waiting.values_mut().filter(|waiting| waiting.volume == volume) {
            if let IssuedRequest::Read { file, offset, len, right } = &mut waiting.asked
                && touched.contains(file)
            {
                right.push(right_bytes(self.oracle.now(volume), *file, *offset, *len));
            }
        }
    }

    /// Checks ENOSPC: the operation must have been unable to reserve its pages.
    fn check_no_space(&mut self, reservable: u64, in_doubt: u64) -> Result<(), String> {
        if cache::end_refusal() {
            // The refusal was made up. The change must be undone as a whole.
            self.counts.refused += 1;
            return Ok(());
        }
        self.workload.no_space();
        self.counts.no_space += 1;
        // After a disk error the cleaner may free less than could be reserved.
        let made_up = self.media.log.errors_made_up() > self.errors_at_open;
        if reservable > in_doubt && !made_up {
            let space = self.stack().cache.store().space().now();
            return Err(format!("no space, but {reservable} pages could be reserved: {space:?}"));
        }
        Ok(())
    }

    fn is_made_up(&self, result: &Result<FsReply, FsError>) -> bool {
        let made_up = self.media.log.errors_made_up() > self.errors_at_open;
        made_up && matches!(result, Err(FsError::Cache(_)))
    }

    /// Whether an error that a disk made up explains `error`.
    fn may_fail_with(&mut self, error: &FsError) -> bool {
        let made_up = self.media.log.errors_made_up() > self.errors_at_open;
        let explained = made_up && matches!(error, FsError::Cache(_));
        self.counts.errors_told += u64::from(explained);
        explained
    }

    fn check_at_once(&self, volume: VolumeId, request: &ClientRequest) -> Result<(), String> {
        let (mounted, model) = (self.stack().mount(volume), self.oracle.now(volume));
        let fs = mounted.fs();
        match request {
            ClientRequest::Lookup { parent, name } => {
                let found = fs.lookup(number(model, *parent), name);
                match (found, model.lookup(*parent, name)) {
                    (Ok(attributes), Ok(id)) => check_attributes(model, id, &attributes),
                    (Err(error), Err(refusal)) if refusal.allows(&error) => Ok(()),
                    (found, expected) => Err(format!("found {found:?}, expected {expected:?}")),
                }
            }
            ClientRequest::Stat(id) => {
                let found = fs.attributes(number(model, *id)).map_err(|error| error.to_string())?;
                check_attributes(model, *id, &found)
            }
            ClientRequest::List(directory) => {
                let found = mounted.names(number(model, *directory))?;
                let names = model.names(*directory).expect("a directory");
                let expected: BTreeMap<_, _> =
                    names.iter().map(|(name, &id)| (name.clone(), number(model, id))).collect();
                if found == expected {
                    Ok(())
                } else {
                    Err(format!("found {found:?}, expected {expected:?}"))
                }
            }
            ClientRequest::ListXattrs(id) => {
                let found = mounted.xattrs(number(model, *id))?;
                xattr_difference(&model.get(*id).xattrs, &found).map_or(Ok(()), Err)
            }
            ClientRequest::ReadLink(id) => {
                let found = fs.read_link(number(model, *id)).map_err(|error| error.to_string())?;
                match &model.get(*id).body {
                    ModelBody::Symlink(target) if *target == found => Ok(()),
                    _ => Err(format!("leads to {}", found.escape_ascii())),
                }
            }
            other => unreachable!("{other:?} is not answered at once"),
        }
    }
}
