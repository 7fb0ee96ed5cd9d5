//! The buffer beside a plain model, a list of transactions, through commits, releases, crashes and faults.
#![allow(dead_code, unreachable_pub, missing_docs)]

use buffer::{Buffer, BufferError, GroupNo, LogRecord, ReplayedTransaction, TRANSFER_BYTES, footprint};
use device::{
    Device, Incarnation, Lsn, ObjectId, PageNo, PageTransfer, SeededRng, StoreId, TransferKind, VolumeId,
};
use sim_disk::{DiskFaults, PowerSupply, SimDisk};
use std::sync::Arc;

pub const ID: StoreId = StoreId([7; 16]);
/// A buffer with more blocks does not grow further.
const BLOCKS_MAX: u64 = 1000;

/// A record that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owned {
    Write(ObjectId, u64, u16, Vec<u8>),
    Zero(ObjectId, u64, u16, u16),
    Punch(ObjectId, u64, u64),
    Delete(ObjectId),
    Transfer(PageTransfer),
    Bypassed(ObjectId, u64, u64, bool),
}

impl Owned {
    pub fn of(record: &LogRecord<'_>) -> Owned {
        match *record {
            LogRecord::Write { object, page, start, bytes } => {
                Owned::Write(object, page.0, start, bytes.to_vec())
            }
            LogRecord::Zero { object, page, start, len } => Owned::Zero(object, page.0, start, len),
            LogRecord::Punch { object, from, to } => Owned::Punch(object, from.0, to.0),
            LogRecord::Delete { object } => Owned::Delete(object),
            LogRecord::Transfer(transfer) => Owned::Transfer(transfer),
            LogRecord::Bypassed { object, from, to, extends_file: grows } => {
                Owned::Bypassed(object, from.0, to.0, grows)
            }
        }
    }

    pub fn as_record(&self) -> LogRecord<'_> {
        match *self {
            Owned::Write(object, page, start, ref bytes) => {
                LogRecord::Write { object, page: PageNo(page), start, bytes }
            }
            Owned::Zero(object, page, start, len) => {
                LogRecord::Zero { object, page: PageNo(page), start, len }
            }
            Owned::Punch(object, from, to) => LogRecord::Punch { object, from: PageNo(from), to: PageNo(to) },
            Owned::Delete(object) => LogRecord::Delete { object },
            Owned::Transfer(transfer) => LogRecord::Transfer(transfer),
            Owned::Bypassed(object, from, to, grows) => {
                LogRecord::Bypassed { object, from: PageNo(from), to: PageNo(to), extends_file: grows }
            }
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Owned::Write(_, _, _, bytes) => bytes.len() as u64,
            Owned::Transfer(_) => TRANSFER_BYTES,
            _ => 0,
        }
    }
}

pub fn random_object(random: &mut SeededRng) -> ObjectId {
    VolumeId(random.next_u64() as u32).object(random.below(1 << 48), random.next_u64() as u32)
}

fn random_transfer(kind: TransferKind, from: ObjectId, random: &mut SeededRng) -> PageTransfer {
    let first = random.next_u64() >> 12;
    let end = first + 1 + (random.next_u64() >> 12);
    PageTransfer {
        kind,
        from,
        first: PageNo(first),
        end: PageNo(end),
        to: random_object(random),
        at: PageNo(random.next_u64() >> 1),
    }
}

pub fn random_record(random: &mut SeededRng) -> Owned {
    let object = random_object(random);
    let start = random.below(4097) as u16;
    let len = random.below(4097 - u64::from(start)) as u16;
    let page = random.next_u64() >> 12;
    match random.below(10) {
        0 => Owned::Zero(object, page, start, len),
        1 => Owned::Punch(object, page / 2, page),
        2 => Owned::Delete(object),
        3 => Owned::Transfer(random_transfer(TransferKind::Clone, object, random)),
        4 => Owned::Transfer(random_transfer(TransferKind::Move, object, random)),
        5 if random.once_in(4) => {
            Owned::Bypassed(object, page, page + 1 + random.below(300), random.once_in(2))
        }
        _ => {
            let byte = random.next_u64() as u8;
            Owned::Write(object, page, start, (0..len).map(|at| byte.wrapping_add(at as u8)).collect())
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    pub first: Lsn,
    pub relogged: bool,
    pub group: GroupNo,
    pub records: Vec<Owned>,
}

impl Transaction {
    pub fn of(replayed: &ReplayedTransaction<'_>) -> Transaction {
        let records = replayed.records.iter().map(Owned::of).collect();
        Transaction { first: replayed.first_lsn, relogged: replayed.relogged, group: replayed.group, records }
    }
}

pub type Opened = Result<(Buffer, Vec<Transaction>), BufferError>;

pub fn open(device: Arc<dyn Device>) -> Opened {
    let mut found = Vec::new();
    let buffer =
        Buffer::open(device, ID, &mut |replayed| found.extend(replayed.iter().map(Transaction::of)))?;
    Ok((buffer, found))
}

/// The size and the faults of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub rounds: u64,
    pub operations: u64,
    pub faults: DiskFaults,
}

/// The model: every transaction that the log may hold, in its order.
pub struct Run {
    pub random: SeededRng,
    pub power: Arc<PowerSupply>,
    pub disk: Arc<SimDisk>,
    pub all: Vec<Transaction>,
    /// The number of transactions that are surely durable.
    pub durable: usize,
    /// The number of transactions that were durable before the last commit.
    pub durable_before: usize,
    pub released: GroupNo,
    incarnation: u64,
    opener: fn(Arc<dyn Device>) -> Opened,
    pub crashes: u64,
    pub full: u64,
    pub bytes_written: u64,
}

impl Run {
    pub fn new(seed: u64, blocks: u64, opener: fn(Arc<dyn Device>) -> Opened) -> Run {
        let power = PowerSupply::new();
        let disk = SimDisk::new("buffer", blocks, &power, seed);
        Buffer::format(&*disk, ID).expect("a device without faults");
        Run {
            random: SeededRng::new(seed ^ 0xb0ff),
            power,
            disk,
            all: Vec::new(),
            durable: 0,
            durable_before: 0,
            released: GroupNo(1),
            incarnation: 0,
            opener,
            crashes: 0,
            full: 0,
            bytes_written: 0,
        }
    }

    /// Runs rounds of opening, working and crashing. An error names the broken promise.
    pub fn go(&mut self, plan: &Plan) -> Result<(), String> {
        for round in 0..plan.rounds {
            self.disk.set_faults(DiskFaults::default());
            let buffer = self.reopen().map_err(|what| format!("seed {} round {round}: {what}", plan.seed))?;
            self.disk.set_faults(plan.faults);
            if self.random.once_in(2) {
                self.power.cut_after(self.random.below(plan.operations));
            }
            let worked = self.work(&buffer, plan.operations);
            worked.map_err(|what| format!("seed {} round {round}: {what}", plan.seed))?;
            self.bytes_written += buffer.counters().bytes_written;
            drop(buffer);
            self.crash();
        }
        self.disk.set_faults(DiskFaults::default());
        self.reopen().map(drop).map_err(|what| format!("seed {} at the end: {what}", plan.seed))
    }

    fn crash(&mut self) {
        // One time in four the process dies and the machine lives: nothing accepted is lost.
        if self.power.is_lost() || !self.random.once_in(4) {
            self.power.cut();
            self.disk.crash();
        }
        self.power.restore();
        self.crashes += 1;
    }

    /// Opens the buffer and compares it with the model, which then keeps only the surviving transactions.
    fn reopen(&mut self) -> Result<Buffer, String> {
        let (buffer, found) =
            (self.opener)(self.disk.clone()).map_err(|error| format!("refused: {error}"))?;
        let end = self.compare(&found)?;
        self.all.truncate(end);
        if buffer.incarnation() > Incarnation(self.incarnation) {
            return Err(format!("incarnation {} was never begun", buffer.incarnation()));
        }
        let newest =
            self.all.iter().filter(|one| !one.relogged).map(|one| one.first.0 + one.records.len() as u64);
        if newest.max().is_some_and(|after| buffer.newest_lsn().0 + 1 < after) {
            return Err("LSNs would be given out twice".to_owned());
        }
        self.released = self.released.min(buffer.unreleased_groups().end);
        Ok(buffer)
    }

    /// Checks that `found` has all unreleased transactions of a prefix of the model. Returns the prefix's
    /// length.
    pub fn compare(&self, found: &[Transaction]) -> Result<usize, String> {
        let needed = self.all.iter().take_while(|one| one.group < self.released).count();
        let from = match found.first() {
            Some(first) => match self.all.iter().position(|one| one == first) {
                Some(at) => at,
                None => return Err(format!("{:?} {:?} was never appended", first.group, first.first)),
            },
            None => self.all.len().min(needed.max(self.durable)),
        };
        let end = from + found.len();
        if self.all.len() < end || self.all[from..end] != *found {
            return Err("what is found is not what was appended, in order".to_owned());
        }
        if from > needed {
            return Err(format!("{} needed transactions are gone from the front", from - needed));
        }
        if end < self.durable {
            return Err(format!("{} durable transactions are lost", self.durable - end));
        }
        Ok(end)
    }

    fn work(&mut self, buffer: &Buffer, operations: u64) -> Result<(), String> {
        self.incarnation += 1 + self.random.below(2);
        if buffer
            .begin_incarnation(Incarnation(self.incarnation), buffer.newest_lsn().plus(self.random.below(3)))
            .is_err()
        {
            return Ok(());
        }
        // The flush covers writes that an earlier process left in the device's cache.
        self.durable = self.all.len();
        self.durable_before = self.durable;
        let release_one_in = [1, 100][self.random.below(2) as usize];
        for _ in 0..operations {
            let alive = match self.random.below(30) {
                0..20 => self.append(buffer)?,
                20..26 => self.commit(buffer)?,
                // So that some runs are seldom full and others often.
                26 if self.random.once_in(20) => self.grow(buffer)?,
                26..29 => self.merge(buffer)?,
                // Sometimes rarely, so that the ring fills up.
                _ if self.random.once_in(release_one_in) => {
                    self.release(buffer);
                    true
                }
                _ => true,
            };
            if !alive {
                return self.stays_failed(buffer);
            }
        }
        Ok(())
    }

    fn stays_failed(&mut self, buffer: &Buffer) -> Result<(), String> {
        match (buffer.commit(), buffer.append(&[LogRecord::Delete { object: ObjectId::default() }])) {
            (Err(BufferError::Device(one)), Err(BufferError::Device(other))) if one == other => Ok(()),
            other => Err(format!("a failed buffer goes on: {other:?}")),
        }
    }

    fn append(&mut self, buffer: &Buffer) -> Result<bool, String> {
        let count = [0, 1, 1, 1, 2, 3, 8, 30][self.random.below(8) as usize];
        let records: Vec<Owned> = (0..count).map(|_| random_record(&mut self.random)).collect();
        let cost = footprint(count, records.iter().map(Owned::bytes).sum());
        let fits = cost <= buffer.free_bytes();
        let newest = buffer.appended_lsn();
        let borrowed: Vec<LogRecord<'_>> = records.iter().map(Owned::as_record).collect();
        match buffer.append(&borrowed) {
            Ok(appended) => {
                if appended.first_lsn != newest.plus(1) || appended.last_lsn != newest.plus(count) {
                    return Err("LSNs are not contiguous".to_owned());
                }
                if count > 0 {
                    let first = appended.first_lsn;
                    let group = appended.group;
                    self.all.push(Transaction { first, relogged: false, group, records });
                }
                Ok(true)
            }
            Err(BufferError::Full) if fits => Err(format!("full with space for {cost} bytes")),
            Err(BufferError::Full) => {
                self.full += 1;
                buffer.release(GroupNo(buffer.unreleased_groups().end.0), 0);
                self.released = buffer.unreleased_groups().start;
                self.commit(buffer)
            }
            Err(BufferError::TransactionTooLarge { .. }) if cost > buffer.transaction_bytes_max() => Ok(true),
            Err(error) => Err(format!("append: {error}")),
        }
    }

    fn merge(&mut self, buffer: &Buffer) -> Result<bool, String> {
        let newest = Lsn(self.random.below(buffer.appended_lsn().0 + 1));
        let records = vec![random_record(&mut self.random)];
        let borrowed: Vec<LogRecord<'_>> = records.iter().map(Owned::as_record).collect();
        match buffer.append_relogged(newest, &borrowed) {
            Ok(group) => {
                self.all.push(Transaction { first: newest, relogged: true, group, records });
                Ok(true)
            }
            Err(BufferError::Full) => self.commit(buffer),
            Err(error) => Err(format!("append_relogged: {error}")),
        }
    }

    fn commit(&mut self, buffer: &Buffer) -> Result<bool, String> {
        let writes = buffer.open_bytes() > 0;
        match buffer.commit() {
            Ok(durable) if durable != buffer.appended_lsn() || buffer.durable_lsn() != durable => {
                Err("a commit left something behind".to_owned())
            }
            Ok(_) => {
                if writes {
                    self.durable_before = self.durable;
                }
                self.durable = self.all.len();
                Ok(true)
            }
            Err(BufferError::Device(_)) => Ok(false),
            Err(error) => Err(format!("commit: {error}")),
        }
    }

    /// Any later commit may be the one that switches to the larger ring.
    fn grow(&mut self, buffer: &Buffer) -> Result<bool, String> {
        let before = self.disk.blocks();
        let space = buffer.free_bytes();
        if before > BLOCKS_MAX {
            return Ok(true);
        }
        let wanted = before + 1 + self.random.below(100);
        match buffer.grow(Some(wanted)) {
            Ok(grown) if grown != wanted => Err(format!("asked for {wanted} blocks, got {grown}")),
            Ok(_) if buffer.free_bytes() < space => Err("a larger buffer has less space".to_owned()),
            Ok(_) => Ok(true),
            // The buffer may go on with its old size, unless a flush failed.
            Err(BufferError::Device(_)) => self.commit(buffer),
            Err(error) => Err(format!("grow: {error}")),
        }
    }

    fn release(&mut self, buffer: &Buffer) {
        let groups = buffer.unreleased_groups();
        let span = groups.end.0 - groups.start.0;
        buffer.release(GroupNo(groups.start.0 + self.random.below(span + 2)), 0);
        self.released = buffer.unreleased_groups().start;
    }
}
