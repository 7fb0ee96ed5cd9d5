//! Clients: what they asked for, what they still wait for, and whether the answers are right.

use crate::answer::{check_attributes, check_read, check_seek, right_bytes};
use crate::call::{Arrival, Arrivals, Asked, Call, Reply, Ticket, number};
use crate::change::Change;
use crate::model::{Body, Id};
use crate::oracle::{Synced, xattr_difference};
use crate::run::Run;
use crate::workload::Request;
use device::Clock;
use fs::FsError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Who has asked for what. Forgotten at a crash, as the programs are.
#[derive(Default)]
pub(crate) struct Clients {
    /// Files that each client holds open.
    handles: Vec<Vec<Id>>,
    waiting: BTreeMap<Ticket, Waiting>,
    next: Ticket,
    /// Holders of each inode: handles, and requests that are under way.
    holders: BTreeMap<Id, u64>,
    /// Files that were synced while they were held, and still are: their removal is durable when it returns.
    synced: BTreeSet<Id>,
    arrivals: Arrivals,
    /// What was cut last, and not read since.
    cut: Option<(Id, u64)>,
}

/// How much is read of what was cut.
const CUT_READ_BYTES: usize = 20_000;

/// When a request comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Now,
    /// In the middle of the next step of background work, while it waits for a device.
    AfterTurns(u64),
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
            Asked::Change(change) => change.describe(),
            Asked::Read { file, offset, len, .. } => format!("Read {file:?}, {len} bytes at {offset}"),
            Asked::Seek { file, offset, what, .. } => format!("Seek {what:?} in {file:?} from {offset}"),
            Asked::Sync(_) | Asked::SyncFile(..) => "Sync".to_owned(),
        };
        self.waiting.values().map(|waiting| format!("  {}\n", describe_one(waiting))).collect()
    }

    fn arrived(&self) -> Vec<Arrival> {
        std::mem::take(&mut *self.arrivals.lock().expect("nobody panics with the arrivals"))
    }
}

impl Run {
    /// Lets `client` ask for something.
    pub(crate) fn issue(&mut self, client: usize, when: When) -> Result<(), String> {
        let request = self.draw_request(client, when);
        if let Request::Change(
            Change::Allocate { file, offset, .. } | Change::Copy { to: file, at: offset, .. },
        ) = request
        {
            self.clients.cut = Some((file, offset));
        }
        self.ask(client, when, request)
    }

    /// What meets background work is more often something that takes away what the work is about; and what was cut is often read.
    fn draw_request(&mut self, client: usize, when: When) -> Request {
        let model = &self.oracle.now;
        let cut = self.clients.cut.filter(|&(file, _)| model.inodes.contains_key(&file));
        match (when, cut) {
            (When::AfterTurns(_), _) if self.random.once_in(4) => self.workload.give_back(model),
            (_, Some((file, offset))) if self.random.once_in(8) => {
                self.clients.cut = None;
                Request::Read { file, offset, len: CUT_READ_BYTES }
            }
            _ => self.workload.next(model, self.clients.handles(client)),
        }
    }

    /// Lets `client`, which waits for nothing, ask for `request`.
    pub(crate) fn ask(&mut self, client: usize, when: When, request: Request) -> Result<(), String> {
        self.counts.operations += 1;
        let text = match &request {
            Request::Change(change) => change.describe(),
            other => format!("{other:?}"),
        };
        self.media.log.bytes(text.as_bytes());
        self.media.log.event(|| format!("{}: client {client}: {text}", self.counts.operations), &[]);
        match request {
            Request::Change(change) if self.is_durable_removal(&change) => {
                self.remove_durably(client, change)
            }
            Request::Change(change) => {
                // The name of a file that was synced may come to where a removal on its way in looks.
                let removes = matches!(change, Change::Unlink { .. }) && !self.clients.synced.is_empty();
                let held = change.needs(&self.oracle.now);
                self.wait_for(client, if removes { When::Now } else { when }, Asked::Change(change), held)
            }
            Request::Read { file, offset, len } => {
                let right = vec![right_bytes(&self.oracle.now, file, offset, len)];
                self.wait_for(client, when, Asked::Read { file, offset, len, right }, vec![file])
            }
            Request::Seek { file, offset, what } => {
                let version = self.oracle.now.get(file).version;
                self.wait_for(client, when, Asked::Seek { file, offset, what, version }, vec![file])
            }
            Request::Sync => self.wait_for(client, when, Asked::Sync(self.oracle.moment()), Vec::new()),
            Request::SyncFile(file) => {
                // A removal on its way in may or may not see that the file was synced: it comes before that.
                self.media.meanwhile.comes_now();
                self.deliver()?;
                if !self.oracle.now.inodes.contains_key(&file) {
                    return Ok(());
                }
                let asked = Asked::SyncFile(file, self.oracle.moment());
                self.clients.synced.insert(file);
                self.wait_for(client, when, asked, vec![file])
            }
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

    /// Whether `change` takes a name from a file that was synced while it was held.
    fn is_durable_removal(&self, change: &Change) -> bool {
        let Change::Unlink { parent, name } = change else { return false };
        self.oracle.now.lookup(*parent, name).is_ok_and(|id| self.clients.synced.contains(&id))
    }

    /// Its effect comes before its reply, and nobody can see when. So nobody else does anything meanwhile.
    fn remove_durably(&mut self, client: usize, change: Change) -> Result<(), String> {
        self.media.meanwhile.comes_now();
        self.settle()?;
        if self.media.power.is_lost() || !self.is_durable_removal(&change) {
            return Ok(());
        }
        let held = change.needs(&self.oracle.now);
        let errors = self.counts.errors_told;
        self.wait_for(client, When::Now, Asked::Change(change), held)?;
        self.settle()?;
        if !self.media.power.is_lost()
            && self.clients.outstanding().is_empty()
            && self.counts.errors_told == errors
        {
            self.oracle.synced(self.oracle.moment(), Synced::Logged);
        }
        Ok(())
    }

    /// Does background work until everybody is answered or the power is lost.
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

    fn wait_for(&mut self, client: usize, when: When, asked: Asked, held: Vec<Id>) -> Result<(), String> {
        for &id in &held {
            self.hold(id)?;
        }
        let ticket = self.clients.next;
        self.clients.next = Ticket(ticket.0 + 1);
        let clock: Arc<dyn Clock> = self.media.clock.clone();
        let (model, arrivals, stack) = (&self.oracle.now, &self.clients.arrivals, self.stack());
        let call = Call { model, arrivals, ticket, clock: &clock, stack };
        let request = call.prepare(&asked);
        self.clients.waiting.insert(ticket, Waiting { client, asked, held });
        match when {
            When::Now => request(&self.stack().fs),
            When::AfterTurns(operations) => {
                let fs = self.stack().fs.clone();
                self.media.meanwhile.comes_after(operations, Box::new(move || request(&fs)));
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
            self.clients.synced.remove(&id);
        }
        self.forget_nameless();
    }

    /// What has neither a name nor a holder is gone.
    fn forget_nameless(&mut self) {
        let gone = |&(id, inode): &(&Id, &crate::model::Inode)| {
            inode.links == 0 && !self.clients.holders.contains_key(id)
        };
        let gone: Vec<Id> = self.oracle.now.inodes.iter().filter(gone).map(|(&id, _)| id).collect();
        for inode in gone {
            self.oracle
                .took_effect(Change::Forget { inode }, None, None, self.media.clock.monotonic())
                .expect("forgetting is always legal");
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
            // Pages whose reservations earlier operations may have given back.
            let mut in_doubt = 0;
            for arrival in arrived {
                delivered += 1;
                self.log_reply(arrival.ticket, &arrival.result);
                // Of what fails without power nobody knows whether it happened: it stays outstanding.
                if arrival.result.is_err() && self.media.power.is_lost() {
                    continue;
                }
                let waiting = self.clients.waiting.remove(&arrival.ticket);
                let Waiting { asked, held, .. } = waiting.ok_or("a second reply to one request")?;
                let text = match &asked {
                    Asked::Change(change) => {
                        in_doubt += change.pages_max();
                        change.describe()
                    }
                    Asked::Read { file, offset, len, .. } => {
                        format!("read of {file:?}, {len} bytes at {offset}")
                    }
                    Asked::Seek { file, offset, what, .. } => {
                        format!("seek {what:?} in {file:?} from {offset}")
                    }
                    Asked::Sync(_) | Asked::SyncFile(..) => "sync".to_owned(),
                };
                self.check_reply(asked, arrival, in_doubt).map_err(|what| format!("{text}: {what}"))?;
                for id in held {
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

    fn check_reply(&mut self, asked: Asked, arrival: Arrival, in_doubt: u64) -> Result<(), String> {
        let Arrival { result, at, reservable, transfer_waits, .. } = arrival;
        // Where cleaning meets errors, it may win no space for a clone.
        let made_up = self.media.log.errors_made_up() > self.errors_at_open;
        match (asked, result) {
            (Asked::Change(change), Ok(reply)) => self.check_effect(change, &reply, at),
            (Asked::Change(_), Err(FsError::NoSpace)) => self.check_no_space(reservable, in_doubt),
            (Asked::Change(change), Err(error)) => {
                if self.may_fail_with(&error) {
                    return self.effect_despite_error(change, at);
                }
                match self.oracle.now.clone().apply(&change, None) {
                    Err(refusal) if refusal.allows(&error) => Ok(()),
                    Err(refusal) => Err(format!("refused with \"{error}\", expected {refusal:?}")),
                    Ok(_) => Err(format!("refused with \"{error}\", expected to succeed")),
                }
            }
            // Who asks for what it brings is told when writers would be: see docs/limits.md.
            (Asked::Read { .. } | Asked::Seek { .. }, Err(FsError::NoSpace)) if transfer_waits || made_up => {
                Ok(())
            }
            (Asked::Read { offset, right, .. }, Ok(Reply::Bytes(bytes))) => {
                check_read(offset, &right, &bytes)
            }
            (Asked::Seek { file, offset, what, version }, result) if !self.is_made_up(&result) => {
                let inode = self.oracle.now.get(file);
                // What changed meanwhile may have been seen or not.
                if inode.version == version {
                    check_seek(inode.content(), offset, what, &result)
                } else {
                    Ok(())
                }
            }
            (Asked::Sync(moment), Ok(_)) => {
                self.oracle.synced(moment, Synced::All);
                Ok(())
            }
            (Asked::SyncFile(file, moment), Ok(_)) => {
                self.oracle.synced(moment, Synced::File(file));
                Ok(())
            }

            (_, Err(error)) if self.may_fail_with(&error) => Ok(()),
            (_, result) => Err(format!("the reply is {result:?}")),
        }
    }

    /// A removal that was to be durable, and whose sync failed, has happened.
    fn effect_despite_error(&mut self, change: Change, at: i64) -> Result<(), String> {
        let Change::Unlink { parent, name } = &change else { return Ok(()) };
        let found = self.stack().fs.lookup(number(&self.oracle.now, *parent), name);
        match (found, self.oracle.now.lookup(*parent, name)) {
            (Err(FsError::NotFound), Ok(id)) if self.clients.synced.contains(&id) => {
                self.check_effect(change, &Reply::Done, at)
            }
            _ => Ok(()),
        }
    }

    fn check_effect(&mut self, change: Change, reply: &Reply, at: i64) -> Result<(), String> {
        let touched = change.touches();
        let ino = match reply {
            Reply::Attributes(attributes) => Some(attributes.ino),
            _ => None,
        };
        // One that is durable when it returns took effect before that, and time may have passed since.
        let known = !(self.media.meanwhile.is_slow() && self.is_durable_removal(&change));
        let answered = self.media.clock.monotonic();
        let made = self.oracle.took_effect(change, ino, known.then_some(at), answered);
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

    /// An operation that is told that there is no space could not reserve what it asked for.
    fn check_no_space(&mut self, reservable: u64, in_doubt: u64) -> Result<(), String> {
        if cache::end_refusal() {
            // Made up; the change must be undone as a whole.
            self.counts.refused += 1;
            return Ok(());
        }
        self.workload.no_space();
        self.counts.no_space += 1;
        // Where the store makes errors, cleaning may win nothing of what could be reserved.
        let made_up = self.media.log.errors_made_up() > self.errors_at_open;
        if reservable > in_doubt && !made_up {
            let space = self.stack().cache.store().space();
            return Err(format!("no space, but {reservable} pages could be reserved: {space:?}"));
        }
        Ok(())
    }

    fn is_made_up(&self, result: &Result<Reply, FsError>) -> bool {
        let made_up = self.media.log.errors_made_up() > self.errors_at_open;
        made_up && matches!(result, Err(FsError::Cache(_)))
    }

    /// Whether an error that a disk made up explains this one.
    fn may_fail_with(&mut self, error: &FsError) -> bool {
        let made_up = self.media.log.errors_made_up() > self.errors_at_open;
        let explained = made_up && matches!(error, FsError::Cache(_));
        self.counts.errors_told += u64::from(explained);
        explained
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
            Request::ListXattrs(id) => {
                let found = self.stack().xattrs(number(model, *id))?;
                xattr_difference(&model.get(*id).xattrs, &found).map_or(Ok(()), Err)
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
