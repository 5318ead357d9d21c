#![no_main]

mod cm;

libfuzzer_sys::fuzz_target!(|data: &[u8]| cm::fuzz::fuzz_messages(data));
