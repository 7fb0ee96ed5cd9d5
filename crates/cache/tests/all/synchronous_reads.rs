//! Reading many ranges at once: all of them now, or in the store first, with what is newer laid over it.

use crate::common::{Machine, OBJECT_BYTES, OBJECTS, Run};
use device::{ObjectId, VolumeId};

/// The bytes of an object from `offset` on, or `None` where it has to be read in the usual way.
fn read(cache: &cache::Cache, object: ObjectId, offset: u64, len: usize) -> Option<Vec<u8>> {
    let found = cache::read_stored(cache.store(), object, &[(offset, len), (offset + 1, len)]);
    let [mut bytes, mut shifted] = found.expect("a store that works").try_into().expect("as many as wanted");
    let laid = cache.overlay_memory(object, offset, &mut bytes);
    assert_eq!(laid, cache.overlay_memory(object, offset + 1, &mut shifted));
    assert!(!laid || bytes[1..] == shifted[..len - 1], "the same bytes from another offset on");
    laid.then_some(bytes)
}

#[test]
fn what_is_read_now_or_in_the_store_with_what_is_newer_over_it_is_what_was_written_last() {
    let mut whole = 0;
    let mut cut = 0;
    for seed in 0..6 {
        let machine = Machine::new(seed);
        let mut run = Run::new(seed);
        let mut cache = machine.open().expect("sound media");
        for number in 0..400 {
            assert!(run.apply(&machine, &cache), "no faults");
            if number % 50 == 49 {
                // Opened anew, all of what is newer is what was found in the buffer.
                assert!(run.sync(&machine, &cache), "no faults");
                drop(cache);
                cache = machine.open().expect("sound media");
            }
            let now = run.now();
            for slot in 0..OBJECTS {
                let object = VolumeId::MAIN.object(slot, run.generations.get(&slot).copied().unwrap_or(0));
                let at = run.random.below(OBJECT_BYTES as u64 - 2) as usize;
                let len = (1 + run.random.below(9000) as usize).min(OBJECT_BYTES - 1 - at);
                let zeros = vec![0; OBJECT_BYTES];
                let content = now.get(&object).unwrap_or(&zeros);
                let wanted = &content[at..at + len];
                let ranges = [(at as u64 + 1, len), (at as u64, len)];
                let found = cache.read_all_now(object, &ranges).expect("a store that works");
                assert!(found == [&content[at + 1..=at + len], wanted], "{object} at {at}+{len}");
                match read(&cache, object, at as u64, len) {
                    Some(found) => {
                        assert!(found == wanted, "seed {seed}, {number}: {object} at {at}+{len}");
                        whole += 1;
                    }
                    // Where a cut is on its way.
                    None => {
                        assert!(cache.status().pending_punches > 0, "nothing of {object} is cut");
                        cut += 1;
                    }
                }
            }
        }
    }
    assert!(whole > 1000 && cut > 1000, "{whole} and {cut} cases");
}
