//! What a program does behind the back of a trace of system calls.

use crate::decode::has_flag;
use crate::event::{Event, Recorded, Value, What};
use serde::{Deserialize, Serialize};

/// Work that a trace shows to exist, and not what it is. A replay leaves it out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unseen {
    /// io_uring rings: their requests are in shared memory.
    pub rings: u64,
    /// Mappings of files that may be stored to, and that others see.
    pub shared_mappings: u64,
}

impl Unseen {
    /// Looks at one event.
    pub fn add(&mut self, event: &Event) {
        let What::Call { name, args, result: Recorded::Value(..) } = &event.what else { return };
        let has = |at: usize, flag: &str| args.get(at).is_some_and(|value| has_flag(value, flag));
        let file = matches!(args.get(4), Some(Value::Descriptor { note, .. }) if note.starts_with(b"/"));
        match name.as_str() {
            "io_uring_setup" => self.rings += 1,
            "mmap" | "mmap2" if file && has(2, "PROT_WRITE") => {
                let shared = has(3, "MAP_SHARED") || has(3, "MAP_SHARED_VALIDATE");
                self.shared_mappings += u64::from(shared);
            }
            _ => {}
        }
    }

    /// For people, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let Unseen { rings, shared_mappings } = self;
        let ring = (*rings > 0).then(|| {
            format!("{rings} io_uring rings: a trace does not show their requests; switch io_uring off in the program")
        });
        let mapping = (*shared_mappings > 0).then(|| {
            format!(
                "{shared_mappings} writable shared mappings of files: stores to them are not in the trace"
            )
        });
        ring.into_iter().chain(mapping).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Source, Strace};

    fn seen(text: &str) -> Unseen {
        let (mut source, mut unseen) = (Strace::new(text.as_bytes()), Unseen::default());
        while let Some(event) = source.next_event().expect("memory does not fail") {
            unseen.add(&event);
        }
        unseen
    }

    #[test]
    fn mappings_are_counted_where_the_trace_has_numbers_for_flags() {
        let text = "mmap(NULL, 4096, 0x3, 0x1, 4</srv/a>, 0) = 0x7f00\n\
            mmap(NULL, 4096, 0x3 /* PROT_READ|PROT_WRITE */, 0x2 /* MAP_PRIVATE */, 4</srv/a>, 0) = 0x7f00\n";
        assert_eq!(seen(text), Unseen { rings: 0, shared_mappings: 1 });
    }

    #[test]
    fn rings_and_writable_shared_mappings_of_files_are_counted() {
        let text = "io_uring_setup(8, {flags=0}) = 3\nio_uring_setup(8, {flags=0}) = -1 EPERM (Not permitted)\n\
            mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 4</srv/a>, 0) = 0x7f00\n\
            mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_PRIVATE, 4</srv/a>, 0) = 0x7f00\n\
            mmap(NULL, 4096, PROT_READ, MAP_SHARED, 4</srv/a>, 0) = 0x7f00\n\
            mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_ANONYMOUS, -1, 0) = 0x7f00\n";
        let unseen = seen(text);
        assert_eq!(unseen, Unseen { rings: 1, shared_mappings: 1 });
        assert_eq!(unseen.warnings().len(), 2);
    }
}
