//! The classes that `weir class --pid` assigns to running processes and threads.
//!
//! A class assigned to a thread comes before that of its process, and that before those of the parent process and
//! further ancestors.

use host::{TaskOrigin, TaskReadError, TaskSnapshot};
use request::RequestClass;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most ancestors of a process that are looked at.
const ANCESTORS_MAX: usize = 128;

/// The assigned classes, by the id of the process or thread.
#[derive(Default)]
pub(crate) struct AssignedClasses {
    assigned: Mutex<HashMap<u32, AssignedClass>>,
}

/// The class of a process or thread, which its start tells apart from later ones with the same id.
#[derive(Clone, Copy)]
struct AssignedClass {
    start_ticks: u64,
    class: RequestClass,
}

impl AssignedClasses {
    /// Assigns a class to the process or thread `id`, or withdraws it. Drops the classes of ended ones. After an error the
    /// classes are unchanged.
    pub(crate) fn assign(&self, id: u32, class: Option<RequestClass>) -> Result<(), TaskReadError> {
        self.assign_by(host::read_task_origin, id, class)
    }

    fn assign_by(
        &self,
        origin_of: impl Fn(u32) -> Result<TaskOrigin, TaskReadError>,
        id: u32,
        class: Option<RequestClass>,
    ) -> Result<(), TaskReadError> {
        let mut assigned = self.assigned();
        match class {
            Some(class) => {
                let start_ticks = origin_of(id)?.start_ticks;
                assigned.insert(id, AssignedClass { start_ticks, class });
            }
            None => {
                assigned.remove(&id);
            }
        }
        assigned.retain(|&id, assigned| match origin_of(id) {
            Ok(found) => found.start_ticks == assigned.start_ticks,
            Err(TaskReadError::Gone) => false,
            // It may run.
            Err(_) => true,
        });
        Ok(())
    }

    /// The class of a task, if one was assigned.
    pub(crate) fn class_of(&self, task: u32, found: &TaskSnapshot) -> Option<RequestClass> {
        nearest_class(&self.assigned(), task, found, |id| host::read_task_origin(id).ok())
    }

    fn assigned(&self) -> MutexGuard<'_, HashMap<u32, AssignedClass>> {
        self.assigned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The class assigned to a task or its nearest ancestor. `origin_of` returns the origin of a process.
fn nearest_class(
    assigned: &HashMap<u32, AssignedClass>,
    task: u32,
    found: &TaskSnapshot,
    origin_of: impl Fn(u32) -> Option<TaskOrigin>,
) -> Option<RequestClass> {
    if assigned.is_empty() {
        return None;
    }
    let class_of = |id: u32, start_ticks: u64| {
        assigned
            .get(&id)
            .filter(|assigned| assigned.start_ticks == start_ticks)
            .map(|assigned| assigned.class)
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
    fn class(assigned: &[(u32, u64, RequestClass)]) -> Option<RequestClass> {
        let assigned = assigned
            .iter()
            .map(|&(id, start_ticks, class)| (id, AssignedClass { start_ticks, class }))
            .collect();
        let found =
            TaskSnapshot { facts: TaskFacts::default(), start_ticks: 35, has_terminal: false, process: 3 };
        nearest_class(&assigned, 30, &found, origin_of)
    }

    #[test]
    fn nearest_assignment_counts() {
        use RequestClass::{Background, Critical};
        assert_eq!(class(&[]), None);
        assert_eq!(class(&[(1, 10, Background)]), Some(Background));
        assert_eq!(class(&[(1, 10, Background), (2, 20, Critical)]), Some(Critical));
        assert_eq!(class(&[(2, 20, Critical), (3, 30, Background)]), Some(Background));
        assert_eq!(class(&[(3, 30, Background), (30, 35, Critical)]), Some(Critical));
    }

    #[test]
    fn ended_processes_take_no_space() {
        let classes = AssignedClasses::default();
        let class = Some(RequestClass::Background);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a child");
        classes.assign(child.id(), class).expect("it runs");
        child.kill().and_then(|()| child.wait()).expect("a child of ours");
        classes.assign(std::process::id(), class).expect("it runs");
        assert_eq!(classes.assigned().keys().copied().collect::<Vec<_>>(), [std::process::id()]);
        classes.assign(std::process::id(), None).expect("always possible");
        assert!(classes.assigned().is_empty());
        assert!(matches!(classes.assign(0, class), Err(TaskReadError::Gone)));
    }

    #[test]
    fn classes_are_kept_while_proc_cannot_be_read() {
        let classes = AssignedClasses::default();
        let own = std::process::id();
        let class = Some(RequestClass::Background);
        classes.assign(own, class).expect("it runs");
        let without_descriptors = |_| {
            let source = rustix::io::Errno::MFILE.into();
            Err(TaskReadError::Io { file: "stat", source })
        };
        let refused = classes.assign_by(without_descriptors, 1, class);
        assert!(matches!(refused, Err(TaskReadError::Io { .. })), "{refused:?}");
        classes.assign_by(without_descriptors, 1, None).expect("nothing is read");
        assert_eq!(classes.assigned().keys().copied().collect::<Vec<_>>(), [own]);
    }

    #[test]
    fn reused_ids_have_no_class() {
        assert_eq!(class(&[(3, 29, RequestClass::Background), (30, 34, RequestClass::Background)]), None);
    }
}
