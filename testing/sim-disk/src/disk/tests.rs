use super::*;

fn page(byte: u8) -> Vec<Page> {
    vec![Page([byte; BLOCK_BYTES])]
}

fn read(disk: &SimDisk, at: u64) -> Page {
    let mut into = device::pages(1);
    disk.read(Block(at), &mut into).expect("a read in range");
    into[0].clone()
}

#[test]
fn a_simulated_disk_keeps_the_contract() {
    device::check_contract(&*SimDisk::new("disk", 64, &PowerSupply::new(), 1));
    device::check_growth(&*SimDisk::new("disk", 64, &PowerSupply::new(), 1));
}

#[test]
fn what_was_flushed_survives_every_crash() {
    for seed in 0..50 {
        let power = PowerSupply::new();
        let disk = SimDisk::new("disk", 64, &power, seed);
        disk.write(Block(3), &page(1)).expect("power is on");
        disk.flush().expect("power is on");
        power.cut();
        disk.crash();
        power.restore();
        assert_eq!(read(&disk, 3), page(1)[0]);
    }
}

#[test]
fn what_was_not_flushed_is_sometimes_kept_sometimes_lost_and_sometimes_torn() {
    let mut outcomes = std::collections::HashSet::new();
    for seed in 0..200 {
        let power = PowerSupply::new();
        let disk = SimDisk::new("disk", 64, &power, seed);
        disk.write(Block(3), &page(1)).expect("power is on");
        power.cut_after(0);
        assert!(disk.flush().is_err());
        assert!(disk.write(Block(4), &page(1)).is_err(), "the disk works without power");
        disk.crash();
        power.restore();
        let ones = read(&disk, 3).0.iter().filter(|&&byte| byte == 1).count();
        assert_eq!(ones % SECTOR_BYTES, 0, "torn within a sector");
        outcomes.insert(match ones {
            0 => "lost",
            BLOCK_BYTES => "kept",
            _ => "torn",
        });
    }
    assert_eq!(outcomes.len(), 3);
}

#[test]
fn one_error_comes_when_it_was_ordered_and_no_other_follows() {
    let disk = SimDisk::new("disk", 64, &PowerSupply::new(), 1);
    disk.set_faults(DiskFaults { once_after: Some(2), ..DiskFaults::default() });
    disk.write(Block(0), &page(7)).expect("the first goes well");
    disk.flush().expect("the second goes well");
    let mut into = device::pages(1);
    let error = disk.read(Block(0), &mut into).expect_err("the third fails");
    assert!(error.reason.starts_with("made-up"), "{error}");
    assert_eq!(read(&disk, 0), page(7)[0]);
    disk.write(Block(1), &page(8)).expect("and no other");
    disk.flush().expect("and no other");
}

#[test]
fn a_fork_and_its_origin_do_not_see_each_others_writes() {
    let disk = SimDisk::new("disk", 64, &PowerSupply::new(), 1);
    disk.write(Block(0), &page(1)).expect("power");
    disk.flush().expect("power");
    let fork = disk.fork(&PowerSupply::new(), 2);
    fork.rot(Block(0), 0);
    disk.write(Block(0), &page(2)).expect("power");
    assert_eq!((read(&disk, 0).0[0], read(&fork, 0).0[0]), (2, 0));
}

#[test]
fn a_failed_flush_says_so_and_may_drop_writes_for_good() {
    let mut dropped = 0;
    for seed in 0..50 {
        let disk = SimDisk::new("disk", 64, &PowerSupply::new(), seed);
        disk.set_faults(DiskFaults { flush_one_in: 1, ..DiskFaults::default() });
        disk.write(Block(0), &page(7)).expect("writes do not fail");
        assert!(disk.flush().is_err());
        disk.set_faults(DiskFaults::default());
        disk.flush().expect("no faults any more");
        dropped += u32::from(read(&disk, 0) == Page::ZERO);
    }
    assert!((10..40).contains(&dropped), "{dropped} of 50");
}

#[test]
fn what_a_failed_flush_dropped_may_be_read_until_the_power_is_lost_and_not_afterwards() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..50 {
        let power = PowerSupply::new();
        let disk = SimDisk::new("disk", 64, &power, seed);
        disk.set_dropped(DroppedWrites::AtPowerLoss);
        disk.set_faults(DiskFaults { flush_one_in: 1, ..DiskFaults::default() });
        disk.write(Block(0), &page(7)).expect("writes do not fail");
        assert!(disk.flush().is_err());
        disk.set_faults(DiskFaults::default());
        disk.flush().expect("no faults any more");
        assert_eq!(read(&disk, 0), page(7)[0], "a page cache has it");
        power.cut();
        disk.crash();
        power.restore();
        match read(&disk, 0) == page(7)[0] {
            true => new += 1,
            false => old += 1,
        }
    }
    assert!(old > 10 && new > 10, "{old} dropped, {new} kept");
}

#[test]
fn a_trim_that_fails_says_so_and_no_other_operation_fails_for_it() {
    let disk = SimDisk::new("disk", 64, &PowerSupply::new(), 1);
    disk.set_faults(DiskFaults { trim_one_in: 1, ..DiskFaults::default() });
    disk.write(Block(0), &page(7)).and_then(|()| disk.flush()).expect("only trims fail");
    assert!(disk.trim(Block(0), 4).is_err());
    disk.flush().expect("only trims fail");
}

#[test]
fn damage_is_met_until_the_block_is_written_or_healed() {
    let disk = SimDisk::new("disk", 64, &PowerSupply::new(), 1);
    disk.write(Block(0), &page(7)).and_then(|()| disk.write(Block(1), &page(7))).expect("power");
    assert!(disk.is_unused(Block(2)) && !disk.is_unused(Block(0)));
    for at in [0, 2] {
        disk.damage(Block(at), BlockDamage::Unreadable);
    }
    disk.damage(Block(1), BlockDamage::Rot(8));
    let mut into = device::pages(3);
    assert!(disk.read(Block(0), &mut into).is_err() && disk.read(Block(2), &mut into[..1]).is_err());
    assert_eq!((read(&disk, 1).0[1], disk.rot_reads()), (6, 1));
    disk.write(Block(0), &page(8)).expect("it can be written");
    assert_eq!(read(&disk, 0), page(8)[0]);
    disk.heal();
    assert_eq!((read(&disk, 1), read(&disk, 2)), (page(7)[0].clone(), Page::ZERO));
}
