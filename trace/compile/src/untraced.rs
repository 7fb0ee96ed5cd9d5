//! Counts the I/O of a program that a trace of system calls does not show.

use crate::decode::has_flag;
use crate::event::{EventKind, Recorded, TraceEvent, Value};
use trace_file::UntracedIo;

/// Counts the io_uring rings and shared mappings that one event creates.
pub(crate) fn count_untraced(unseen: &mut UntracedIo, event: &TraceEvent) {
    let EventKind::Call { name, args, result: Recorded::Value(..) } = &event.what else { return };
    let has = |at: usize, flag: &str| args.get(at).is_some_and(|value| has_flag(value, flag));
    let file = matches!(args.get(4), Some(Value::Descriptor { note, .. }) if note.starts_with(b"/"));
    match name.as_str() {
        "io_uring_setup" => unseen.rings += 1,
        "mmap" | "mmap2" if file && has(2, "PROT_WRITE") => {
            let shared = has(3, "MAP_SHARED") || has(3, "MAP_SHARED_VALIDATE");
            unseen.shared_mappings += u64::from(shared);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Source, Strace};

    fn seen(text: &str) -> UntracedIo {
        let (mut source, mut unseen) = (Strace::new(text.as_bytes()), UntracedIo::default());
        while let Some(event) = source.next_event().expect("memory does not fail") {
            count_untraced(&mut unseen, &event);
        }
        unseen
    }

    #[test]
    fn mappings_are_counted_where_the_trace_has_numbers_for_flags() {
        let text = "mmap(NULL, 4096, 0x3, 0x1, 4</srv/a>, 0) = 0x7f00\n\
            mmap(NULL, 4096, 0x3 /* PROT_READ|PROT_WRITE */, 0x2 /* MAP_PRIVATE */, 4</srv/a>, 0) = 0x7f00\n";
        assert_eq!(seen(text), UntracedIo { rings: 0, shared_mappings: 1 });
    }

    #[test]
    fn rings_and_writable_shared_mappings_of_files_are_counted() {
        let text = "io_uring_setup(8, {flags=0}) = 3\nio_uring_setup(8, {flags=0}) = -1 EPERM (Not permitted)\n\
            mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 4</srv/a>, 0) = 0x7f00\n\
            mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_PRIVATE, 4</srv/a>, 0) = 0x7f00\n\
            mmap(NULL, 4096, PROT_READ, MAP_SHARED, 4</srv/a>, 0) = 0x7f00\n\
            mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_ANONYMOUS, -1, 0) = 0x7f00\n";
        let unseen = seen(text);
        assert_eq!(unseen, UntracedIo { rings: 1, shared_mappings: 1 });
        assert_eq!(unseen.warnings().len(), 2);
    }
}
