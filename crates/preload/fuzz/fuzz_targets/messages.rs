#![no_main]

/// The library exports C functions only, so its source is included.
#[allow(dead_code)]
mod cm {
    #[path = "../../../src/cm/fuzz.rs"]
    pub(crate) mod fuzz;
    #[path = "../../../src/cm/message.rs"]
    mod message;
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| cm::fuzz::fuzz_messages(data));
