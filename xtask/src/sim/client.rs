//! Clients: what they asked for, what they still wait for, and whether the answers are right.

use super::call::{Arrivals, Asked, Call, Reply, Ticket, number};
use super::model::{Body, Change, Id, Model};
use super::oracle::{bytes_difference, describe, expected_links};
use super::run::Run;
use super::stack::CALLER;
use super::workload::Request;
use device::BLOCK_BYTES;
use fs::{Attributes, FsError, Kind};
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks that may look free where somebody is told that there is no space: four clients are promised up to 64 pages
/// each, at six blocks a page, some of which are given back before anybody can look; and the store's own reserves.
const SPACE_IN_DOUBT_BLOCKS: u64 = 4 * 64 * 6 + 256;

/// Who has asked for what. Forgotten at a crash, as the programs are.
#[derive(Default)]
pub(crate) struct Clients {
    /// Files that each client holds open.
    handles: Vec<Vec<Id>>,
    waiting: BTreeMap<Ticket, Waiting>,
    next: Ticket,
    /// Holders of each inode: handles, and requests that are under way.
    holders: BTreeMap<Id, u64>,
    arrivals: Arrivals,
}

/// When a request comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Now,
    /// In the middle of the next step of background work, while it waits for a device.
    AfterDeviceOperations(u64),
}

struct Waiting {
    client: usize,
    asked: Asked,
    held: Vec<Id>,
}

impl Clients {
    pub(crate) fn new(count: usize) -> Clients {
        Clients { handles: vec![Vec::new(); count], ..Clients::default() }
    }

    /// How many they are.
    pub(crate) fn len(&self) -> usize {
        self.handles.len()
    }

    /// Clients that wait for nothing.
    pub(crate) fn idle(&self) -> Vec<usize> {
        let waits = |client| self.waiting.values().any(|waiting| waiting.client == client);
        (0..self.handles.len()).filter(|&client| !waits(client)).collect()
    }

    pub(crate) fn handles(&self, client: usize) -> &[Id] {
        &self.handles[client]
    }

    /// Changes that nobody was told the outcome of.
    pub(crate) fn outstanding(&self) -> Vec<Change> {
        let changes = self.waiting.values().filter_map(|waiting| match &waiting.asked {
            Asked::Change(change) => Some(change.clone()),
            _ => None,
        });
        changes.collect()
    }

    /// What each waiting client waits for, for a report.
    pub(crate) fn describe_waiting(&self) -> String {
        let describe_one = |waiting: &Waiting| match &waiting.asked {
            Asked::Change(change) => describe(change),
            Asked::Read { file, offset, len, .. } => format!("Read {file:?}, {len} bytes at {offset}"),
            Asked::Sync(_) => "Sync".to_owned(),
        };
        self.waiting.values().map(|waiting| format!("  {}\n", describe_one(waiting))).collect()
    }

    fn arrived(&self) -> Vec<(Ticket, Result<Reply, FsError>)> {
        std::mem::take(&mut *self.arrivals.lock().expect("nobody panics with the arrivals"))
    }
}

/// What a read must return now.
fn right_bytes(model: &Model, file: Id, offset: u64, len: usize) -> Vec<u8> {
    let content = model.get(file).content();
    let start = content.len().min(offset as usize);
    content[start..content.len().min(start + len)].to_vec()
}

/// The inodes that a change needs to find.
fn needed(model: &Model, change: &Change) -> Vec<Id> {
    match change {
        Change::Make { parent, .. } | Change::Symlink { parent, .. } => vec![*parent],
        Change::Link { file, parent, .. } => vec![*file, *parent],
        Change::Unlink { parent, .. } | Change::RemoveDirectory { parent, .. } => vec![*parent],
        Change::Rename { from, to, .. } => vec![from.0, to.0],
        Change::Write { file, .. } | Change::SetSize { file, .. } => vec![*file],
        Change::SetMode { inode, .. } => vec![*inode],
        Change::Forget { .. } => Vec::new(),
    }
    .into_iter()
    .filter(|id| model.inodes.contains_key(id))
    .collect()
}

impl Run {
    /// Lets `client` ask for something.
    pub(crate) fn issue(&mut self, client: usize, when: When) -> Result<(), String> {
        let request = self.workload.next(&self.oracle.now, self.clients.handles(client));
        self.ask(client, when, request)
    }

    /// Lets `client`, which waits for nothing, ask for `request`.
    pub(crate) fn ask(&mut self, client: usize, when: When, request: Request) -> Result<(), String> {
        self.counts.operations += 1;
        let text = match &request {
            Request::Change(change) => describe(change),
            other => format!("{other:?}"),
        };
        self.media.log.bytes(text.as_bytes());
        self.media.log.event(|| format!("{}: client {client}: {text}", self.counts.operations), &[]);
        match request {
            Request::Change(change) => {
                let held = needed(&self.oracle.now, &change);
                self.wait_for(client, when, Asked::Change(change), held)
            }
            Request::Read { file, offset, len } => {
                let right = vec![right_bytes(&self.oracle.now, file, offset, len)];
                self.wait_for(client, when, Asked::Read { file, offset, len, right }, vec![file])
            }
            Request::Sync => self.wait_for(client, when, Asked::Sync(self.oracle.moment()), Vec::new()),
            Request::Open(file) => {
                self.hold(file)?;
                self.clients.handles[client].push(file);
                Ok(())
            }
            Request::Close(index) => {
                let file = self.clients.handles[client].swap_remove(index);
                self.unhold(file);
                Ok(())
            }
            at_once => self.check_at_once(&at_once).map_err(|what| format!("{text}: {what}")),
        }
    }

    fn wait_for(&mut self, client: usize, when: When, asked: Asked, held: Vec<Id>) -> Result<(), String> {
        for &id in &held {
            self.hold(id)?;
        }
        let ticket = self.clients.next;
        self.clients.next = Ticket(ticket.0 + 1);
        let call = Call { model: &self.oracle.now, arrivals: &self.clients.arrivals, ticket };
        let request = call.prepare(&asked);
        self.clients.waiting.insert(ticket, Waiting { client, asked, held });
        match when {
            When::Now => request(&self.stack().fs),
            When::AfterDeviceOperations(operations) => {
                let fs = self.stack().fs.clone();
                self.media.intruder.comes_after(operations, Box::new(move || request(&fs)));
            }
        }
        Ok(())
    }

    fn hold(&mut self, id: Id) -> Result<(), String> {
        let ino = number(&self.oracle.now, id);
        self.stack().fs.hold(ino).map_err(|error| format!("hold of {id:?}, {ino:?}: {error}"))?;
        *self.clients.holders.entry(id).or_default() += 1;
        Ok(())
    }

    fn unhold(&mut self, id: Id) {
        self.stack().fs.unhold(number(&self.oracle.now, id), 1);
        let holders = self.clients.holders.get_mut(&id).expect("it was held");
        *holders -= 1;
        if *holders == 0 {
            self.clients.holders.remove(&id);
        }
        self.forget_nameless();
    }

    /// What has neither a name nor a holder is gone.
    fn forget_nameless(&mut self) {
        let gone = |&(id, inode): &(&Id, &super::model::Inode)| {
            inode.links == 0 && !self.clients.holders.contains_key(id)
        };
        let gone: Vec<Id> = self.oracle.now.inodes.iter().filter(gone).map(|(&id, _)| id).collect();
        for inode in gone {
            self.oracle.took_effect(Change::Forget { inode }, None).expect("forgetting is always legal");
        }
    }

    /// Checks every reply that has come, in order, and tells the oracle.
    pub(crate) fn deliver(&mut self) -> Result<usize, String> {
        let mut delivered = 0;
        loop {
            let arrived = self.clients.arrived();
            if arrived.is_empty() {
                return Ok(delivered);
            }
            for (ticket, result) in arrived {
                delivered += 1;
                self.log_reply(ticket, &result);
                // Of what fails without power nobody knows whether it happened: it stays outstanding.
                if result.is_err() && self.media.power.lost() {
                    continue;
                }
                let waiting = self.clients.waiting.remove(&ticket).ok_or("a second reply to one request")?;
                let text = match &waiting.asked {
                    Asked::Change(change) => describe(change),
                    Asked::Read { file, offset, len, .. } => {
                        format!("read of {file:?}, {len} bytes at {offset}")
                    }
                    Asked::Sync(_) => "sync".to_owned(),
                };
                self.check_reply(waiting.asked, result).map_err(|what| format!("{text}: {what}"))?;
                for id in waiting.held {
                    self.unhold(id);
                }
            }
        }
    }

    fn log_reply(&self, ticket: Ticket, result: &Result<Reply, FsError>) {
        let log = &self.media.log;
        log.words(&[ticket.0, u64::from(result.is_ok())]);
        match result {
            Ok(Reply::Bytes(bytes)) => log.bytes(bytes),
            Ok(_) => {}
            Err(error) => log.bytes(error.to_string().as_bytes()),
        }
        let outcome = || match result {
            Ok(Reply::Bytes(bytes)) => format!("{} bytes", bytes.len()),
            other => format!("{other:?}"),
        };
        log.event(|| format!("  reply to {}: {}", ticket.0, outcome()), &[]);
    }

    fn check_reply(&mut self, asked: Asked, result: Result<Reply, FsError>) -> Result<(), String> {
        match (asked, result) {
            (Asked::Change(change), Ok(reply)) => self.check_effect(change, &reply),
            (Asked::Change(change), Err(error)) => {
                if self.may_fail_with(&error)? {
                    return Ok(());
                }
                match self.oracle.now.apply(&change) {
                    Err(refusal) if refusal.allows(&error) => Ok(()),
                    Err(refusal) => Err(format!("refused with \"{error}\", expected {refusal:?}")),
                    Ok(_) => Err(format!("refused with \"{error}\", expected to succeed")),
                }
            }
            (Asked::Read { offset, right, .. }, Ok(Reply::Bytes(bytes))) => {
                check_read(offset, &right, &bytes)
            }
            (Asked::Sync(moment), Ok(_)) => {
                self.oracle.synced(moment);
                Ok(())
            }
            (_, Err(error)) if self.may_fail_with(&error)? => Ok(()),
            (_, result) => Err(format!("the reply is {result:?}")),
        }
    }

    fn check_effect(&mut self, change: Change, reply: &Reply) -> Result<(), String> {
        let touched = match &change {
            Change::Write { file, .. } | Change::SetSize { file, .. } => Some(*file),
            Change::Link { file, .. } => Some(*file),
            Change::SetMode { inode, .. } => Some(*inode),
            _ => None,
        };
        let ino = match reply {
            Reply::Attributes(attributes) => Some(attributes.ino),
            _ => None,
        };
        let made = self.oracle.took_effect(change, ino);
        let made = made.map_err(|refusal| format!("succeeded, expected to be refused: {refusal:?}"))?;
        self.remember_for_reads(touched);
        if let (Some(id), Reply::Attributes(attributes)) = (made.or(touched), reply) {
            check_attributes(&self.oracle.now, id, attributes)?;
        }
        self.forget_nameless();
        Ok(())
    }

    /// A read that is under way may see what `touched` holds now.
    fn remember_for_reads(&mut self, touched: Option<Id>) {
        for waiting in self.clients.waiting.values_mut() {
            if let Asked::Read { file, offset, len, right } = &mut waiting.asked
                && Some(*file) == touched
            {
                right.push(right_bytes(&self.oracle.now, *file, *offset, *len));
            }
        }
    }

    /// Whether the state of the machine explains the error; an error if it should and does not.
    fn may_fail_with(&mut self, error: &FsError) -> Result<bool, String> {
        match error {
            FsError::NoSpace => {
                self.workload.no_space();
                self.counts.no_space += 1;
                let space = self.stack().cache.store().space();
                let unpromised = space.free.saturating_sub(space.reserved);
                if unpromised > SPACE_IN_DOUBT_BLOCKS {
                    return Err(format!("{error}, but there is: {space:?}"));
                }
                Ok(true)
            }
            FsError::Cache(_) if self.media.log.errors_made_up() > self.errors_at_open => {
                self.counts.errors_told += 1;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn check_at_once(&self, request: &Request) -> Result<(), String> {
        let (fs, model) = (&self.stack().fs, &self.oracle.now);
        match request {
            Request::Lookup { parent, name } => {
                let found = fs.lookup(number(model, *parent), name);
                match (found, model.lookup(*parent, name)) {
                    (Ok(attributes), Ok(id)) => check_attributes(model, id, &attributes),
                    (Err(error), Err(refusal)) if refusal.allows(&error) => Ok(()),
                    (found, expected) => Err(format!("found {found:?}, expected {expected:?}")),
                }
            }
            Request::Stat(id) => {
                let found = fs.attributes(number(model, *id)).map_err(|error| error.to_string())?;
                check_attributes(model, *id, &found)
            }
            Request::List(directory) => {
                let found = self.stack().names(number(model, *directory))?;
                let names = model.names(*directory).expect("a directory");
                let expected: BTreeMap<_, _> =
                    names.iter().map(|(name, &id)| (name.clone(), number(model, id))).collect();
                if found == expected {
                    Ok(())
                } else {
                    Err(format!("found {found:?}, expected {expected:?}"))
                }
            }
            Request::ReadLink(id) => {
                let found = fs.read_link(number(model, *id)).map_err(|error| error.to_string())?;
                match &model.get(*id).body {
                    Body::Symlink(target) if *target == found => Ok(()),
                    _ => Err(format!("leads to {}", found.escape_ascii())),
                }
            }
            other => unreachable!("{other:?} is not answered at once"),
        }
    }
}

/// A read is right if each page is what it was at some moment since the request, and so is the length: a read that
/// waits for the store does not stop writers.
fn check_read(offset: u64, right: &[Vec<u8>], found: &[u8]) -> Result<(), String> {
    let newest = right.last().expect("a read has an expected answer");
    let wrong = |what: String| Err(format!("{what} (none of the {} right answers)", right.len()));
    if !right.iter().any(|right| right.len() == found.len()) {
        return wrong(bytes_difference(newest, found).unwrap_or_default());
    }
    let mut start = 0;
    while start < found.len() {
        let in_page = BLOCK_BYTES - (offset as usize + start) % BLOCK_BYTES;
        let page = start..found.len().min(start + in_page);
        if !right.iter().any(|right| equal_with_zeros_after(right, page.clone(), &found[page.clone()])) {
            return wrong(bytes_difference(newest, found).unwrap_or_default());
        }
        start = page.end;
    }
    Ok(())
}

/// Whether `range` of `right`, which is zeros after its end, is `found`.
fn equal_with_zeros_after(right: &[u8], range: Range<usize>, found: &[u8]) -> bool {
    let there = &right[range.start.min(right.len())..range.end.min(right.len())];
    found[..there.len()] == *there && found[there.len()..].iter().all(|&byte| byte == 0)
}

fn check_attributes(model: &Model, id: Id, found: &Attributes) -> Result<(), String> {
    let inode = model.get(id);
    let size = match &inode.body {
        Body::File(bytes) => Some(bytes.len() as u64),
        Body::Symlink(target) => Some(target.len() as u64),
        Body::Directory { .. } => None,
    };
    let right = found.kind == inode.body.kind()
        && size.is_none_or(|size| found.size == size)
        && found.mode == inode.mode
        && found.links == expected_links(model, id)
        && inode.ino == Some(found.ino)
        && (found.uid, found.gid) == (CALLER.uid, CALLER.gid);
    if right {
        return Ok(());
    }
    let kind = match inode.body.kind() {
        Kind::Directory => "directory",
        _ => "file",
    };
    Err(format!(
        "{found:?}, expected a {kind} {:?} of size {size:?}, mode {:o}, links {}",
        inode.ino,
        inode.mode,
        expected_links(model, id)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_may_mix_moments_but_not_within_a_page() {
        let (old, new) = (vec![1; 2 * BLOCK_BYTES], vec![2; 2 * BLOCK_BYTES]);
        let right = [old.clone(), new.clone()];
        let mixed = |at: usize| [&old[..at], &new[at..]].concat();
        assert!(check_read(0, &right, &mixed(BLOCK_BYTES)).is_ok());
        assert!(check_read(0, &right, &mixed(BLOCK_BYTES + 1)).is_err());
        assert!(check_read(1, &right, &mixed(BLOCK_BYTES - 1)).is_ok());
        assert!(check_read(0, &right, &old[1..]).is_err(), "no moment had this length");
    }

    #[test]
    fn a_read_that_meets_a_truncation_may_see_zeros_after_the_end() {
        let right = [vec![1; 100], vec![1; 40]];
        assert!(check_read(0, &right, &[vec![1; 40], vec![0; 60]].concat()).is_ok());
        assert!(check_read(0, &right, &[vec![1; 40], vec![2; 60]].concat()).is_err());
        assert!(check_read(0, &right, &[vec![1; 41], vec![0; 59]].concat()).is_err());
    }
}
