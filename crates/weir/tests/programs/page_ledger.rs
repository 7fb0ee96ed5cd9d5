//! The example of the crate `client`: a ledger that changes pages in place, without a journal.

use crate::kills::{kills, random};
use crate::weir::Weir;
use std::time::Duration;

#[path = "../../../client/examples/ledger.rs"]
mod ledger;

use ledger::Ledger;

/// Each payment is there as a whole after a kill of the daemon, and all that were answered are there.
#[test]
fn payments_are_whole_after_kills_without_a_recovery() {
    let (seed, mut random) = random();
    let Some(mut weir) = Weir::start_with("1GiB", "16MiB", &[]) else { return };
    Ledger::open(&weir.path()).expect("a new ledger");
    for kill in 0..kills() {
        let alive = Duration::from_millis(random.below(300));
        let mut ledger = Ledger::open(&weir.path()).expect("a ledger");
        let mut answered = ledger.check().expect("a whole ledger");
        let answered = std::thread::scope(|scope| {
            let payer = scope.spawn(move || {
                while let Ok(payment) = ledger.pay_next() {
                    answered = payment;
                }
                answered
            });
            std::thread::sleep(alive);
            weir.kill();
            payer.join().expect("no panic")
        });
        weir.mount();
        let last = Ledger::open(&weir.path()).expect("a ledger").check();
        let last = last.unwrap_or_else(|error| panic!("seed {seed}, kill {kill}: {error}"));
        assert!(
            last >= answered,
            "seed {seed}, kill {kill}: {answered} payments were answered, {last} are there"
        );
    }
    weir.unmount_and_check();
}
