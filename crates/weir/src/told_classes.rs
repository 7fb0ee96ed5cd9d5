//! The classes of running processes, which `weir class --pid` tells the daemon.
//!
//! A task has the class of the nearest of these that was told: its thread, its process, the parent of that, and so
//! on.

use host::{TaskOrigin, TaskReadError, TaskSnapshot};
use request::RequestClass;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most ancestors of a process that are looked at.
const ANCESTORS_MAX: usize = 128;

/// Processes and threads with their classes, by id.
#[derive(Default)]
pub(crate) struct ToldClasses {
    told: Mutex<HashMap<u32, ToldClass>>,
}

/// The class of a process or thread with this start. A later one with the same id has no class.
#[derive(Clone, Copy)]
struct ToldClass {
    start_ticks: u64,
    class: RequestClass,
}

impl ToldClasses {
    /// Gives the process or thread `id` this class, or takes its class back. Forgets those that are gone.
    pub(crate) fn tell(&self, id: u32, class: Option<RequestClass>) -> Result<(), TaskReadError> {
        let mut told = self.told();
        told.retain(|&id, told| {
            host::read_task_origin(id).is_ok_and(|found| found.start_ticks == told.start_ticks)
        });
        match class {
            Some(class) => {
                let start_ticks = host::read_task_origin(id)?.start_ticks;
                told.insert(id, ToldClass { start_ticks, class });
            }
            None => {
                told.remove(&id);
            }
        }
        Ok(())
    }

    /// The class that was told for a task, if any.
    pub(crate) fn class_of(&self, task: u32, found: &TaskSnapshot) -> Option<RequestClass> {
        nearest_class(&self.told(), task, found, |id| host::read_task_origin(id).ok())
    }

    fn told(&self) -> MutexGuard<'_, HashMap<u32, ToldClass>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The told class that is nearest to a task. `origin_of` reads about a process.
fn nearest_class(
    told: &HashMap<u32, ToldClass>,
    task: u32,
    found: &TaskSnapshot,
    origin_of: impl Fn(u32) -> Option<TaskOrigin>,
) -> Option<RequestClass> {
    if told.is_empty() {
        return None;
    }
    let class_of = |id: u32, start_ticks: u64| {
        told.get(&id).filter(|told| told.start_ticks == start_ticks).map(|told| told.class)
    };
    if let Some(class) = class_of(task, found.start_ticks) {
        return Some(class);
    }
    let mut process = found.process;
    for _ in 0..ANCESTORS_MAX {
        let origin = origin_of(process)?;
        if let Some(class) = class_of(process, origin.start_ticks) {
            return Some(class);
        }
        process = origin.parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use request::TaskFacts;

    /// Process 1 started 2, which started 3. Each started at ten times its id.
    fn origin_of(id: u32) -> Option<TaskOrigin> {
        (1..=3).contains(&id).then(|| TaskOrigin { parent: id - 1, start_ticks: u64::from(id) * 10 })
    }

    /// The class of the thread 30 of process 3.
    fn class(told: &[(u32, u64, RequestClass)]) -> Option<RequestClass> {
        let told =
            told.iter().map(|&(id, start_ticks, class)| (id, ToldClass { start_ticks, class })).collect();
        let found = TaskSnapshot { facts: TaskFacts::default(), start_ticks: 35, process: 3 };
        nearest_class(&told, 30, &found, origin_of)
    }

    #[test]
    fn the_nearest_counts() {
        use RequestClass::{Background, Critical};
        assert_eq!(class(&[]), None);
        assert_eq!(class(&[(1, 10, Background)]), Some(Background));
        assert_eq!(class(&[(1, 10, Background), (2, 20, Critical)]), Some(Critical));
        assert_eq!(class(&[(2, 20, Critical), (3, 30, Background)]), Some(Background));
        assert_eq!(class(&[(3, 30, Background), (30, 35, Critical)]), Some(Critical));
    }

    #[test]
    fn an_earlier_process_with_the_same_id_does_not_count() {
        assert_eq!(class(&[(3, 29, RequestClass::Background), (30, 34, RequestClass::Background)]), None);
    }
}
