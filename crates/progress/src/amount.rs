//! How much of some work is done.

use indicatif::{BinaryBytes, HumanCount};
use std::fmt;

/// The unit in which the user reads an amount of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkUnit {
    /// Bytes.
    Bytes,
    /// Things with a name in the plural, such as "actions".
    Things(&'static str),
    /// The amount is unknown. Only the time is shown.
    Unknown,
}

/// How much of some work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkAmount {
    /// The unit of both numbers.
    pub unit: WorkUnit,
    /// The part that is done.
    pub done: u64,
    /// About how much there is to do. `None` if that is not known. Less than `done` counts as `done`.
    pub total: Option<u64>,
}

impl fmt::Display for WorkAmount {
    /// Writes a text such as "3.10 GiB of about 8.00 GiB" or "200 of about 1,000 actions".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkAmount { unit, done, total } = *self;
        let total = total.map(|total| total.max(done));
        match (unit, total) {
            (WorkUnit::Bytes, Some(total)) => {
                write!(f, "{} of about {}", BinaryBytes(done), BinaryBytes(total))
            }
            (WorkUnit::Bytes, None) => write!(f, "{}", BinaryBytes(done)),
            (WorkUnit::Things(name), Some(total)) => {
                write!(f, "{} of about {} {name}", HumanCount(done), HumanCount(total))
            }
            (WorkUnit::Things(name), None) => write!(f, "{} {name}", HumanCount(done)),
            (WorkUnit::Unknown, _) => f.write_str("a part"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_as_text() {
        let bytes = |done, total| WorkAmount { unit: WorkUnit::Bytes, done, total }.to_string();
        assert_eq!(bytes(3 << 30, Some(8 << 30)), "3.00 GiB of about 8.00 GiB");
        assert_eq!(bytes(9 << 30, Some(8 << 30)), "9.00 GiB of about 9.00 GiB");
        assert_eq!(bytes(1536, None), "1.50 KiB");
        let actions = |done, total| WorkAmount { unit: WorkUnit::Things("actions"), done, total }.to_string();
        assert_eq!(actions(200, Some(1000)), "200 of about 1,000 actions");
        assert_eq!(actions(1000, None), "1,000 actions");
    }
}
