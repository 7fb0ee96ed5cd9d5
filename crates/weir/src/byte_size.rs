//! Sizes as people write them.

use device::BLOCK_BYTES;
use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

/// The letter of each unit, and its power of two.
const UNITS: [(&str, u32); 6] = [("B", 0), ("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50)];

const MEGABYTE: u128 = 1_000_000;

/// Digits after the point: no unit has more than 15 of them in decimal.
const FRACTION_DIGITS_MAX: usize = 15;

const HOW_TO_WRITE: &str =
    "write a number and a unit, such as 512MiB or 1.5GiB (multiples of 1024), or 8GB (of 1000)";

impl FromStr for ByteSize {
    type Err = String;

    /// Parses a size: `512K`, `256MiB` and `1.5g` are multiples of 1024, as everywhere in storage; `8GB` is a
    /// multiple of 1000, as on the label of a disk. A size in megabytes or more is rounded down to whole
    /// blocks, a smaller one to bytes.
    fn from_str(text: &str) -> Result<ByteSize, String> {
        let text = text.trim();
        if text.starts_with('-') {
            return Err(format!("a size cannot be negative; {HOW_TO_WRITE}"));
        }
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit_bytes = unit_bytes(unit.trim())
            .ok_or_else(|| format!("{:?} is not a unit; {HOW_TO_WRITE}", unit.trim()))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let is_number =
            |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
            return Err(HOW_TO_WRITE.into());
        }
        if unit_bytes == 1 && number.contains('.') {
            return Err(format!(
                "a number without a unit is in bytes, which have no fractions; {HOW_TO_WRITE}"
            ));
        }
        let too_many = || "a number of bytes must fit into 64 bits".to_string();
        let whole: u128 = whole.parse().map_err(|_| too_many())?;
        let part: u128 = fraction.parse().map_err(|_| too_many())?;
        let part = part * unit_bytes / 10u128.pow(fraction.len() as u32);
        let bytes = whole.checked_mul(unit_bytes).and_then(|whole| whole.checked_add(part));
        // Few multiples of a power of ten are whole blocks. A user who writes megabytes does not care about
        // part of a block.
        let rest = |bytes: u128| if unit_bytes >= MEGABYTE { bytes % BLOCK_BYTES as u128 } else { 0 };
        let bytes = bytes.map(|bytes| bytes - rest(bytes));
        bytes.and_then(|bytes| u64::try_from(bytes).ok()).map(ByteSize).ok_or_else(too_many)
    }
}

/// The bytes of a unit, in any spelling.
fn unit_bytes(unit: &str) -> Option<u128> {
    let unit = unit.to_ascii_uppercase();
    let power = |letter: &str| (1..UNITS.len()).find(|power| UNITS[*power].0 == letter);
    match (unit.as_str(), unit.strip_suffix("IB"), unit.strip_suffix('B')) {
        ("" | "B", ..) => Some(1),
        (_, Some(letter), _) => power(letter).map(|power| 1024u128.pow(power as u32)),
        (_, None, Some(letter)) => power(letter).map(|power| 1000u128.pow(power as u32)),
        (letter, None, None) => power(letter).map(|power| 1024u128.pow(power as u32)),
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = UNITS.iter().rev();
        let (name, shift) = units.into_iter().find(|(_, shift)| self.0 >> shift != 0).unwrap_or(&UNITS[0]);
        let whole = self.0 >> shift;
        match (name, self.0 == whole << shift) {
            (&"B", _) => write!(f, "{} B", self.0),
            (name, true) => write!(f, "{whole} {name}iB"),
            (name, false) => write!(f, "{:.1} {name}iB", self.0 as f64 / (1u64 << shift) as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usual_spelling_is_understood() {
        let bytes = |text: &str| text.parse::<ByteSize>().map(|size| size.0);
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("512k"), Ok(512 << 10));
        assert_eq!(bytes("256MiB"), Ok(256 << 20));
        assert_eq!(bytes("8g"), Ok(8 << 30));
        assert_eq!(bytes("8 GB"), Ok(8_000_000_000));
        assert_eq!(bytes("64kB"), Ok(64_000));
        assert_eq!(bytes("10GB"), Ok(9_999_998_976));
        assert_eq!(bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(bytes("0.1K"), Ok(102));
        assert_eq!(bytes("15.999999999999999P"), Ok((16 << 50) - 4096));
        assert_eq!(bytes("0"), Ok(0));
        for wrong in [
            "",
            "GiB",
            "-1",
            "1.5",
            "1.",
            ".5G",
            "1.2.3G",
            "1,5G",
            "8 BiB",
            "8 BB",
            "8 parsecs",
            "99999999999G",
            "16777216T",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong} was taken");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        let shown =
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (8 << 30, "8 GiB"), (u64::MAX, "16384.0 PiB")];
        for (bytes, text) in shown {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }
}
