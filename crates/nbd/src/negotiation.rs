//! What client and server agree on before the first request: a state machine without I/O.
//!
//! The client sends options. The server answers each option, until an option begins the transmission of
//! requests or ends the connection.

use crate::protocol::{
    ALLOCATION_CONTEXT_ID, NBD_FLAG_CAN_MULTI_CONN, NBD_FLAG_HAS_FLAGS, NBD_FLAG_READ_ONLY, NBD_FLAG_SEND_DF,
    NBD_FLAG_SEND_FAST_ZERO, NBD_FLAG_SEND_FLUSH, NBD_FLAG_SEND_FUA, NBD_FLAG_SEND_TRIM,
    NBD_FLAG_SEND_WRITE_ZEROES, NBD_INFO_BLOCK_SIZE, NBD_INFO_DESCRIPTION, NBD_INFO_EXPORT, NBD_INFO_NAME,
    NBD_OPT_ABORT, NBD_OPT_EXPORT_NAME, NBD_OPT_GO, NBD_OPT_INFO, NBD_OPT_LIST, NBD_OPT_LIST_META_CONTEXT,
    NBD_OPT_SET_META_CONTEXT, NBD_OPT_STRUCTURED_REPLY, NBD_REP_ACK, NBD_REP_ERR_INVALID,
    NBD_REP_ERR_TOO_BIG, NBD_REP_ERR_UNKNOWN, NBD_REP_ERR_UNSUP, NBD_REP_INFO, NBD_REP_META_CONTEXT,
    NBD_REP_SERVER, PAYLOAD_BYTES_MAX, append_option_reply, take_bytes, take_counted, take_u16, take_u32,
};
use crate::reply::ReplyFormat;

/// The only metadata context: which ranges are holes.
const ALLOCATION_CONTEXT: &[u8] = b"base:allocation";

/// The smallest unit of a request in bytes. The `Disk` accepts any range.
const BLOCK_BYTES_MIN: u32 = 1;

/// The unit of a request, in bytes, with which the `Disk` is fastest.
const BLOCK_BYTES_PREFERRED: u32 = 4096;

/// The answer to a client that asks for the description of the export.
const DESCRIPTION: &str = "weir volume";

/// The export that a server has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportDescription {
    pub(crate) name: String,
    /// The size in bytes.
    pub(crate) size: u64,
    pub(crate) is_read_only: bool,
}

/// The agreement with one client that its requests and replies depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NegotiatedFeatures {
    pub(crate) reply_format: ReplyFormat,
    /// Whether the client may send BLOCK_STATUS.
    pub(crate) has_allocation_context: bool,
}

/// Whether replies to EXPORT_NAME end with 124 bytes of padding. A client without the flag NO_ZEROES expects
/// the padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExportNamePadding {
    Zeroes,
    None,
}

/// What follows the reply to an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterOption {
    /// The client sends another option.
    NextOption,
    /// The client sends requests.
    Transmission(NegotiatedFeatures),
    /// The server closes the connection.
    End,
}

/// The negotiation with one client.
#[derive(Debug)]
pub(crate) struct Negotiation<'e> {
    export: &'e ExportDescription,
    padding: ExportNamePadding,
    features: NegotiatedFeatures,
}

/// The error with which the server answers an option: one of the `NBD_REP_ERR` numbers, and a sentence for
/// the person who uses the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OptionError {
    reply_type: u32,
    message: &'static str,
}

impl<'e> Negotiation<'e> {
    /// The negotiation with a client that has just connected: no features are agreed on.
    pub(crate) fn new(export: &'e ExportDescription, padding: ExportNamePadding) -> Negotiation<'e> {
        let features =
            NegotiatedFeatures { reply_format: ReplyFormat::Simple, has_allocation_context: false };
        Negotiation { export, padding, features }
    }

    /// Answers an option with its `data`: appends the reply to `reply`.
    pub(crate) fn answer(&mut self, option: u32, data: &[u8], reply: &mut Vec<u8>) -> AfterOption {
        let answered = match option {
            NBD_OPT_EXPORT_NAME => return self.answer_export_name(data, reply),
            NBD_OPT_ABORT => {
                append_option_reply(reply, option, NBD_REP_ACK, &[]);
                return AfterOption::End;
            }
            NBD_OPT_GO => match self.answer_info(option, data, reply) {
                Ok(()) => {
                    append_option_reply(reply, option, NBD_REP_ACK, &[]);
                    return AfterOption::Transmission(self.features);
                }
                Err(error) => Err(error),
            },
            NBD_OPT_INFO => self.answer_info(option, data, reply),
            NBD_OPT_LIST => self.answer_list(option, data, reply),
            NBD_OPT_STRUCTURED_REPLY => self.answer_structured_reply(data),
            NBD_OPT_LIST_META_CONTEXT => self.answer_list_contexts(option, data, reply),
            NBD_OPT_SET_META_CONTEXT => self.answer_set_contexts(option, data, reply),
            _ => Err(OptionError {
                reply_type: NBD_REP_ERR_UNSUP,
                message: "the server does not support this option",
            }),
        };
        match answered {
            Ok(()) => append_option_reply(reply, option, NBD_REP_ACK, &[]),
            Err(error) => append_option_reply(reply, option, error.reply_type, error.message.as_bytes()),
        }
        AfterOption::NextOption
    }

    /// Answers an option whose data are too long for the server to read.
    pub(crate) fn refuse_long_option(&self, option: u32, reply: &mut Vec<u8>) -> AfterOption {
        // EXPORT_NAME has no error reply.
        if option == NBD_OPT_EXPORT_NAME {
            return AfterOption::End;
        }
        append_option_reply(reply, option, NBD_REP_ERR_TOO_BIG, b"the option is longer than 64 KiB");
        AfterOption::NextOption
    }

    fn answer_export_name(&self, name: &[u8], reply: &mut Vec<u8>) -> AfterOption {
        if !self.is_name_of_export(name) {
            return AfterOption::End;
        }
        reply.extend(self.export.size.to_be_bytes());
        reply.extend(self.transmission_flags().to_be_bytes());
        if self.padding == ExportNamePadding::Zeroes {
            reply.extend([0; 124]);
        }
        AfterOption::Transmission(self.features)
    }

    /// Answers INFO, and GO, with what the client may know about the export.
    fn answer_info(&self, option: u32, data: &[u8], reply: &mut Vec<u8>) -> Result<(), OptionError> {
        let (name, wishes) = decode_info(data).ok_or_else(malformed)?;
        self.check_name(name)?;
        let mut append = |info: u16, content: &[u8]| {
            let payload = [&info.to_be_bytes(), content].concat();
            append_option_reply(reply, option, NBD_REP_INFO, &payload);
        };
        let size = self.export.size.to_be_bytes();
        let flags = self.transmission_flags().to_be_bytes();
        append(NBD_INFO_EXPORT, &[&size[..], &flags].concat());
        let block_sizes = [BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED, PAYLOAD_BYTES_MAX];
        append(NBD_INFO_BLOCK_SIZE, &block_sizes.map(u32::to_be_bytes).concat());
        if wishes.contains(&NBD_INFO_NAME) {
            append(NBD_INFO_NAME, self.export.name.as_bytes());
        }
        if wishes.contains(&NBD_INFO_DESCRIPTION) {
            append(NBD_INFO_DESCRIPTION, DESCRIPTION.as_bytes());
        }
        Ok(())
    }

    fn answer_list(&self, option: u32, data: &[u8], reply: &mut Vec<u8>) -> Result<(), OptionError> {
        check_empty(data)?;
        let name = self.export.name.as_bytes();
        let payload = [&(name.len() as u32).to_be_bytes(), name].concat();
        append_option_reply(reply, option, NBD_REP_SERVER, &payload);
        Ok(())
    }

    fn answer_structured_reply(&mut self, data: &[u8]) -> Result<(), OptionError> {
        check_empty(data)?;
        self.features.reply_format = ReplyFormat::Structured;
        Ok(())
    }

    fn answer_list_contexts(&self, option: u32, data: &[u8], reply: &mut Vec<u8>) -> Result<(), OptionError> {
        let queries = self.context_queries(data)?;
        let lists_allocation = |query: &&[u8]| *query == b"base:" || *query == ALLOCATION_CONTEXT;
        if queries.is_empty() || queries.iter().any(lists_allocation) {
            // The number has no meaning in a list.
            append_context(reply, option, 0);
        }
        Ok(())
    }

    fn answer_set_contexts(
        &mut self,
        option: u32,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), OptionError> {
        // The option replaces the contexts selected before, also if it fails.
        self.features.has_allocation_context = false;
        let queries = self.context_queries(data)?;
        // `base:` selects nothing: it is for lists.
        if queries.contains(&ALLOCATION_CONTEXT) {
            self.features.has_allocation_context = true;
            append_context(reply, option, ALLOCATION_CONTEXT_ID);
        }
        Ok(())
    }

    /// The queries of LIST_META_CONTEXT and SET_META_CONTEXT.
    fn context_queries<'d>(&self, data: &'d [u8]) -> Result<Vec<&'d [u8]>, OptionError> {
        if self.features.reply_format != ReplyFormat::Structured {
            return Err(OptionError {
                reply_type: NBD_REP_ERR_INVALID,
                message: "metadata contexts need structured replies",
            });
        }
        let (name, queries) = decode_context_queries(data).ok_or_else(malformed)?;
        self.check_name(name)?;
        Ok(queries)
    }

    /// Whether a client means the export by `name`. The empty name means the export, too.
    fn is_name_of_export(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.export.name.as_bytes()
    }

    fn check_name(&self, name: &[u8]) -> Result<(), OptionError> {
        if !self.is_name_of_export(name) {
            return Err(OptionError {
                reply_type: NBD_REP_ERR_UNKNOWN,
                message: "the server has no export of this name",
            });
        }
        Ok(())
    }

    fn transmission_flags(&self) -> u16 {
        let mut flags =
            NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA | NBD_FLAG_CAN_MULTI_CONN;
        if self.export.is_read_only {
            flags |= NBD_FLAG_READ_ONLY;
        } else {
            flags |= NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO;
        }
        if self.features.reply_format == ReplyFormat::Structured {
            flags |= NBD_FLAG_SEND_DF;
        }
        flags
    }
}

/// Decodes the data of INFO and GO: the name of the export, and the numbers of the wanted infos. `None`: the
/// lengths contradict each other.
fn decode_info(mut data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let name = take_counted(&mut data)?;
    let count = take_u16(&mut data)?;
    let mut wishes = take_bytes(&mut data, 2 * usize::from(count))?;
    if !data.is_empty() {
        return None;
    }
    let wishes = std::iter::from_fn(|| take_u16(&mut wishes)).collect();
    Some((name, wishes))
}

/// Decodes the data of LIST_META_CONTEXT and SET_META_CONTEXT: the name of the export, and the queries.
/// `None`: the lengths contradict each other.
fn decode_context_queries(mut data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let name = take_counted(&mut data)?;
    let count = take_u32(&mut data)?;
    // Each query takes at least the 4 bytes of its length, so a count that lies ends the loop early.
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(take_counted(&mut data)?);
    }
    data.is_empty().then_some((name, queries))
}

fn append_context(reply: &mut Vec<u8>, option: u32, id: u32) {
    let payload = [&id.to_be_bytes(), ALLOCATION_CONTEXT].concat();
    append_option_reply(reply, option, NBD_REP_META_CONTEXT, &payload);
}

fn check_empty(data: &[u8]) -> Result<(), OptionError> {
    if !data.is_empty() {
        return Err(OptionError {
            reply_type: NBD_REP_ERR_INVALID,
            message: "the option does not have any data",
        });
    }
    Ok(())
}

fn malformed() -> OptionError {
    OptionError {
        reply_type: NBD_REP_ERR_INVALID,
        message: "the lengths inside the option contradict each other",
    }
}

#[cfg(test)]
mod tests;
