//! Large files on a mount with `--data ordered`, whose daemon is killed. The files must keep the promises of
//! semantics.md.

mod content;
mod copies;
mod files;
mod history;
mod judge;
mod records;
mod writer;

use crate::common::{VOLATILE, succeeds, weir};
use crate::kills::random;
use crate::streams::copies::{Copies, Copy, delete};
use crate::streams::history::{After, NEVER, Tick};
use crate::streams::judge::{Moments, Seen, judge};
use crate::streams::records::Records;
use crate::streams::writer::{Pace, Shape, World, Writer, copy_once};
use crate::weir::Weir;
use device::SeededRng;
use std::fs::{self, File};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const WRITERS: u32 = 3;

/// Options of a mount, and the bytes after which they let streams bypass the buffer.
struct Mode {
    options: &'static [&'static str],
    bypass_after: Option<u64>,
    disks: Disks,
}

/// The place of the buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disks {
    /// Beside the store: a sync of many bytes waits for the store.
    One,
    /// In memory: a sync logs all its bytes.
    Two,
}

const MODES: [Mode; 5] = [
    Mode {
        options: &["--data", "ordered", "--bypass-after", "1MiB"],
        bypass_after: Some(1 << 20),
        disks: Disks::One,
    },
    Mode {
        options: &["--data", "ordered", "--bypass-after", "0", "--dirty-age", "1"],
        bypass_after: Some(0),
        disks: Disks::One,
    },
    Mode {
        options: &[
            "--data",
            "ordered",
            "--bypass-after",
            "128KiB",
            "--memory",
            "32MiB",
            "--dirty",
            "8MiB",
            "--threads",
            "2",
        ],
        bypass_after: Some(128 << 10),
        disks: Disks::One,
    },
    Mode {
        options: &["--data", "ordered", "--bypass-after", "0", "--epoch-every", "1", "--dirty-age", "2"],
        bypass_after: Some(0),
        disks: Disks::One,
    },
    Mode {
        options: &["--data", "ordered", "--bypass-after", "64KiB", VOLATILE],
        bypass_after: Some(64 << 10),
        disks: Disks::Two,
    },
];

/// The sizes of a run.
#[derive(Clone, Copy)]
struct Size {
    store: &'static str,
    buffer: &'static str,
    pages_max: u64,
    alive_ms: u64,
}

const SMALL: Size = Size { store: "1GiB", buffer: "16MiB", pages_max: 4096, alive_ms: 1500 };
const LARGE: Size = Size { store: "4GiB", buffer: "64MiB", pages_max: 65536, alive_ms: 8000 };

/// Whether clones are made, too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum With {
    Nothing,
    Clones,
}

/// A store, and the history of all writes to it.
struct Run {
    weir: Weir,
    random: SeededRng,
    writers: Vec<Writer>,
    records: Records,
    copies: Copies,
    size: Size,
    with: With,
    seed: u64,
    kills: u64,
    seen: Seen,
}

impl Run {
    /// `None` where nothing can be mounted.
    fn start(size: Size, mode: &Mode, with: With, (seed, random): (u64, SeededRng)) -> Option<Run> {
        let start = match mode.disks {
            Disks::One => Weir::start_with,
            Disks::Two => Weir::start_on_two_disks,
        };
        let weir = start(size.store, size.buffer, mode.options)?;
        let shape = Shape { pages_max: size.pages_max, bypass_after: mode.bypass_after };
        let writers = (0..WRITERS).map(|which| {
            let dir = weir.path().join(format!("writer{which}"));
            fs::create_dir(&dir).expect("a directory");
            Writer::new(which + 1, dir, shape, seed)
        });
        let writers = writers.collect();
        // A writer that begins after the kill must not find the directory below the mount.
        let of_records = weir.path().join("records");
        fs::create_dir(&of_records).expect("a directory");
        File::open(weir.path()).and_then(|root| root.sync_all()).expect("a sync");
        let records = Records::new(of_records.join("all"), &weir.beside("ledger"));
        let (copies, seen) = Default::default();
        Some(Run { weir, random, writers, records, copies, size, with, seed, kills: 0, seen })
    }

    /// All threads write until the daemon is killed, at any moment; sometimes during or right after a clone.
    fn live(&mut self) -> Option<Copy> {
        let alive = Duration::from_millis(20 + self.random.below(self.size.alive_ms));
        self.records.begin_anew(Duration::from_millis(self.random.below(20)));
        let pace = if self.random.once_in(2) { Pace::Slow } else { Pace::Fast };
        self.writers.iter_mut().for_each(|writer| writer.set_pace(pace));
        copy_once(&self.weir.path());
        let world = World::default();
        let copies = self.with == With::Clones;
        let (copy, synced) = std::thread::scope(|scope| {
            for writer in &mut self.writers {
                scope.spawn(|| writer.live(&world));
            }
            scope.spawn(|| self.records.live(&world));
            std::thread::sleep(alive / 2);
            let synced = make_durable(&self.weir, &world, &mut self.random);
            std::thread::sleep(alive / 2);
            self.seen.bypassed += self.weir.daemon().status().counters.pages_bypassed;
            if copies {
                return (Some(self.copies.make_and_kill(&mut self.weir, &world, &mut self.random)), synced);
            }
            world.is_killed.store(true, Ordering::SeqCst);
            self.weir.kill();
            (None, synced)
        });
        self.kills += 1;
        self.writers.iter_mut().for_each(|writer| writer.history.all_synced = synced);
        copy
    }

    /// Mounts again and judges the files. Sometimes a kill hits the recovery before that.
    fn recover(&mut self, copy: Option<Copy>) {
        let when = format!("seed {}, after kill {}", self.seed, self.kills);
        let histories: Vec<_> =
            self.writers.iter().map(|writer| (writer.dir.clone(), writer.history.clone())).collect();
        if self.random.once_in(4) {
            self.weir.kill_while_mounting(Duration::from_micros(self.random.below(100_000)));
        }
        let mut of_copy = None;
        let is_first = self.random.once_in(2);
        let judge_copy = |run: &mut Run| {
            let copy = copy.as_ref()?;
            let known = (&histories[..], &run.records);
            run.copies.judge(&mut run.weir, copy, known, (&when, &mut run.random))
        };
        if is_first {
            of_copy = judge_copy(self);
        }
        self.weir.mount();
        let moments = self.judge(&when);
        if !is_first && copy.is_some() {
            self.weir.kill();
            of_copy = judge_copy(self);
            self.weir.mount();
        }
        // A copy only has changes that were durable.
        let fits = of_copy.is_none_or(|of_copy| of_copy.from <= moments.to);
        assert!(fits, "{when}: the copy is of {of_copy:?}, its volume of {moments:?}");
        self.look_at_old_copies(&when);
        if self.random.once_in(3) {
            // Nothing was changed since, so nothing is lost.
            self.weir.kill();
            self.weir.mount();
            self.records.begin_anew(Duration::ZERO);
            self.judge(&format!("{when}, and another at once"));
        }
    }

    fn look_at_old_copies(&mut self, when: &str) {
        if self.with == With::Nothing {
            return;
        }
        self.weir.kill();
        let gone = self.copies.look_again(&mut self.weir, &self.records, when, &mut self.random);
        self.weir.mount();
        if let Some(name) = gone {
            delete(&self.weir, &name);
        }
    }

    fn judge(&mut self, when: &str) -> Moments {
        let command = Moments { from: self.writers[0].history.all_synced, to: NEVER };
        let mut all = vec![("a command".to_owned(), command), ("records".into(), self.records.verify(when))];
        let mut of_writers = Vec::new();
        for writer in &self.writers {
            let name = writer.dir.display();
            let judged = judge(&writer.history, &writer.dir, After::Crash);
            let judged = judged.unwrap_or_else(|why| panic!("{when}: {name}: {why}"));
            let moments = judged.steps.moments(&writer.history);
            let missing = writer.history.ops.get(judged.steps.most);
            all.push((format!("{name}, {:?}, without {missing:?}", judged.steps), moments));
            of_writers.push(judged);
        }
        let moments = all.iter().map(|(_, moments)| *moments).fold(Moments::ANY, Moments::both);
        assert!(moments.from <= moments.to, "{when}: not one prefix of all changes: {all:#?}");
        for (writer, judged) in self.writers.iter_mut().zip(of_writers) {
            self.seen.add(judged.seen);
            writer.begin_anew(judged.files);
        }
        moments
    }
}

/// Sometimes runs a command that makes everything durable. Returns the begin of that command.
fn make_durable(mount: &Weir, world: &World, random: &mut SeededRng) -> Tick {
    let (command, options) = match random.below(6) {
        0 => ("sync", vec![]),
        // From then on no write bypasses the buffer (`journal`), or streams do (`ordered`).
        1 => ("tune", vec!["--data", ["journal", "ordered"][random.index(2)]]),
        _ => return 0,
    };
    let begun = world.tick();
    succeeds(weir().arg(command).arg(mount.path()).args(options));
    begun
}

fn run(size: Size, mode: &Mode, with: With, kills: u64, until: Option<Instant>, seed: (u64, SeededRng)) {
    let Some(mut run) = Run::start(size, mode, with, seed) else { return };
    while run.kills < kills && until.is_none_or(|until| Instant::now() < until) {
        let copy = run.live();
        let done: Vec<usize> = run.writers.iter().map(|writer| writer.history.ops.len()).collect();
        let begun = Instant::now();
        run.recover(copy);
        let (kills, records, took) = (run.kills, run.records.count(), begun.elapsed());
        println!("kill {kills}: {done:?} steps, {records} records, {:?}; judged in {took:?}", run.seen);
    }
    assert!(run.seen.bypassed > 0 || run.kills < 4, "no page bypassed the buffer");
    run.weir.unmount_and_check();
}

#[test]
fn streams_keep_what_is_promised_of_them_when_the_daemon_is_killed() {
    run(SMALL, &MODES[0], With::Nothing, 5, None, random());
}

#[test]
fn streams_keep_it_beside_a_buffer_on_another_disk() {
    run(SMALL, &MODES[4], With::Nothing, 5, None, random());
}

#[test]
fn a_clone_that_is_made_while_files_stream_is_one_moment_also_when_the_daemon_is_killed() {
    run(SMALL, &MODES[1], With::Clones, 4, None, random());
}

/// Three kills in one of the modes. `WEIR_STREAMS_MINUTES` sets the minutes of a long run, seed after seed.
#[test]
fn streams_keep_it_in_any_mode_for_as_long_as_one_wants() {
    let minutes = std::env::var("WEIR_STREAMS_MINUTES").ok();
    let minutes: Option<u64> =
        minutes.map(|minutes| minutes.parse().expect("WEIR_STREAMS_MINUTES is a number"));
    let until = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let (first, _) = random();
    for seed in first.. {
        let with = if seed % 7 < 3 { With::Clones } else { With::Nothing };
        let mode = &MODES[(seed % MODES.len() as u64) as usize];
        let size = if until.is_some() && seed % 3 == 0 { LARGE } else { SMALL };
        println!("seed {seed}");
        run(size, mode, with, if until.is_some() { 20 } else { 3 }, until, (seed, SeededRng::new(seed)));
        if until.is_none_or(|until| Instant::now() >= until) {
            break;
        }
    }
}
