//! A section of a file: its length, a checksum, and one packed value.

use crate::error::TraceError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::path::Path;

/// Maximum size of an unpacked section, in bytes. The limit stops hostile files.
const SECTION_BYTES_MAX: u64 = 16 << 30;
/// Compression level: fast, and within a few per cent of the slower levels on these records.
const LEVEL: i32 = 3;

/// Writes one section.
pub fn write_section(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    let plain = postcard::to_stdvec(value).map_err(io::Error::other)?;
    let bytes = zstd::bulk::compress(&plain, LEVEL)?;
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    out.write_all(&crc32c::crc32c(&bytes).to_le_bytes())?;
    out.write_all(&[0; 4])?;
    out.write_all(&bytes)
}

/// Reads one section.
pub fn read_section<T: DeserializeOwned>(
    input: &mut impl Read,
    path: &Path,
    section: &'static str,
) -> Result<T, TraceError> {
    let wrong = |why: String| TraceError::Contents { path: path.into(), section, why };
    let cut = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => wrong("cut off".into()),
        _ => TraceError::io("reading", path)(error),
    };
    let mut head = [0; 16];
    input.read_exact(&mut head).map_err(cut)?;
    let (length, rest) = head.split_first_chunk().expect("16 bytes");
    let (expected, _) = rest.split_first_chunk().expect("8 bytes");
    let (length, expected) = (u64::from_le_bytes(*length), u32::from_le_bytes(*expected));
    let mut bytes = Vec::new();
    input.take(length).read_to_end(&mut bytes).map_err(cut)?;
    if bytes.len() as u64 != length {
        return Err(wrong("cut off".into()));
    }
    let found = crc32c::crc32c(&bytes);
    if found != expected {
        return Err(TraceError::Checksum { path: path.into(), section, found, expected });
    }
    let mut plain = Vec::new();
    let unpacked = zstd::stream::Decoder::with_buffer(&bytes[..]);
    unpacked
        .and_then(|decoder| decoder.take(SECTION_BYTES_MAX).read_to_end(&mut plain))
        .map_err(|error| wrong(error.to_string()))?;
    drop(bytes);
    postcard::from_bytes(&plain).map_err(|error| wrong(error.to_string()))
}
