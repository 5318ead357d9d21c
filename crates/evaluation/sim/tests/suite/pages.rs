//! Parts of pages that tests write or compare.

use std::path::Path;
use std::sync::Mutex;
use std::{env, fs};

use doorbell_sync::IgnorePoison as _;

/// Text after each part.
const END: &str = "\n<!-- end of generated part -->";

/// Lock of the pages, which several tests write.
static PAGES: Mutex<()> = Mutex::new(());

/// Checks that the part of the page after `begin` is `text`. If the environment variable `update` is set, writes the
/// part instead. `begin` occurs once in the page.
///
/// # Panics
///
/// The page has another part, or none.
pub(crate) fn check(page: &str, begin: &str, text: &str, update: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs").join(page);
    let _lock = PAGES.lock().ignore_poison();
    let whole = fs::read_to_string(&page).expect("the page");
    let (before, rest) = whole.split_once(begin).unwrap_or_else(|| panic!("the page lacks {begin}"));
    let (stored, after) = rest.split_once(END).expect("the end of the part");
    if env::var_os(update).is_some() {
        fs::write(&page, format!("{before}{begin}{text}{END}{after}")).expect("a writable page");
        return;
    }
    assert!(stored == text, "{update}=1 writes the part anew:\n{text}");
}
