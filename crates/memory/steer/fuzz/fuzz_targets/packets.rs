#![no_main]

#[path = "../../tests/common/fuzz.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::fuzz_packets(data));
