//! Decides what a request asks of the `Disk`, or why the request is refused. No I/O happens here.

use crate::disk::Durability;
use crate::negotiation::{ExportDescription, NegotiatedFeatures};
use crate::protocol::{
    NBD_CMD_BLOCK_STATUS, NBD_CMD_FLAG_DF, NBD_CMD_FLAG_FAST_ZERO, NBD_CMD_FLAG_FUA, NBD_CMD_FLAG_NO_HOLE,
    NBD_CMD_FLAG_REQ_ONE, NBD_CMD_FLUSH, NBD_CMD_READ, NBD_CMD_TRIM, NBD_CMD_WRITE, NBD_CMD_WRITE_ZEROES,
    NbdErrno, PAYLOAD_BYTES_MAX, RequestHeader,
};
use crate::reply::ReplyFormat;

/// The most extents in the reply to one BLOCK_STATUS, 32 KiB of descriptors. The client asks again for the
/// rest.
const EXTENTS_MAX: usize = 4096;

/// A request without faults: its range is inside the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckedRequest {
    Read {
        offset: u64,
        /// At most [`PAYLOAD_BYTES_MAX`].
        len: usize,
    },
    Write {
        offset: u64,
        /// At most [`PAYLOAD_BYTES_MAX`].
        len: usize,
        durability: Durability,
    },
    Zero {
        offset: u64,
        len: u64,
        durability: Durability,
    },
    Flush,
    BlockStatus {
        offset: u64,
        /// At least 1.
        len: u64,
        extents_max: usize,
    },
}

/// The reason why the server refuses a request without asking the `Disk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidRequest {
    pub(crate) errno: NbdErrno,
    /// A sentence for the person who wrote the client.
    pub(crate) message: &'static str,
}

impl CheckedRequest {
    /// The payload bytes that the request holds in memory until its reply is written.
    pub(crate) fn payload_bytes(self) -> usize {
        match self {
            CheckedRequest::Read { len, .. } | CheckedRequest::Write { len, .. } => len,
            CheckedRequest::Zero { .. } | CheckedRequest::Flush | CheckedRequest::BlockStatus { .. } => 0,
        }
    }
}

/// Checks a request against the export and the features of the connection.
pub(crate) fn check(
    header: &RequestHeader,
    features: &NegotiatedFeatures,
    export: &ExportDescription,
) -> Result<CheckedRequest, InvalidRequest> {
    let Some(allowed) = allowed_flags(header.command, features) else {
        return invalid(NbdErrno::Einval, "the server does not know this command");
    };
    if header.flags & !allowed != 0 {
        return invalid(NbdErrno::Einval, "the command does not have these flags");
    }
    let is_fua = header.flags & NBD_CMD_FLAG_FUA != 0;
    let durability = if is_fua { Durability::Now } else { Durability::Later };
    let offset = header.offset;
    match header.command {
        NBD_CMD_FLUSH => Ok(CheckedRequest::Flush),
        NBD_CMD_READ => {
            check_payload(header)?;
            check_range(header, export, NbdErrno::Einval)?;
            Ok(CheckedRequest::Read { offset, len: header.len as usize })
        }
        NBD_CMD_WRITE => {
            check_writable(export)?;
            check_payload(header)?;
            check_range(header, export, NbdErrno::Enospc)?;
            Ok(CheckedRequest::Write { offset, len: header.len as usize, durability })
        }
        NBD_CMD_TRIM | NBD_CMD_WRITE_ZEROES => {
            check_writable(export)?;
            let is_trim = header.command == NBD_CMD_TRIM;
            let past_end = if is_trim { NbdErrno::Einval } else { NbdErrno::Enospc };
            check_range(header, export, past_end)?;
            Ok(CheckedRequest::Zero { offset, len: header.len.into(), durability })
        }
        // BLOCK_STATUS: all other commands have no allowed flags.
        _ => {
            if !features.has_allocation_context {
                return invalid(NbdErrno::Einval, "the client has not selected base:allocation");
            }
            if header.len == 0 {
                return invalid(NbdErrno::Einval, "the range is empty");
            }
            check_range(header, export, NbdErrno::Einval)?;
            let wants_one = header.flags & NBD_CMD_FLAG_REQ_ONE != 0;
            let extents_max = if wants_one { 1 } else { EXTENTS_MAX };
            Ok(CheckedRequest::BlockStatus { offset, len: header.len.into(), extents_max })
        }
    }
}

/// The flags that a command may have. `None`: the server does not know the command.
fn allowed_flags(command: u16, features: &NegotiatedFeatures) -> Option<u16> {
    let flags_of_command = match command {
        NBD_CMD_READ if features.reply_format == ReplyFormat::Structured => NBD_CMD_FLAG_DF,
        NBD_CMD_READ | NBD_CMD_WRITE | NBD_CMD_FLUSH | NBD_CMD_TRIM => 0,
        NBD_CMD_WRITE_ZEROES => NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO,
        NBD_CMD_BLOCK_STATUS => NBD_CMD_FLAG_REQ_ONE,
        _ => return None,
    };
    // Commands that change nothing accept FUA, too, and ignore it.
    Some(flags_of_command | NBD_CMD_FLAG_FUA)
}

fn check_writable(export: &ExportDescription) -> Result<(), InvalidRequest> {
    if export.is_read_only {
        return invalid(NbdErrno::Eperm, "the export is read-only");
    }
    Ok(())
}

fn check_payload(header: &RequestHeader) -> Result<(), InvalidRequest> {
    if header.len > PAYLOAD_BYTES_MAX {
        return invalid(NbdErrno::Einval, "the request is longer than 32 MiB");
    }
    Ok(())
}

fn check_range(
    header: &RequestHeader,
    export: &ExportDescription,
    past_end: NbdErrno,
) -> Result<(), InvalidRequest> {
    match header.offset.checked_add(header.len.into()) {
        Some(end) if end <= export.size => Ok(()),
        _ => invalid(past_end, "the range ends after the end of the export"),
    }
}

fn invalid<T>(errno: NbdErrno, message: &'static str) -> Result<T, InvalidRequest> {
    Err(InvalidRequest { errno, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use NbdErrno::{Einval, Enospc, Eperm};

    const SIZE: u64 = 1 << 40;

    fn check_with(
        command: u16,
        flags: u16,
        offset: u64,
        len: u32,
        is_read_only: bool,
    ) -> Result<CheckedRequest, NbdErrno> {
        let header = RequestHeader { flags, command, cookie: 0, offset, len };
        let features =
            NegotiatedFeatures { reply_format: ReplyFormat::Structured, has_allocation_context: true };
        let export = ExportDescription { name: "disk".into(), size: SIZE, is_read_only };
        check(&header, &features, &export).map_err(|invalid| invalid.errno)
    }

    fn check_writable_export(
        command: u16,
        flags: u16,
        offset: u64,
        len: u32,
    ) -> Result<CheckedRequest, NbdErrno> {
        check_with(command, flags, offset, len, false)
    }

    #[test]
    fn requests_at_the_limits_are_accepted() {
        let longest = PAYLOAD_BYTES_MAX as usize;
        let offset = SIZE - longest as u64;
        let durability = Durability::Later;
        let accepted = [
            (NBD_CMD_READ, PAYLOAD_BYTES_MAX, CheckedRequest::Read { offset, len: longest }),
            (NBD_CMD_WRITE, PAYLOAD_BYTES_MAX, CheckedRequest::Write { offset, len: longest, durability }),
            (NBD_CMD_TRIM, 0, CheckedRequest::Zero { offset, len: 0, durability }),
        ];
        for (command, len, request) in accepted {
            assert_eq!(check_writable_export(command, 0, offset, len), Ok(request));
        }
        let len = u64::from(u32::MAX);
        let longest_zero = CheckedRequest::Zero { offset: 0, len, durability: Durability::Now };
        assert_eq!(check_writable_export(NBD_CMD_WRITE_ZEROES, 1, 0, u32::MAX), Ok(longest_zero));
        let status = CheckedRequest::BlockStatus { offset: 0, len, extents_max: 1 };
        assert_eq!(check_writable_export(NBD_CMD_BLOCK_STATUS, 1 << 3, 0, u32::MAX), Ok(status));
    }

    #[test]
    fn invalid_requests_are_refused() {
        let too_long = PAYLOAD_BYTES_MAX + 1;
        let refused = [
            (NBD_CMD_READ, 0, 0, too_long, Einval),
            (NBD_CMD_READ, 0, SIZE, 1, Einval),
            (NBD_CMD_READ, 0, u64::MAX, 1, Einval),
            (NBD_CMD_READ, 1 << 1, 0, 1, Einval),
            (NBD_CMD_WRITE, 0, 0, too_long, Einval),
            (NBD_CMD_WRITE, 0, SIZE - 1, 2, Enospc),
            (NBD_CMD_WRITE, 0, u64::MAX, u32::MAX, Einval),
            (NBD_CMD_WRITE, 1 << 5, 0, 1, Einval),
            (NBD_CMD_WRITE_ZEROES, 0, SIZE, 1, Enospc),
            (NBD_CMD_WRITE_ZEROES, 1 << 3, 0, 1, Einval),
            (NBD_CMD_TRIM, 0, SIZE, 1, Einval),
            (NBD_CMD_TRIM, 1 << 1, 0, 1, Einval),
            (NBD_CMD_FLUSH, 1 << 2, 0, 0, Einval),
            (NBD_CMD_BLOCK_STATUS, 0, 0, 0, Einval),
            (NBD_CMD_BLOCK_STATUS, 0, SIZE, 1, Einval),
            (5, 0, 0, 1, Einval),
            (8, 0, 0, 1, Einval),
            (u16::MAX, 0, 0, 1, Einval),
        ];
        for (command, flags, offset, len, errno) in refused {
            let checked = check_writable_export(command, flags, offset, len);
            assert_eq!(checked, Err(errno), "command {command} flags {flags:#x} {len} bytes at {offset}");
        }
    }

    #[test]
    fn a_read_only_export_refuses_changes() {
        for command in [NBD_CMD_WRITE, NBD_CMD_TRIM, NBD_CMD_WRITE_ZEROES] {
            assert_eq!(check_with(command, 0, 0, 1, true), Err(Eperm));
        }
        assert_eq!(check_with(NBD_CMD_FLUSH, 0, 0, 0, true), Ok(CheckedRequest::Flush));
        assert_eq!(check_with(NBD_CMD_READ, 0, 0, 1, true), Ok(CheckedRequest::Read { offset: 0, len: 1 }));
    }

    #[test]
    fn features_must_be_negotiated() {
        let features =
            NegotiatedFeatures { reply_format: ReplyFormat::Simple, has_allocation_context: false };
        let export = ExportDescription { name: "disk".into(), size: SIZE, is_read_only: false };
        let refused = [(NBD_CMD_BLOCK_STATUS, 0), (NBD_CMD_READ, NBD_CMD_FLAG_DF)];
        for (command, flags) in refused {
            let header = RequestHeader { flags, command, cookie: 0, offset: 0, len: 1 };
            let checked = check(&header, &features, &export).map_err(|invalid| invalid.errno);
            assert_eq!(checked, Err(Einval));
        }
    }
}
