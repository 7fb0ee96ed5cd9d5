//! Clones of the volume that are made while files stream. Each clone is a point in time with all its bytes.

use crate::common::{succeeds, weir};
use crate::streams::files::WriterFiles;
use crate::streams::history::{After, History, NEVER, Tick};
use crate::streams::judge::{Moments, judge};
use crate::streams::records::Records;
use crate::streams::writer::World;
use crate::weir::Weir;
use device::SeededRng;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Copies that stay for a while.
const KEPT: usize = 2;

/// A requested clone, and its possible content.
pub(super) struct Copy {
    name: String,
    begun: Tick,
    ended: Tick,
}

/// A copy with known content.
struct Kept {
    name: String,
    dirs: Vec<(PathBuf, WriterFiles)>,
    records: BTreeSet<u64>,
}

#[derive(Default)]
pub(super) struct Copies {
    made: u64,
    kept: Vec<Kept>,
}

impl Copies {
    /// Requests a copy, and kills the daemon during or after the copy.
    pub(super) fn make_and_kill(&mut self, weir: &mut Weir, world: &World, random: &mut SeededRng) -> Copy {
        self.made += 1;
        let mut copy = Copy { name: format!("copy{}", self.made), begun: world.tick(), ended: NEVER };
        let mut child = start(&weir.path(), &copy.name, random.once_in(2));
        if random.once_in(2) {
            let status = child.wait().expect("a child of ours");
            assert!(status.success(), "{}: {status}", copy.name);
            copy.ended = world.tick();
            std::thread::sleep(Duration::from_millis(random.below(300)));
        } else {
            std::thread::sleep(Duration::from_millis(random.below(80)));
        }
        world.is_killed.store(true, Ordering::SeqCst);
        weir.kill();
        if child.wait().expect("a child of ours").success() && copy.ended == NEVER {
            copy.ended = world.tick();
        }
        copy
    }

    /// Mounts a copy, if it exists, and judges it. Returns the moments that the copy may come from.
    pub(super) fn judge(
        &mut self,
        weir: &mut Weir,
        copy: &Copy,
        (histories, records): (&[(PathBuf, History)], &Records),
        (when, random): (&str, &mut SeededRng),
    ) -> Option<Moments> {
        if !weir.volumes().contains(&copy.name) {
            assert!(copy.ended == NEVER, "{when}: {} was made, and is not there", copy.name);
            return None;
        }
        weir.mount_volume(&copy.name, if random.once_in(2) { &["--read-only"] } else { &[] });
        let mut all = vec![("the command".to_owned(), Moments { from: copy.begun, to: copy.ended })];
        let found = records.judge(&records.path).unwrap_or_else(|why| panic!("{when}: {}: {why}", copy.name));
        all.push(("records".into(), found.moments));
        let mut dirs = Vec::new();
        for (dir, history) in histories {
            let judged = judge(history, dir, After::Clone);
            let judged =
                judged.unwrap_or_else(|why| panic!("{when}: {}, {}: {why}", copy.name, dir.display()));
            let moments = judged.steps.moments(history);
            all.push((format!("{}, {:?}", dir.display(), judged.steps), moments));
            dirs.push((dir.clone(), judged.files));
        }
        let moments = all.iter().map(|(_, moments)| *moments).fold(Moments::ANY, Moments::both);
        assert!(moments.from <= moments.to, "{when}: {} is not one moment: {all:#?}", copy.name);
        leave(weir, random);
        self.kept.push(Kept { name: copy.name.clone(), dirs, records: found.ids });
        Some(moments)
    }

    /// Checks that an older copy is unchanged. Returns its name, so that the caller can delete the copy.
    pub(super) fn look_again(
        &mut self,
        weir: &mut Weir,
        records: &Records,
        when: &str,
        random: &mut SeededRng,
    ) -> Option<String> {
        if self.kept.len() <= KEPT {
            return None;
        }
        let kept = self.kept.swap_remove(random.index(self.kept.len()));
        weir.mount_volume(&kept.name, &[]);
        for (dir, baseline) in kept.dirs {
            if let Err(why) = judge(&History::new(baseline), &dir, After::Clone) {
                panic!("{when}: {} has changed, {}: {why}", kept.name, dir.display());
            }
        }
        let found = records.judge(&records.path).expect("records");
        assert!(found.ids == kept.records, "{when}: {} has other records", kept.name);
        leave(weir, random);
        Some(kept.name)
    }
}

fn leave(weir: &mut Weir, random: &mut SeededRng) {
    if random.once_in(2) { weir.kill() } else { weir.unmount() }
}

fn start(dir: &Path, name: &str, is_read_only: bool) -> Child {
    let mut command = weir();
    command.args(["volume", "clone"]).args(is_read_only.then_some("--read-only")).arg(dir).arg(name);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
}

/// Deletes a copy while another volume is mounted.
pub(super) fn delete(weir_: &Weir, name: &str) {
    succeeds(weir().args(["volume", "delete"]).arg(weir_.path()).arg(name));
}
