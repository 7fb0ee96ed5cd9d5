//! Reading many ranges at once.

use crate::common::{Machine, OBJECT_BYTES, OBJECTS, Run};
use device::VolumeId;

#[test]
fn ranges_read_at_once_are_as_last_written() {
    for seed in 0..6 {
        let machine = Machine::new(seed);
        let mut run = Run::new(seed);
        let mut cache = machine.open().expect("sound media");
        for number in 0..400 {
            assert!(run.apply(&machine, &cache), "no faults");
            if number % 50 == 49 {
                // After a restart everything newer comes from the buffer.
                assert!(run.sync(&machine, &cache), "no faults");
                drop(cache);
                cache = machine.open().expect("sound media");
            }
            for slot in 0..OBJECTS {
                let object = VolumeId::MAIN.object(slot, run.generations.get(&slot).copied().unwrap_or(0));
                let at = run.random.below(OBJECT_BYTES as u64 - 2) as usize;
                let len = (1 + run.random.below(9000) as usize).min(OBJECT_BYTES - 1 - at);
                let content = run.history.now().bytes(object);
                let wanted = &content[at..at + len];
                let ranges = [(at as u64 + 1, len), (at as u64, len)];
                let found = cache.read_all_now(object, &ranges).expect("a store that works");
                assert!(found == [&content[at + 1..=at + len], wanted], "{object} at {at}+{len}");
            }
        }
    }
}
