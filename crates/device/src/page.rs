//! Memory for media. The type has the alignment that direct I/O needs, so no caller can get it wrong.

use crate::address::BLOCK_BYTES;
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The bytes of one block or page, with the alignment that O_DIRECT needs.
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; BLOCK_BYTES]);

const _: () = assert!(size_of::<Page>() == BLOCK_BYTES && align_of::<Page>() == BLOCK_BYTES);

impl Page {
    /// A page of zeros.
    pub const ZERO: Page = Page([0; BLOCK_BYTES]);

    /// A page of zeros, allocated on the heap without a copy on the stack.
    pub fn zeroed() -> Box<Page> {
        Page::new_box_zeroed().expect("memory for a page")
    }

    /// The bytes of consecutive pages as one slice.
    pub fn bytes(pages: &[Page]) -> &[u8] {
        pages.as_bytes()
    }

    /// The bytes of consecutive pages as one slice that can be changed.
    pub fn bytes_mut(pages: &mut [Page]) -> &mut [u8] {
        pages.as_mut_bytes()
    }
}

/// A page with several owners, such as a cache and a thread that writes the page to a device.
///
/// Boxed, because the reference counts of an `Arc` beside the bytes of an aligned page would make it two
/// pages long.
pub type SharedPage = Arc<Box<Page>>;

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Page({:02x?}…)", &self.0[..16])
    }
}

/// `count` pages of zeros.
pub fn pages(count: usize) -> Vec<Page> {
    Page::new_vec_zeroed(count).expect("memory for pages")
}
