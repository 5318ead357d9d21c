//! Generated parts of the pages in docs/protocols: costs from the table of protocols, and curves from stored records.
//!
//! `DOORBELL_UPDATE_PROTOCOLS=1 cargo test -p doorbell-report --test suite protocol_pages::` rewrites them. The records
//! are those of [`crate::common::RECORDS`].

mod costs;
mod curves;

use std::fs;
use std::path::PathBuf;

use curves::Figure;
use doorbell_protocols::Protocol;

use crate::common::{self, root};

const BEGIN: &str =
    "<!-- generated: `DOORBELL_UPDATE_PROTOCOLS=1 cargo test -p doorbell-report --test suite protocol_pages::` -->\n";
const END: &str = "<!-- end of generated part -->\n";

/// Returns the variants of each protocol, in the order of the table of protocols.
fn families() -> Vec<Vec<Protocol>> {
    let mut families: Vec<Vec<Protocol>> = Vec::new();
    for protocol in Protocol::ALL {
        match families.iter_mut().find(|family| family[0].page() == protocol.page()) {
            Some(family) => family.push(protocol),
            None => families.push(vec![protocol]),
        }
    }
    families
}

/// Returns the text of a stored page with `generated` between its markers.
fn page_with(page: &str, generated: &str) -> (PathBuf, String) {
    let path = root().join(page);
    let stored = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
    let parts = stored.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.unwrap_or_else(|| panic!("{page} must have the lines {BEGIN}and {END}"));
    (path, format!("{before}{BEGIN}\n{generated}\n{END}{after}"))
}

#[test]
fn pages_have_the_costs_and_curves_of_each_protocol() {
    let [measured, simulated] = common::records();
    let families = families();
    let mut files = vec![page_with(Protocol::PAGES, &costs::properties(&families))];
    for variants in &families {
        let figure = Figure::new(variants[0].description().family, &measured, &simulated);
        let generated = format!("{}\n{}", costs::tables(variants), figure.section());
        files.push(page_with(variants[0].page(), &generated));
        files.push((root().join(variants[0].page()).with_extension("svg"), figure.svg()));
    }
    if std::env::var_os("DOORBELL_UPDATE_PROTOCOLS").is_some() {
        files.iter().for_each(|(path, text)| fs::write(path, text).unwrap());
    }
    let differs = |(path, text): &&(PathBuf, String)| fs::read_to_string(path).unwrap_or_default() != *text;
    let stale: Vec<String> = files.iter().filter(differs).map(|(path, _)| path.display().to_string()).collect();
    assert!(stale.is_empty(), "DOORBELL_UPDATE_PROTOCOLS=1 rewrites {}", stale.join(", "));
}
