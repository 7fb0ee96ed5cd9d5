//! Tests of the order of locks. A file of their own: `tests/hand_over.rs` compiles `locks.rs` with locks that
//! exist only while one of its models runs.

use crate::locks::{CacheLock, OrderedMutex};

#[test]
fn locks_are_taken_in_order_and_again_after_release() {
    let early = OrderedMutex::new(CacheLock::WriteBack, 1);
    let late = OrderedMutex::new(CacheLock::State, 2);
    for _ in 0..2 {
        let one = early.lock();
        assert_eq!(*one + *late.lock(), 3);
    }
}

#[test]
#[should_panic(expected = "WriteBack is taken by a thread that holds")]
fn lock_taken_out_of_order_panics() {
    let early = OrderedMutex::new(CacheLock::WriteBack, ());
    let late = OrderedMutex::new(CacheLock::State, ());
    let _late = late.lock();
    drop(early.lock());
}
