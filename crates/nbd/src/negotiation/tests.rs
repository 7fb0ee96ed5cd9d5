use super::*;
use crate::protocol::{NBD_REP_MAGIC, take_u64};
use proptest::prelude::*;

fn export() -> ExportDescription {
    ExportDescription { name: "disk".into(), size: 1 << 30, is_read_only: false }
}

/// A field that begins with its length.
fn counted(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// The data of INFO and GO.
fn info_data(name: &[u8], wishes: &[u16]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend((wishes.len() as u16).to_be_bytes());
    data.extend(wishes.iter().flat_map(|wish| wish.to_be_bytes()));
    data
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
fn context_data(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| counted(query)));
    data
}

/// Splits the bytes of option replies into types and payloads. Every reply must be to `option`.
fn split_replies(mut bytes: &[u8], option: u32) -> Vec<(u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(take_u64(&mut bytes), Some(NBD_REP_MAGIC));
        assert_eq!(take_u32(&mut bytes), Some(option));
        let reply_type = take_u32(&mut bytes).expect("a type");
        let payload = take_counted(&mut bytes).expect("a payload");
        replies.push((reply_type, payload.to_vec()));
    }
    replies
}

/// Sends an option, and returns the types and payloads of the replies.
fn answer(negotiation: &mut Negotiation<'_>, option: u32, data: &[u8]) -> (Vec<(u32, Vec<u8>)>, AfterOption) {
    let mut reply = Vec::new();
    let after = negotiation.answer(option, data, &mut reply);
    (split_replies(&reply, option), after)
}

/// Sends an option after which the negotiation goes on, and returns the types of the replies.
fn reply_types(negotiation: &mut Negotiation<'_>, option: u32, data: &[u8]) -> Vec<u32> {
    let (replies, after) = answer(negotiation, option, data);
    assert_eq!(after, AfterOption::NextOption);
    replies.iter().map(|(reply_type, _)| *reply_type).collect()
}

/// A negotiation in which structured replies are agreed on.
fn structured(export: &ExportDescription) -> Negotiation<'_> {
    let mut negotiation = Negotiation::new(export, ExportNamePadding::None);
    assert_eq!(reply_types(&mut negotiation, NBD_OPT_STRUCTURED_REPLY, &[]), [NBD_REP_ACK]);
    negotiation
}

#[test]
fn go_describes_the_export_and_begins_transmission() {
    let export = export();
    for name in [&b"disk"[..], b""] {
        let mut negotiation = structured(&export);
        let (replies, after) = answer(&mut negotiation, NBD_OPT_GO, &info_data(name, &[]));
        let features =
            NegotiatedFeatures { reply_format: ReplyFormat::Structured, has_allocation_context: false };
        assert_eq!(after, AfterOption::Transmission(features));
        let mut export_info = vec![0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0];
        export_info.extend(0b1001_1110_1101_u16.to_be_bytes());
        let block_sizes = vec![0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0];
        let expected = [(NBD_REP_INFO, export_info), (NBD_REP_INFO, block_sizes), (NBD_REP_ACK, Vec::new())];
        assert_eq!(replies, expected);
    }
}

#[test]
fn info_sends_name_and_description_on_request() {
    let export = export();
    let mut negotiation = Negotiation::new(&export, ExportNamePadding::None);
    // The client may ask for infos that the server does not know.
    let data = info_data(b"", &[NBD_INFO_DESCRIPTION, 77, NBD_INFO_NAME]);
    let (replies, after) = answer(&mut negotiation, NBD_OPT_INFO, &data);
    assert_eq!(after, AfterOption::NextOption);
    assert_eq!(replies.len(), 5);
    assert_eq!(replies[2], (NBD_REP_INFO, b"\0\x01disk".to_vec()));
    assert_eq!(replies[3], (NBD_REP_INFO, b"\0\x02weir volume".to_vec()));
    assert_eq!(replies[4], (NBD_REP_ACK, Vec::new()));
}

#[test]
fn export_name_begins_transmission() {
    let export = export();
    let sizes = [(ExportNamePadding::None, 10), (ExportNamePadding::Zeroes, 134)];
    for (padding, reply_bytes) in sizes {
        let mut reply = Vec::new();
        let after = Negotiation::new(&export, padding).answer(NBD_OPT_EXPORT_NAME, b"disk", &mut reply);
        assert!(matches!(after, AfterOption::Transmission(_)));
        assert_eq!(reply.len(), reply_bytes);
        // Without SEND_DF: replies are simple.
        assert_eq!(reply[..10], [0, 0, 0, 0, 0x40, 0, 0, 0, 0b1001, 0b0110_1101]);
    }
}

#[test]
fn export_name_of_another_export_ends_the_connection() {
    let export = export();
    for name in [&b"Disk"[..], b"disk\0", b"\xff\xfe"] {
        let mut reply = Vec::new();
        let mut negotiation = Negotiation::new(&export, ExportNamePadding::None);
        assert_eq!(negotiation.answer(NBD_OPT_EXPORT_NAME, name, &mut reply), AfterOption::End);
        assert_eq!(reply, []);
    }
}

#[test]
fn a_read_only_export_has_no_flags_for_changes() {
    let export = ExportDescription { is_read_only: true, ..export() };
    let mut reply = Vec::new();
    Negotiation::new(&export, ExportNamePadding::None).answer(NBD_OPT_EXPORT_NAME, b"", &mut reply);
    assert_eq!(reply[8..10], [0b1, 0b0000_1111]);
}

#[test]
fn abort_is_acknowledged() {
    let export = export();
    let mut negotiation = Negotiation::new(&export, ExportNamePadding::None);
    let (replies, after) = answer(&mut negotiation, NBD_OPT_ABORT, &[]);
    assert_eq!(replies, [(NBD_REP_ACK, Vec::new())]);
    assert_eq!(after, AfterOption::End);
}

#[test]
fn list_names_the_export() {
    let export = export();
    let mut negotiation = Negotiation::new(&export, ExportNamePadding::None);
    let (replies, _) = answer(&mut negotiation, NBD_OPT_LIST, &[]);
    assert_eq!(replies, [(NBD_REP_SERVER, counted(b"disk")), (NBD_REP_ACK, Vec::new())]);
}

#[test]
fn unknown_options_are_unsupported() {
    let export = export();
    let mut negotiation = structured(&export);
    // PEEK_EXPORT, STARTTLS, EXTENDED_HEADERS, and numbers without a meaning.
    for option in [0, 4, 5, 11, 12, u32::MAX] {
        assert_eq!(reply_types(&mut negotiation, option, b"data"), [NBD_REP_ERR_UNSUP]);
    }
}

#[test]
fn the_allocation_context_is_selected_by_its_whole_name() {
    let export = export();
    let selections: [(&[&[u8]], bool); 5] = [
        (&[b"base:allocation"], true),
        (&[b"qemu:dirty-bitmap:b", b"base:allocation", b"base:allocation"], true),
        (&[b"base:"], false),
        (&[], false),
        (&[b"base:allocation:depth", b"", b"\xff"], false),
    ];
    for (queries, is_selected) in selections {
        let mut negotiation = structured(&export);
        let (replies, _) =
            answer(&mut negotiation, NBD_OPT_SET_META_CONTEXT, &context_data(b"disk", queries));
        assert_eq!(replies.len(), if is_selected { 2 } else { 1 });
        if is_selected {
            assert_eq!(replies[0], (NBD_REP_META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec()));
        }
        let (_, after) = answer(&mut negotiation, NBD_OPT_GO, &info_data(b"disk", &[]));
        let features =
            NegotiatedFeatures { reply_format: ReplyFormat::Structured, has_allocation_context: is_selected };
        assert_eq!(after, AfterOption::Transmission(features));
    }
}

#[test]
fn contexts_are_listed_by_name_and_namespace() {
    let export = export();
    let mut negotiation = structured(&export);
    let lists: [(&[&[u8]], usize); 5] =
        [(&[], 1), (&[b"base:"], 1), (&[b"base:allocation"], 1), (&[b"qemu:"], 0), (&[b"x", b"base:"], 1)];
    for (queries, contexts) in lists {
        let data = context_data(b"", queries);
        let (replies, _) = answer(&mut negotiation, NBD_OPT_LIST_META_CONTEXT, &data);
        assert_eq!(replies.len(), contexts + 1, "{queries:?}");
        assert_eq!(replies[contexts].0, NBD_REP_ACK);
    }
    assert!(!negotiation.features.has_allocation_context);
}

#[test]
fn a_failed_selection_selects_nothing() {
    let export = export();
    let mut negotiation = structured(&export);
    let select = |negotiation: &mut Negotiation<'_>, name: &[u8]| {
        reply_types(negotiation, NBD_OPT_SET_META_CONTEXT, &context_data(name, &[ALLOCATION_CONTEXT]))
    };
    assert_eq!(select(&mut negotiation, b"disk"), [NBD_REP_META_CONTEXT, NBD_REP_ACK]);
    assert_eq!(select(&mut negotiation, b"other"), [NBD_REP_ERR_UNKNOWN]);
    assert!(!negotiation.features.has_allocation_context);
}

#[test]
fn contexts_need_structured_replies() {
    let export = export();
    let mut negotiation = Negotiation::new(&export, ExportNamePadding::None);
    for option in [NBD_OPT_SET_META_CONTEXT, NBD_OPT_LIST_META_CONTEXT] {
        let data = context_data(b"disk", &[ALLOCATION_CONTEXT]);
        assert_eq!(reply_types(&mut negotiation, option, &data), [NBD_REP_ERR_INVALID]);
    }
}

#[test]
fn malformed_options_are_refused() {
    let export = export();
    let lying_name_len = [&5_u32.to_be_bytes(), &b"disk"[..]].concat();
    let lying_info_count = [counted(b"disk"), vec![0xff, 0xff, 0, 1]].concat();
    let lying_query_count = [counted(b"disk"), vec![0xff; 4], counted(b"base:")].concat();
    let lying_query_len = [counted(b"disk"), vec![0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, b'b']].concat();
    let info_with_rest = [info_data(b"disk", &[]), vec![0]].concat();
    let contexts_with_rest = [context_data(b"disk", &[b"base:"]), vec![0]].concat();
    let cases: [(u32, &[u8], u32); 19] = [
        (NBD_OPT_LIST, b"x", NBD_REP_ERR_INVALID),
        (NBD_OPT_STRUCTURED_REPLY, b"x", NBD_REP_ERR_INVALID),
        (NBD_OPT_GO, b"", NBD_REP_ERR_INVALID),
        (NBD_OPT_GO, b"\0\0\0", NBD_REP_ERR_INVALID),
        (NBD_OPT_GO, &[0xff; 10], NBD_REP_ERR_INVALID),
        (NBD_OPT_GO, &lying_name_len, NBD_REP_ERR_INVALID),
        (NBD_OPT_GO, &lying_info_count, NBD_REP_ERR_INVALID),
        (NBD_OPT_GO, &info_with_rest, NBD_REP_ERR_INVALID),
        (NBD_OPT_GO, &info_data(b"other", &[]), NBD_REP_ERR_UNKNOWN),
        (NBD_OPT_GO, &info_data(b"\xff\xfe", &[]), NBD_REP_ERR_UNKNOWN),
        (NBD_OPT_INFO, &lying_info_count, NBD_REP_ERR_INVALID),
        (NBD_OPT_INFO, &info_data(&[b'x'; 5000], &[]), NBD_REP_ERR_UNKNOWN),
        (NBD_OPT_SET_META_CONTEXT, b"", NBD_REP_ERR_INVALID),
        (NBD_OPT_SET_META_CONTEXT, &lying_query_count, NBD_REP_ERR_INVALID),
        (NBD_OPT_SET_META_CONTEXT, &lying_query_len, NBD_REP_ERR_INVALID),
        (NBD_OPT_SET_META_CONTEXT, &contexts_with_rest, NBD_REP_ERR_INVALID),
        (NBD_OPT_SET_META_CONTEXT, &context_data(b"\xc3\x28", &[]), NBD_REP_ERR_UNKNOWN),
        (NBD_OPT_LIST_META_CONTEXT, &lying_query_count, NBD_REP_ERR_INVALID),
        (NBD_OPT_LIST_META_CONTEXT, &context_data(b"other", &[]), NBD_REP_ERR_UNKNOWN),
    ];
    for (option, data, reply_type) in cases {
        let types = reply_types(&mut structured(&export), option, data);
        assert_eq!(types, [reply_type], "option {option} with {data:?}");
    }
}

#[test]
fn long_options_are_refused() {
    let export = export();
    let negotiation = Negotiation::new(&export, ExportNamePadding::None);
    let mut reply = Vec::new();
    assert_eq!(negotiation.refuse_long_option(NBD_OPT_GO, &mut reply), AfterOption::NextOption);
    assert_eq!(split_replies(&reply, NBD_OPT_GO)[0].0, NBD_REP_ERR_TOO_BIG);
    reply.clear();
    assert_eq!(negotiation.refuse_long_option(NBD_OPT_EXPORT_NAME, &mut reply), AfterOption::End);
    assert_eq!(reply, []);
}

proptest! {
    #[test]
    fn any_option_has_well_formed_replies(
        options in prop::collection::vec((2_u32..13, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
    ) {
        let export = export();
        let mut negotiation = structured(&export);
        for (option, data) in options {
            let (replies, _) = answer(&mut negotiation, option, &data);
            prop_assert!(!replies.is_empty());
        }
    }
}
