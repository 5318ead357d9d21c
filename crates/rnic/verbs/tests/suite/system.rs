//! Errors for a missing or unsuitable libibverbs. Tests that need a device are in the conformance suite, which `cargo
//! xtask guest` runs on a device.

use std::path::Path;

use doorbell_verbs::Error;
use doorbell_verbs::system::{SystemError, SystemOptions, list, open};

fn with_library(path: &str) -> SystemOptions {
    SystemOptions { library: Some(Path::new(path).to_path_buf()), ..SystemOptions::default() }
}

#[test]
fn an_error_without_libibverbs_says_to_install_it() {
    let options = with_library("/nowhere/libibverbs.so.1");
    let error = list(&options).unwrap_err();
    assert!(matches!(error, SystemError::Absent { .. }));
    let text = error.to_string();
    assert!(text.contains("/nowhere/libibverbs.so.1") && text.contains("install"), "{text}");
    assert!(matches!(open(&options), Err(Error::System(SystemError::Absent { .. }))));
}

#[test]
fn a_library_without_required_symbols_is_too_old() {
    // libgcc_s exists wherever a Rust program runs, and has no function of libibverbs.
    let error = list(&with_library("libgcc_s.so.1")).unwrap_err();
    assert!(matches!(&error, SystemError::TooOld { symbol, .. } if symbol == "ibv_get_device_list"), "{error}");
    let text = error.to_string();
    assert!(text.contains("libgcc_s.so.1 is too old") && text.contains("rdma-core 34"), "{text}");
}

#[test]
fn a_device_that_does_not_exist_is_no_panic() {
    let options = SystemOptions { device: Some("no such device".to_owned()), ..SystemOptions::default() };
    let error = open(&options).unwrap_err();
    // The expected error depends on the libraries and devices of this machine.
    assert!(
        matches!(
            &error,
            Error::System(
                SystemError::Absent { .. }
                    | SystemError::TooOld { .. }
                    | SystemError::NoList(_)
                    | SystemError::NoDevices
                    | SystemError::NoSuchDevice { .. }
            )
        ),
        "{error}"
    );
}
