//! Memory for media: aligned by its type, so that no caller can get the alignment of direct I/O wrong.

use crate::address::BLOCK_BYTES;
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The bytes of one block or page, aligned as O_DIRECT wants them.
#[derive(Clone, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; BLOCK_BYTES]);

const _: () = assert!(size_of::<Page>() == BLOCK_BYTES && align_of::<Page>() == BLOCK_BYTES);

impl Page {
    /// A page of zeros.
    pub const ZERO: Page = Page([0; BLOCK_BYTES]);

    /// A page of zeros on the heap, without passing through the stack.
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

/// A page that several hold: a cache, and who writes it to a device. Boxed, because the counts of an `Arc` beside the bytes
/// of an aligned page make it two pages long.
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
