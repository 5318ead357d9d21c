//! `libdoorbell_ibverbs.so`, whose code is the crate [`doorbell_preload`].

use doorbell_preload as _;
