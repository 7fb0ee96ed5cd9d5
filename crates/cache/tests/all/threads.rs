//! The threads of production at work together, which a simulator of one thread never sees: several fetchers,
//! a write-back, store maintenance, a committer, and clients that commit for themselves. Then the power
//! fails.

use crate::common::Disks;
use cache::{
    BackgroundTask, Cache, CacheCompletion, CacheError, CacheSettings, ObjectChange, SpaceClaim,
    SpaceReservation, StepProgress, TransactionCost,
};
use device::{BLOCK_BYTES, Clock, ObjectId, SeededRng, VolumeId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 4;
const OBJECT_BYTES: usize = 40 * BLOCK_BYTES;

struct Real(Instant);

impl Clock for Real {
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall_nanos(&self) -> i64 {
        0
    }
}

fn open(disks: &Disks, inline: bool) -> Cache {
    let settings = CacheSettings {
        memory_bytes_max: 80 * BLOCK_BYTES as u64,
        dirty_bytes_max: 60 * BLOCK_BYTES as u64,
        commit_inline_below: Duration::from_micros(if inline { 1_000_000 } else { 0 }),
        checkpoint_blocks: 200,
        // Without power nothing is written back: if everything is durable and all clients wait for space,
        // only this ends their waiting.
        store_patience: Duration::from_secs(2),
        ..CacheSettings::default()
    };
    disks.open(Arc::new(Real(Instant::now())), settings).expect("sound media")
}

fn wait<T: Send + 'static>(cache: &Cache, ask: impl FnOnce(CacheCompletion<T>)) -> Result<T, CacheError> {
    let (sender, receiver) = mpsc::channel();
    ask(Box::new(move |outcome| drop(sender.send(outcome))));
    match receiver.recv_timeout(Duration::from_secs(30)) {
        Ok(outcome) => outcome,
        Err(error) => panic!("nobody answered: {error}: {:?}", cache.status()),
    }
}

/// One client's object: what it was at the last sync, and after every change since.
struct Client {
    random: SeededRng,
    object: ObjectId,
    since: Vec<(ObjectId, Vec<u8>)>,
}

impl Client {
    fn new(number: u64, seed: u64) -> Client {
        let object = VolumeId::MAIN.object(number, 1);
        let random = SeededRng::new(seed * CLIENTS + number);
        Client { random, object, since: vec![(object, vec![0; OBJECT_BYTES])] }
    }

    fn run(mut self, cache: &Cache, ended: &AtomicBool) -> Client {
        while !ended.load(Ordering::Acquire) {
            let went = match self.random.below(12) {
                0 => self.sync(cache),
                1..4 => self.read(cache),
                _ => self.change(cache),
            };
            if went.is_err() {
                break;
            }
        }
        self
    }

    fn now(&self) -> &[u8] {
        &self.since.last().expect("what it was at the last sync").1
    }

    fn sync(&mut self, cache: &Cache) -> Result<(), CacheError> {
        wait(cache, |then| cache.sync(then))?;
        self.since.drain(..self.since.len() - 1);
        Ok(())
    }

    fn read(&mut self, cache: &Cache) -> Result<(), CacheError> {
        let mut at = self.random.below(OBJECT_BYTES as u64 - 1) as usize;
        loop {
            let len = (1 + self.random.below(30_000) as usize).min(OBJECT_BYTES - at);
            let end = OBJECT_BYTES as u64;
            let found = wait(cache, |then| {
                cache.read(self.object, at as u64, len, end, then);
            })?;
            assert!(found == self.now()[at..at + len], "object {} at {at}+{len}", self.object);
            at += len;
            // A client that continues in order has pages read ahead while others change theirs.
            if at == OBJECT_BYTES || self.random.once_in(2) {
                return Ok(());
            }
        }
    }

    fn change(&mut self, cache: &Cache) -> Result<(), CacheError> {
        let mut object = self.object;
        let mut content = self.now().to_vec();
        let at = self.random.below(OBJECT_BYTES as u64 - 1) as usize;
        let most = if self.random.once_in(3) { 30_000 } else { 500 };
        let len = (1 + self.random.below(most) as usize).min(OBJECT_BYTES - at);
        let bytes = vec![1 + self.random.below(255) as u8; len];
        let change = match self.random.below(12) {
            0 => {
                content.fill(0);
                object.generation += 1;
                ObjectChange::Delete { object: self.object }
            }
            1 | 2 => {
                content[at..].fill(0);
                ObjectChange::Zero { object, offset: at as u64, len: u64::MAX / 4 }
            }
            _ => {
                content[at..at + len].copy_from_slice(&bytes);
                ObjectChange::Write { object, offset: at as u64, bytes: &bytes }
            }
        };
        let claim =
            if matches!(change, ObjectChange::Delete { .. }) { SpaceClaim::Frees } else { SpaceClaim::Data };
        let cost = TransactionCost { claim, ..TransactionCost::of(&[change]) };
        let mut reservation: SpaceReservation = wait(cache, |then| cache.admit(cost, then))?;
        cache.apply(&mut reservation, &[change])?;
        self.object = object;
        self.since.push((object, content));
        Ok(())
    }
}

fn work(cache: &Cache, task: BackgroundTask, ended: &AtomicBool) {
    while !ended.load(Ordering::Acquire) {
        if cache.step(task) == StepProgress::Idle {
            cache.wait(task, Duration::from_millis(500));
        }
    }
}

/// Runs clients and workers for a while, ends with or without a power failure, and checks what is left.
fn run(seed: u64, inline: bool, powerless: bool) {
    let disks = Disks::new(seed, 8192, 256, 32);
    let cache = open(&disks, inline);
    let clients_end = AtomicBool::new(false);
    let workers_end = AtomicBool::new(false);
    let clients = std::thread::scope(|scope| {
        let fetchers = [BackgroundTask::Fetch; 3];
        for task in fetchers.into_iter().chain(BackgroundTask::ALL) {
            scope.spawn({
                let cache = &cache;
                let end = &workers_end;
                move || work(cache, task, end)
            });
        }
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let cache = &cache;
                let end = &clients_end;
                scope.spawn(move || Client::new(number + 1, seed).run(cache, end))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        // Even while they are busy.
        assert_eq!(cache.grow_buffer(Some(400)).expect("devices that work"), 400);
        assert_eq!(cache.status().buffer_bytes, 397 * BLOCK_BYTES as u64);
        std::thread::sleep(Duration::from_millis(100 + seed % 7 * 10));
        if powerless {
            disks.power.cut_after(seed % 9);
        } else {
            clients_end.store(true, Ordering::Release);
        }
        let clients: Vec<Client> =
            clients.into_iter().map(|client| client.join().expect("a client that ends")).collect();
        workers_end.store(true, Ordering::Release);
        cache.stop();
        clients
    });
    if !powerless {
        cache.drain().expect("devices that work");
        let status = cache.status();
        let space = cache.store().space().now();
        assert_eq!((status.dirty_pages, status.pending_punches, space.reserved), (0, 0, 0), "{status:?}");
    }
    drop(cache);
    disks.crash();
    let cache = open(&disks, inline);
    for client in clients {
        let kept = if powerless { &client.since[..] } else { &client.since[client.since.len() - 1..] };
        let fits = |(object, content): &(ObjectId, Vec<u8>)| {
            cache.read_now(*object, 0, OBJECT_BYTES).expect("power") == *content
        };
        assert!(kept.iter().any(fits), "seed {seed}: object {} of {} states", client.object, kept.len());
    }
}

#[test]
fn clients_and_workers_together_end_with_everything_stored() {
    (0..4).for_each(|seed| run(seed, seed % 2 == 0, false));
}

#[test]
fn clients_and_workers_that_lose_power_leave_all_that_was_synced() {
    (0..8).for_each(|seed| run(seed, seed % 2 == 0, true));
}
